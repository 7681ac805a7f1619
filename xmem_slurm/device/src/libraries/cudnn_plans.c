/* Asks the job's own cuDNN about plans and workspaces, through a helper process (plans/answer.c).
 *
 * From 9.8 on cuDNN answers such questions for a GPU that is described to it, on a machine that has none. A question is
 * text: the version, the GPU, then the descriptors of heuristics, each after those that it refers to. Answers are kept
 * in the folder that XMEM_DEVICE_PLANS names (in a dry run its own: an answer is a job's word, and of no use to
 * others), else in `plans` beside this library, so that a known operation needs no helper. The folder has a fixed
 * number of files; each holds a question and its answer, and is renamed into place.
 *
 * The helper is started by the first question that has no answer there. It is asked through its standard input, a
 * socket, and ends when that is closed or when nobody asks for a while. Whatever fails means no answer, and no answer
 * is a doubt.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../plans/protocol.h"
#include "cudnn_backend.h"

#define OLDEST_VERSION 90800       /* the first release with CUDNN_ATTR_*_DEVICEPROP */
#define SETS 1024                  /* of files of answers: a question's hash says which set it is in */
#define WAYS 4                     /* files of a set; in all 4,096, most of them below 4 KiB */
#define MAX_DESCRIPTORS 256        /* of one question: torch's largest graph, attention with dropout, has below 100 */
#define MAX_ANSWER_BYTES (1 << 18) /* a configuration takes some 30 bytes, and there are below 100 */
#define MAX_FAILURES 3             /* helpers that died before they answered */
#define SECONDS_WITHOUT_DEADLINE 30.0

/* cudart/capability.c; its attributes are those of cudaDeviceAttr. */
extern int xmem_attribute(int *value, int attribute, int ordinal) __attribute__((weak));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int helper = -1; /* our end of the socket */
static pid_t owner;     /* who started it: a fork must not talk into its parent's conversation */
static int failures;
static double spent, allowed;
static const char *no_answer = "no cuDNN library was found beside torch";

const char *cudnn_no_answer(void) { return no_answer; }

static char *no(const char *why) {
    no_answer = why;
    return NULL;
}

const char *cudnn_name(void) {
    static char name[32];
    if (!name[0])
        snprintf(name, sizeof name, "cuDNN %d.%d.%d", XMEM_CUDNN_VERSION / 10000, XMEM_CUDNN_VERSION / 100 % 100,
                 XMEM_CUDNN_VERSION % 100);
    return name;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* --- questions --- */

/* The one variable of NVIDIA's that changes which plans there are: "NVIDIA_TF32_OVERRIDE=0", or nothing. */
static const char *tf32(void) {
    static char variable[32];
    const char *value = getenv("NVIDIA_TF32_OVERRIDE");
    snprintf(variable, sizeof variable, value ? "NVIDIA_TF32_OVERRIDE=%d" : "", value ? atoi(value) : 0);
    return variable;
}

static int attribute_of_gpu(int attribute) {
    int value = 0;
    xmem_attribute(&value, attribute, 0);
    return value;
}

/* What cuDNN wants to know of a GPU is what the stand-in runtime says of it; numbers: cudaDeviceAttr. */
static void describe_gpu(FILE *text) {
    static const struct {
        const char *name;
        int attribute;
    } fields[] = {
        {"regsPerBlock", 12},
        {"multiProcessorCount", 16},
        {"warpSize", 10},
        {"maxSharedMemoryPerBlock", 8},
        {"maxSharedMemoryPerBlockOptin", 97},
        {"reservedSharedMemoryPerBlock", 111},
        {"maxRegistersPerSM", 82},
        {"maxCtasPerSM", 106},
        {"maxThreadsPerBlock", 1},
        {"maxThreadsPerSM", 39},
        {"supportCoopLaunch", 95},
        {"smClockRateKHz", 13},
        {"memClockRateKHz", 36},
        {"l2CacheSize", 38},
    };
    const struct xmem_device *device = xmem_device();
    fprintf(text, "gpu {\"cudaDeviceId\":0,\"pciDeviceId\":0,\"isTccDriver\":0,\"deviceVer\":%d,\"driverVer\":%d",
            device->major * 100 + device->minor * 10, XMEM_CUDA_VERSION);
    fprintf(text, ",\"maxGridSize\":[%d,%d,%d]", attribute_of_gpu(5), attribute_of_gpu(6), attribute_of_gpu(7));
    fprintf(text, ",\"maxBlockSize\":[%d,%d,%d]", attribute_of_gpu(2), attribute_of_gpu(3), attribute_of_gpu(4));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        fprintf(text, ",\"%s\":%d", fields[i].name, attribute_of_gpu(fields[i].attribute));
    fprintf(text, ",\"totalGlobalMem\":%llu,\"deviceName\":\"", (unsigned long long)device->total_bytes);
    for (const char *c = device->name; *c; c++)
        fputc(*c == '"' || *c == '\\' || *c < ' ' ? ' ' : *c, text);
    fputs("\"}\n", text);
}

struct visited {
    const struct descriptor *seen[MAX_DESCRIPTORS];
    int count;
};

/* Write a descriptor after those that it refers to; returns its number, or -1 for what cannot be said in text. */
static int describe(FILE *text, struct visited *visited, const struct descriptor *descriptor) {
    for (int i = 0; i < visited->count; i++)
        if (visited->seen[i] == descriptor)
            return i;
    if (!descriptor || visited->count == MAX_DESCRIPTORS)
        return -1;
    for (struct attribute *attribute = descriptor->attributes; attribute; attribute = attribute->next)
        for (int64_t i = 0; attribute->type == TYPE_BACKEND_DESCRIPTOR && i < attribute->count; i++)
            if (describe(text, visited, ((struct descriptor **)attribute->data)[i]) < 0)
                return -1;
    fprintf(text, "descriptor %d", descriptor->type);
    for (struct attribute *attribute = descriptor->attributes; attribute; attribute = attribute->next) {
        if (attribute->type == TYPE_HANDLE)
            continue;
        if (attribute->type == TYPE_VOID_PTR)
            return -1;
        fprintf(text, " %d:%d:%lld:", attribute->name, attribute->type, (long long)attribute->count);
        const unsigned char *bytes = attribute->data;
        for (int64_t i = 0; attribute->type == TYPE_BACKEND_DESCRIPTOR && i < attribute->count; i++)
            fprintf(text, "%s%d", i ? "," : "", describe(text, visited, ((struct descriptor **)attribute->data)[i]));
        if (attribute->type != TYPE_BACKEND_DESCRIPTOR)
            for (size_t i = 0; i < (size_t)attribute->count * cudnn_attribute_bytes(attribute->type); i++)
                fprintf(text, "%02x", bytes[i]);
    }
    fputc('\n', text);
    if (visited->count == MAX_DESCRIPTORS)
        return -1;
    visited->seen[visited->count] = descriptor;
    return visited->count++;
}

static char *question_of(const struct descriptor *heuristics) {
    char *question = NULL;
    size_t bytes;
    struct visited visited = {.count = 0};
    FILE *text = open_memstream(&question, &bytes);
    if (!text)
        return NULL;
    fprintf(text, "cudnn %d\nenvironment %s\n", XMEM_CUDNN_VERSION, tf32());
    describe_gpu(text);
    int last = describe(text, &visited, heuristics);
    fputs(END, text);
    if (fclose(text) || last < 0) {
        free(question);
        return NULL;
    }
    return question;
}

/* --- answers that are known --- */

/* The folder of this library, which is also the helper's. */
static int path_beside(char *path, size_t size, const char *name) {
    Dl_info info;
    if (!dladdr((void *)path_beside, &info) || !strrchr(info.dli_fname, '/'))
        return 0;
    int folder = (int)(strrchr(info.dli_fname, '/') - info.dli_fname);
    return snprintf(path, size, "%.*s/%s", folder, info.dli_fname, name) < (int)size;
}

static uint64_t hash_of(const char *question) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (const char *c = question; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

static int path_of_plans(char *path, size_t size, const char *name) {
    const char *folder = getenv("XMEM_DEVICE_PLANS");
    char beside[64];
    if (folder && *folder)
        return snprintf(path, size, "%s%s", folder, name) < (int)size;
    snprintf(beside, sizeof beside, "plans%s", name);
    return path_beside(path, size, beside);
}

static int path_of_slot(char *path, size_t size, uint64_t hash, unsigned way) {
    char name[32];
    snprintf(name, sizeof name, "/%03x.%u", (unsigned)(hash % SETS), way % WAYS);
    return path_of_plans(path, size, name);
}

/* Whether an answer is whole: it ends with its last line. */
static int is_whole(const char *answer, size_t bytes) {
    size_t end = strlen(END);
    return bytes > end + 1 && strcmp(answer + bytes - end, END) == 0 && answer[bytes - end - 1] == '\n';
}

static char *without_end(char *answer) {
    answer[strlen(answer) - strlen(END)] = 0;
    return answer;
}

static char *answer_in(const char *path, const char *question) {
    FILE *file = fopen(path, "re");
    if (!file)
        return NULL;
    size_t asked = strlen(question);
    char *text = malloc(asked + MAX_ANSWER_BYTES + 1);
    size_t bytes = text ? fread(text, 1, asked + MAX_ANSWER_BYTES, file) : 0;
    fclose(file);
    char *answer = NULL;
    if (text)
        text[bytes] = 0;
    if (bytes > asked && memcmp(text, question, asked) == 0 && is_whole(text + asked, bytes - asked))
        answer = strdup(text + asked);
    free(text);
    return answer ? without_end(answer) : NULL;
}

static char *known_answer(const char *question) {
    char path[4096], *answer = NULL;
    uint64_t hash = hash_of(question);
    for (unsigned way = 0; way < WAYS && !answer && path_of_slot(path, sizeof path, hash, way); way++)
        answer = answer_in(path, question);
    return answer;
}

/* In the first free file of its set, or in the place of another answer. A folder that cannot be written keeps nothing.
 */
static void keep(const char *question, const char *answer) {
    char folder[4096], path[4096], part[4096];
    uint64_t hash = hash_of(question);
    if (!path_of_plans(folder, sizeof folder, "") || !path_of_plans(part, sizeof part, "/.XXXXXX"))
        return;
    mkdir(folder, 0700);
    unsigned way = 0;
    while (way < WAYS && path_of_slot(path, sizeof path, hash, way) && access(path, F_OK) == 0)
        way++;
    if (way == WAYS && !path_of_slot(path, sizeof path, hash, (unsigned)(hash / SETS)))
        return;
    int descriptor = mkostemp(part, O_CLOEXEC);
    FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "w");
    if (!file)
        return;
    fprintf(file, "%s%s", question, answer);
    if (ferror(file) | fclose(file) || rename(part, path))
        unlink(part);
}

/* --- the helper --- */

static void hang_up(void) {
    if (helper >= 0)
        close(helper);
    helper = -1;
}

/* Read up to a last line; NULL if the helper ends, says too much or takes too long. */
static char *receive(double seconds) {
    double deadline = now() + seconds;
    size_t bytes = 0;
    char *text = malloc(MAX_ANSWER_BYTES + 1);
    while (text && bytes < MAX_ANSWER_BYTES) {
        double left = deadline - now();
        struct pollfd socket = {.fd = helper, .events = POLLIN};
        int ready = left > 0 ? poll(&socket, 1, (int)(1000 * left) + 1) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t more = ready > 0 ? recv(helper, text + bytes, MAX_ANSWER_BYTES - bytes, 0) : 0;
        if (more <= 0)
            break;
        bytes += (size_t)more;
        text[bytes] = 0;
        if (is_whole(text, bytes))
            return text;
    }
    free(text);
    return NULL;
}

static int say(const char *text) {
    for (size_t left = strlen(text); left;) {
        ssize_t sent = send(helper, text, left, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return 0;
        text += sent;
        left -= (size_t)sent;
    }
    return 1;
}

/* Start the helper with nothing of the job's but where libraries are found: first where the wheels of CUDA 12 and 13
 * keep NVRTC and cuBLASLt, which cuDNN loads by name. It becomes nobody's child at once, so that a script which waits
 * for its children does not wait for this one. */
static int spawn(int theirs, const char *library) {
    char program[4096], runtime[4096], driver[4096], libraries[16384];
    const char *path = getenv("LD_LIBRARY_PATH"), *slash = strrchr(library, '/');
    int folder = slash ? (int)(slash - library) : 0;
    snprintf(libraries, sizeof libraries,
             "LD_LIBRARY_PATH=%.*s/../../cu%d/lib:%.*s/../../cuda_nvrtc/lib:%.*s/../../cublas/lib%s%s", folder, library,
             XMEM_CUDA_MAJOR, folder, library, folder, library, path && *path ? ":" : "", path ? path : "");
    snprintf(program, sizeof program, "libcudart.so.%d", XMEM_CUDA_MAJOR);
    if (!path_beside(runtime, sizeof runtime, program) || !path_beside(driver, sizeof driver, "libcuda.so.1") ||
        !path_beside(program, sizeof program, HELPER))
        return 0;
    char *const arguments[] = {program, (char *)library, runtime, driver, NULL};
    char *const environment[] = {libraries, *tf32() ? (char *)tf32() : NULL, NULL};
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, theirs, STDIN_FILENO);
    posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    pid_t child;
    int failed = posix_spawn(&child, program, &files, &attributes, arguments, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    if (!failed)
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
    return !failed;
}

/* A running helper of our own, that still listens. Its first words are the version of the library. */
static int have_helper(const char *library, double seconds) {
    struct pollfd gone = {.fd = helper, .events = POLLIN};
    if (helper >= 0 && owner == getpid() && poll(&gone, 1, 0) == 0)
        return 1;
    hang_up();
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends))
        return 0;
    helper = ends[0];
    owner = getpid();
    int started = spawn(ends[1], library);
    close(ends[1]);
    char *words = started ? receive(seconds) : NULL;
    int version = words ? atoi(words) : 0;
    free(words);
    if (version == XMEM_CUDNN_VERSION)
        return 1;
    if (words) {
        failures = MAX_FAILURES;
        no(version ? "the cuDNN library beside torch is of another version than torch's"
                   : "the cuDNN library beside torch could not be loaded");
    }
    hang_up();
    return 0;
}

static char *ask_helper(const char *library, const char *question) {
    if (!allowed) {
        const char *deadline = getenv("XMEM_DEADLINE"), *budget = getenv("XMEM_CPU_SECONDS");
        double left = deadline ? strtod(deadline, NULL) - now() : 3 * SECONDS_WITHOUT_DEADLINE;
        double seconds = budget ? strtod(budget, NULL) : left;
        allowed = (seconds < left ? seconds : left) / 3;
    }
    if (spent >= allowed)
        return no("the time for asking cuDNN ran out");
    if (failures >= MAX_FAILURES)
        return NULL;
    no("cuDNN gave no answer");
    double started = now(), seconds = allowed - spent < ANSWER_SECONDS ? allowed - spent : ANSWER_SECONDS;
    char *answer = NULL;
    for (int again = 1; again && !answer;) {
        again = helper >= 0; /* it answered before, and may be ending, as nobody asked it for a while */
        answer = have_helper(library, seconds) && say(question) ? receive(seconds) : NULL;
        if (!answer)
            hang_up();
    }
    spent += now() - started;
    if (!answer) {
        failures++;
        return NULL;
    }
    keep(question, answer);
    return without_end(answer);
}

/* Whether a plan can be made of one configuration at least. Without a device cuDNN may have none where it has one on a
 * GPU, and torch would give up. */
static int has_plan(const char *answer) {
    int status = 0;
    for (const char *line = strchr(answer, '\n') + 1; *line; line = strchr(line, '\n') + 1)
        if (sscanf(line, "%*d %d", &status) == 1 && status == CUDNN_SUCCESS)
            return 1;
    return 0;
}

char *cudnn_ask(const struct descriptor *heuristics) {
    const char *library = getenv("XMEM_DEVICE_CUDNN");
    if (!library || !*library || !xmem_device || !xmem_attribute)
        return NULL;
    if (XMEM_CUDNN_VERSION < OLDEST_VERSION)
        return no("cuDNN older than 9.8 cannot be asked without a GPU");
    pthread_mutex_lock(&lock);
    char *question = question_of(heuristics);
    char *answer = question ? known_answer(question) : no("an operation that cannot be described");
    if (question && !answer)
        answer = ask_helper(library, question);
    if (answer && !has_plan(answer)) {
        free(answer);
        answer = no("cuDNN has no plan without a device");
    }
    free(question);
    pthread_mutex_unlock(&lock);
    return answer;
}
