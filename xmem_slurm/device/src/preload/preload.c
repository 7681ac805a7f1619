/* Preloaded into every program of a dry run: a Python whose PYTHONPATH the job replaced gets the probe's folder back,
 * and its audit events come to the probe by way of a filter.
 *
 * Does nothing in a program that is not a Python, or where XMEM_PROBE is not set. Runs before Python reads its
 * environment, which `python -I` and `python -E` do not do. Built by `preload.py`.
 *
 * The filter: Python raises an event for each `id()`, among them one for each parameter of a model that is put in a
 * set, and a hook that is written in Python is called for all events there are, 1 us each. This one, in C, calls a
 * listener of the probe's (probe/_xmem/process/audit.py) for those alone that it takes. It is declared here and looked
 * for at run time, as no header of Python's is needed for it: all is of the stable ABI, but for PyUnicode_AsUTF8, which
 * each Python has.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_LISTENERS = 4, MOST_EVENTS = 32, EVENT_BYTES = 64 };

typedef struct _object PyObject;

static PyObject *(*call_function)(PyObject *, const char *, ...);
static PyObject *(*tuple_item)(PyObject *, ssize_t);
static ssize_t (*tuple_size)(PyObject *);
static const char *(*as_utf8)(PyObject *);
static void (*take_reference)(PyObject *), (*drop_reference)(PyObject *);
static void *(*interpreter)(void);

struct listener {
    PyObject *call;
    void *interpreter; /* the one that has told of it */
    int count;
    char events[MOST_EVENTS][EVENT_BYTES];
};
static struct listener listeners[MOST_LISTENERS];
static int known;

/* The probe has raised our own event: (listener, event, event...). Returns whose it is, NULL where that cannot be. */
static struct listener *begin(PyObject *told) {
    ssize_t size = tuple_size(told);
    if (size < 1 || size - 1 > MOST_EVENTS)
        return NULL;
    PyObject *call = tuple_item(told, 0);
    int place = 0;
    while (place < known && listeners[place].call != call)
        place++;
    if (place == MOST_LISTENERS)
        return NULL;
    struct listener *here = &listeners[place];
    here->count = 0;
    for (ssize_t each = 1; each < size; each++) {
        const char *name = as_utf8(tuple_item(told, each));
        if (!name || strlen(name) >= EVENT_BYTES)
            return NULL;
        strcpy(here->events[here->count++], name);
    }
    if (place == known) {
        take_reference(call);
        here->call = call;
        here->interpreter = interpreter();
        known++;
    }
    return here;
}

static int tell(const struct listener *here, const char *event, PyObject *arguments) {
    PyObject *done = call_function(here->call, "sO", event, arguments);
    if (!done)
        return -1;
    drop_reference(done);
    return 0;
}

static int heard(const char *event, PyObject *arguments, void *unused) {
    (void)unused;
    if (strcmp(event, "xmem.listen") == 0) {
        struct listener *here = begin(arguments);
        return here ? tell(here, event, arguments) : 0;
    }
    for (int place = 0; place < known; place++) {
        struct listener *here = &listeners[place];
        for (int each = 0; each < here->count; each++)
            if (strcmp(here->events[each], event) == 0 && here->interpreter == interpreter()) {
                if (tell(here, event, arguments) < 0)
                    return -1;
                break;
            }
    }
    return 0;
}

static void hook(void) {
    int (*add)(int (*)(const char *, PyObject *, void *), void *) = dlsym(RTLD_DEFAULT, "PySys_AddAuditHook");
    call_function = dlsym(RTLD_DEFAULT, "PyObject_CallFunction");
    tuple_item = dlsym(RTLD_DEFAULT, "PyTuple_GetItem");
    tuple_size = dlsym(RTLD_DEFAULT, "PyTuple_Size");
    as_utf8 = dlsym(RTLD_DEFAULT, "PyUnicode_AsUTF8");
    take_reference = dlsym(RTLD_DEFAULT, "Py_IncRef");
    drop_reference = dlsym(RTLD_DEFAULT, "Py_DecRef");
    interpreter = dlsym(RTLD_DEFAULT, "PyInterpreterState_Get");
    if (add && call_function && tuple_item && tuple_size && as_utf8 && take_reference && drop_reference && interpreter)
        add(heard, NULL);
}

static int is_python(void) {
    char path[PATH_BYTES];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return 0;
    path[length] = '\0';
    const char *slash = strrchr(path, '/');
    return slash && strncmp(slash + 1, "python", 6) == 0;
}

static void lead_to(const char *probe, const char *given) {
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

__attribute__((constructor)) static void enter(void) {
    const char *probe = getenv("XMEM_PROBE");
    if (!probe || !*probe || !is_python())
        return;
    lead_to(probe, getenv("PYTHONPATH"));
    hook();
}
