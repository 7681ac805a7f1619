/* Asks the job's own cuDNN about plans and workspaces, through a helper process (cudnn_helper.c).
 *
 * From 9.8 on cuDNN answers such questions for a GPU that is described to it, on a machine that has none. A question is
 * text: the version, the GPU, then the descriptors of heuristics, each after those that it refers to. Answers are kept
 * in the folder that XMEM_DEVICE_PLANS names (in a dry run its own: an answer is a job's word, and of no use to
 * others), else in `plans` beside this library, so that a known operation needs no helper. The folder has a fixed
 * number of files; each holds a question and its answer, and is renamed into place.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cudnn_plans.h"

#define OLDEST_VERSION 90800 /* the first release with CUDNN_ATTR_*_DEVICEPROP */
#define SETS 1024            /* of files of answers: a question's hash says which set it is in */
#define WAYS 4               /* files of a set; in all 4,096, most of them below 4 KiB */
#define MAX_DESCRIPTORS 256  /* of one question: torch's largest graph, attention with dropout, has below 100 */

/* cudart/capability.c; its attributes are those of cudaDeviceAttr. */
extern int xmem_attribute(int *value, int attribute, int ordinal) __attribute__((weak));

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *no_answer = "no cuDNN library was found beside torch";

const char *cudnn_no_answer(void) { return no_answer; }

char *cudnn_no(const char *why) {
    no_answer = why;
    return NULL;
}

/* --- questions --- */

/* The one variable of NVIDIA's that changes which plans there are: "NVIDIA_TF32_OVERRIDE=0", or nothing. */
const char *cudnn_tf32(void) {
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
    fprintf(text, "cudnn %d\nenvironment %s\n", XMEM_CUDNN_VERSION, cudnn_tf32());
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
int cudnn_path_beside(char *path, size_t size, const char *name) {
    Dl_info info;
    if (!dladdr((void *)cudnn_path_beside, &info) || !strrchr(info.dli_fname, '/'))
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
    return cudnn_path_beside(path, size, beside);
}

static int path_of_slot(char *path, size_t size, uint64_t hash, unsigned way) {
    char name[32];
    snprintf(name, sizeof name, "/%03x.%u", (unsigned)(hash % SETS), way % WAYS);
    return path_of_plans(path, size, name);
}

/* Whether an answer is whole: it ends with its last line. */
int cudnn_is_whole(const char *answer, size_t bytes) {
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
    if (bytes > asked && memcmp(text, question, asked) == 0 && cudnn_is_whole(text + asked, bytes - asked))
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
        return cudnn_no("cuDNN older than 9.8 cannot be asked without a GPU");
    pthread_mutex_lock(&lock);
    char *question = question_of(heuristics);
    char *answer = question ? known_answer(question) : cudnn_no("an operation that cannot be described");
    if (question && !answer && (answer = cudnn_ask_helper(library, question))) {
        keep(question, answer);
        answer = without_end(answer);
    }
    if (answer && !has_plan(answer)) {
        free(answer);
        answer = cudnn_no("cuDNN has no plan without a device");
    }
    free(question);
    pthread_mutex_unlock(&lock);
    return answer;
}
