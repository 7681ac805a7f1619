/* Preloaded into every program of a dry run: a Python whose PYTHONPATH the job replaced gets the probe's folder back.
 *
 * Does nothing in a program that is not a Python, or where XMEM_PROBE is not set. Runs before Python reads its
 * environment, which `python -I` and `python -E` do not do. Built by `preload.py`.
 */
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static int is_python(void) {
    char path[PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = '\0';
    const char *slash = strrchr(path, '/');
    return slash && strncmp(slash + 1, "python", 6) == 0;
}

__attribute__((constructor)) static void enter(void) {
    const char *probe = getenv("XMEM_PROBE"), *given = getenv("PYTHONPATH");
    if (!probe || !*probe || !is_python())
        return;
    size_t length = strlen(probe);
    if (given && strncmp(given, probe, length) == 0 && (given[length] == '\0' || given[length] == ':'))
        return;
    char *joined = malloc(length + (given ? strlen(given) : 0) + 2);
    if (!joined)
        return;
    strcpy(joined, probe);
    if (given && *given)
        strcat(strcat(joined, ":"), given);
    setenv("PYTHONPATH", joined, 1);
    free(joined);
}
