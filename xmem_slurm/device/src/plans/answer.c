/* cudnn-plans LIBRARY [OTHER ...]: which engines would the job's own cuDNN use, and how much workspace do their plans
 * take?
 *
 * LIBRARY is a real libcudnn_graph.so.9, of cuDNN 9.8 or newer. Its documented device-less mode is used, through its
 * public API alone: a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, made from a description of a GPU, stands in for a handle
 * (cudnn_graph.h 9.8 to 9.19). No GPU and no handle is needed. Engines that are compiled at run time, as those of
 * attention, are offered only where NVRTC and a libcuda are found: the OTHERs are the stand-in runtime and driver,
 * mapped first so that they are found by their names.
 *
 * It talks over its standard input, a socket. It says its number in /proc, and once it is loaded the library's version,
 * or 0 where it cannot be. A question is what libraries/cudnn_plans.c writes; the last descriptor is that of the
 * heuristics. The answer's first line is their status; then one line for each configuration that they give, in their
 * order:
 *
 *     engine  status of its plan  bytes of workspace  set of numerical notes, hex  set of behavior notes, hex
 *
 * Plans are made for all configurations but those that would be compiled at run time, by NVRTC: each takes a second or
 * more, and a configuration tells its workspace itself (CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, which cudnn-frontend goes
 * by from 9.2 on). It was that of the plan for each of 3,500 of 9.19, convolutions and attention on an H200 and an
 * A100, 84 of them compiled, and 1,300 of 9.8 (2026-11-27).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include "../libraries/cudnn_backend.h"
#include "protocol.h"

enum { RUNTIME_COMPILATION = 1 /* bit of CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION */ };
enum { MAX_MADE = 1024, MAX_CONFIGURATIONS = 256, MAX_NOTES = 32, MAX_INHERITED = 1024 };

#define MEMORY_BYTES ((rlim_t)2 << 30) /* what it may map for itself; 0.1 GiB is usual, the compiler takes more */

static int (*create)(int type, void **descriptor);
static int (*destroy)(void *descriptor);
static int (*finalize)(void *descriptor);
static int (*set)(void *descriptor, int name, int type, int64_t count, const void *values);
static int (*get)(void *descriptor, int name, int type, int64_t wanted, int64_t *count, void *values);
static size_t (*version)(void);

static void *made[MAX_MADE];
static int made_count;

/* Without memory for a descriptor there is no answer, rather than half of one. */
static void *make(int type) {
    void *descriptor = NULL;
    if (made_count == MAX_MADE || create(type, &descriptor))
        _exit(1);
    return made[made_count++] = descriptor;
}

static void destroy_all(void) {
    while (made_count)
        destroy(made[--made_count]);
}

static int load(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return 0;
    *(void **)&create = dlsym(library, "cudnnBackendCreateDescriptor");
    *(void **)&destroy = dlsym(library, "cudnnBackendDestroyDescriptor");
    *(void **)&finalize = dlsym(library, "cudnnBackendFinalize");
    *(void **)&set = dlsym(library, "cudnnBackendSetAttribute");
    *(void **)&get = dlsym(library, "cudnnBackendGetAttribute");
    *(void **)&version = dlsym(library, "cudnnGetVersion");
    return create && destroy && finalize && set && get && version;
}

/* The GPU of the question before is kept: making it takes a while, and it is the same nearly always. */
static void *device_of(const char *json) {
    static void *device;
    static char *described;
    if (described && strcmp(described, json) == 0)
        return device;
    if (device)
        destroy(device);
    free(described);
    described = NULL;
    device = NULL;
    if (create(DEVICEPROP_DESCRIPTOR, &device) ||
        set(device, DEVICEPROP_JSON, TYPE_CHAR, (int64_t)strlen(json), json) || finalize(device))
        return NULL;
    described = strdup(json);
    return device;
}

/* One attribute: "name:type:count:values", values in hex or, for descriptors, their numbers in the question. Returns a
 * status. */
static int set_from_text(void *descriptor, const char *text, void *const *numbered, int numbered_count) {
    int name, type, start;
    long long count;
    if (sscanf(text, "%d:%d:%lld:%n", &name, &type, &count, &start) != 3)
        return CUDNN_NOT_SUPPORTED;
    const char *values = text + start;
    size_t bytes = 0;
    unsigned char *data = malloc(strlen(values) * sizeof(void *) + sizeof(void *));
    if (!data)
        return CUDNN_NOT_SUPPORTED;
    if (type == TYPE_BACKEND_DESCRIPTOR) {
        for (long long i = 0; i < count; i++) {
            char *end;
            long number = strtol(values, &end, 10);
            if (end == values || number < 0 || number >= numbered_count) {
                free(data);
                return CUDNN_NOT_SUPPORTED;
            }
            ((void **)data)[i] = numbered[number];
            values = *end == ',' ? end + 1 : end;
        }
    } else {
        for (unsigned byte; sscanf(values, "%2x", &byte) == 1; values += 2)
            data[bytes++] = (unsigned char)byte;
    }
    int status = set(descriptor, name, type, count, data);
    free(data);
    return status;
}

static unsigned long long notes_of(void *engine, int name, int type) {
    int notes[MAX_NOTES] = {0};
    int64_t count = 0;
    unsigned long long set_of_notes = 0;
    if (get(engine, name, type, MAX_NOTES, &count, notes))
        return 0;
    for (int64_t i = 0; i < count && i < MAX_NOTES; i++)
        set_of_notes |= 1ull << (notes[i] & 63);
    return set_of_notes;
}

static int make_plan(void *configuration, void *device, int64_t *workspace) {
    int64_t count;
    void *plan = make(EXECUTION_PLAN_DESCRIPTOR);
    int status = set(plan, EXECUTION_PLAN_ENGINE_CONFIG, TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
    status = status ? status : set(plan, EXECUTION_PLAN_DEVICEPROP, TYPE_BACKEND_DESCRIPTOR, 1, &device);
    status = status ? status : finalize(plan);
    return status ? status : get(plan, EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &count, workspace);
}

static int tell_workspace(void *configuration, int64_t *workspace) {
    int64_t count;
    return get(configuration, ENGINECFG_WORKSPACE_SIZE, TYPE_INT64, 1, &count, workspace);
}

static void answer_configurations(void *heuristics, void *device, FILE *answer) {
    void *configurations[MAX_CONFIGURATIONS];
    int64_t count = 0, ignored;
    get(heuristics, ENGINEHEUR_RESULTS, TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL);
    count = count < MAX_CONFIGURATIONS ? count : MAX_CONFIGURATIONS;
    for (int64_t i = 0; i < count; i++)
        configurations[i] = make(ENGINECFG_DESCRIPTOR);
    if (count && get(heuristics, ENGINEHEUR_RESULTS, TYPE_BACKEND_DESCRIPTOR, count, &count, configurations))
        _exit(1);
    for (int64_t i = 0; i < count; i++) {
        int64_t index = -1, workspace = 0;
        void *engine = make(ENGINE_DESCRIPTOR);
        if (get(configurations[i], ENGINECFG_ENGINE, TYPE_BACKEND_DESCRIPTOR, 1, &ignored, &engine))
            _exit(1);
        get(engine, ENGINE_GLOBAL_INDEX, TYPE_INT64, 1, &ignored, &index);
        unsigned long long numerical = notes_of(engine, ENGINE_NUMERICAL_NOTE, TYPE_NUMERICAL_NOTE);
        unsigned long long behavior = notes_of(engine, ENGINE_BEHAVIOR_NOTE, TYPE_BEHAVIOR_NOTE);
        int tells = behavior & RUNTIME_COMPILATION && !tell_workspace(configurations[i], &workspace);
        int status = tells ? CUDNN_SUCCESS : make_plan(configurations[i], device, &workspace);
        fprintf(answer, "%lld %d %lld %llx %llx\n", (long long)index, status, (long long)workspace, numerical,
                behavior);
    }
}

/* End by SIGPROF after so many CPU seconds from now, which nobody else can use up; by SIGALRM after many more. */
static void limit_this_answer(void) {
    setitimer(ITIMER_PROF, &(struct itimerval){.it_value.tv_sec = ANSWER_SECONDS}, NULL);
    alarm(PATIENCE_SECONDS);
}

/* Read a question and write its answer; 0 when the other side has hung up or makes no sense. */
static int converse(FILE *in, FILE *out) {
    static char *line;
    static size_t size;
    void *device = NULL, *last = NULL, *numbered[MAX_MADE];
    int status = 0, type = 0, numbered_count = 0;
    alarm(IDLE_SECONDS);
    while (getline(&line, &size, in) > 0) {
        limit_this_answer();
        line[strcspn(line, "\n")] = 0;
        if (strcmp(line, "end") == 0) {
            fprintf(out, "%d\n", status);
            if (last && type == ENGINEHEUR_DESCRIPTOR && !status)
                answer_configurations(last, device, out);
            fputs(END, out);
            destroy_all();
            return fflush(out) == 0;
        }
        if (strncmp(line, "gpu ", 4) == 0)
            device = device_of(line + 4);
        if (strncmp(line, "descriptor ", 11) != 0)
            continue;
        if (!device || numbered_count == MAX_MADE)
            return 0;
        char *rest = line + 11, *word = strsep(&rest, " ");
        type = atoi(word);
        last = numbered[numbered_count++] = make(type);
        while (!status && (word = strsep(&rest, " ")))
            status = set_from_text(last, word, numbered, numbered_count);
        if (!status && type == ENGINEHEUR_DESCRIPTOR)
            status = set(last, ENGINEHEUR_DEVICEPROP, TYPE_BACKEND_DESCRIPTOR, 1, &device);
        status = status ? status : finalize(last);
    }
    return 0;
}

int main(int count, char **arguments) {
    if (count < 2 || fork())
        return 0; /* the caller waits for this one, not for the helper */
    for (int inherited = STDERR_FILENO + 1; inherited < MAX_INHERITED; inherited++)
        close(inherited); /* a reader at the other end of the job's pipe must see its end */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    setrlimit(RLIMIT_DATA, &(struct rlimit){MEMORY_BYTES, MEMORY_BYTES});
    FILE *in = fdopen(STDIN_FILENO, "r"), *out = fdopen(dup(STDIN_FILENO), "w");
    limit_this_answer();
    char number[32] = "";
    if (readlink("/proc/self", number, sizeof number - 1) < 0)
        *number = 0;
    fprintf(out, "%s\n", number);
    fflush(out);
    for (int i = 2; i < count; i++)
        dlopen(arguments[i], RTLD_NOW | RTLD_GLOBAL); /* convolutions do without */
    int loaded = load(arguments[1]);
    fprintf(out, "%d\n%s", loaded ? (int)version() : 0, END);
    fflush(out);
    while (loaded && converse(in, out))
        ;
    _exit(0); /* not cuDNN's own exit handlers */
}
