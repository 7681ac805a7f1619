/* libcudnn: the backend (graph) API, on which torch's convolutions and cuDNN attention stand (cudnn_graph.h).
 *
 * Everything there is a descriptor with attributes. Descriptors keep what they are given. Which engines there are for a
 * graph, in which order, and the workspaces of their plans are answered by the job's own cuDNN (cudnn_plans.c). Where
 * it gives no answer there is one engine, with no knobs, no notes and a workspace of 0 bytes, which is a doubt.
 */
#define _GNU_SOURCE
#include <stdio.h>

#include "../plans/protocol.h"
#include "cudnn_backend.h"

size_t cudnn_attribute_bytes(int type) {
    switch (type) {
    case TYPE_HANDLE:
    case TYPE_INT64:
    case TYPE_DOUBLE:
    case TYPE_VOID_PTR:
    case TYPE_BACKEND_DESCRIPTOR:
        return 8;
    case TYPE_BOOLEAN:
    case TYPE_CHAR:
        return 1;
    case TYPE_FRACTION:
        return 16;
    default:
        return 4;
    }
}

struct attribute *cudnn_find(const struct descriptor *descriptor, int name) {
    struct attribute *attribute = descriptor->attributes;
    while (attribute && attribute->name != name)
        attribute = attribute->next;
    return attribute;
}

/* The first descriptor that an attribute names, or NULL. */
const struct descriptor *cudnn_refers(const struct descriptor *descriptor, int name) {
    const struct attribute *found = descriptor ? cudnn_find(descriptor, name) : NULL;
    return found && found->type == TYPE_BACKEND_DESCRIPTOR && found->count ? *(struct descriptor **)found->data : NULL;
}

int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    if (make_handle(descriptor, sizeof(struct descriptor)))
        return CUDNN_ALLOCATION_FAILED;
    ((struct descriptor *)*descriptor)->type = type;
    ((struct descriptor *)*descriptor)->references = 1;
    return CUDNN_SUCCESS;
}

static void release_values(struct attribute *attribute);

/* What another descriptor refers to lives on: callers destroy a tensor's descriptor when its operation is made. */
int cudnnBackendDestroyDescriptor(struct descriptor *descriptor) {
    if (!descriptor || __atomic_sub_fetch(&descriptor->references, 1, __ATOMIC_ACQ_REL) > 0)
        return CUDNN_SUCCESS;
    for (struct attribute *attribute = descriptor->attributes, *next; attribute; attribute = next) {
        next = attribute->next;
        release_values(attribute);
        free(attribute);
    }
    free(descriptor);
    return CUDNN_SUCCESS;
}

static void release_values(struct attribute *attribute) {
    if (attribute->type == TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < attribute->count; i++)
            cudnnBackendDestroyDescriptor(((struct descriptor **)attribute->data)[i]);
    free(attribute->data);
}

int cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count, const void *values) {
    size_t bytes = (size_t)count * cudnn_attribute_bytes(type);
    void *data = calloc(1, bytes + 1);
    struct attribute *attribute = cudnn_find(descriptor, name);
    if (!attribute && data) {
        struct attribute **end = &descriptor->attributes;
        while (*end)
            end = &(*end)->next;
        *end = attribute = calloc(1, sizeof *attribute);
    }
    if (!data || !attribute) {
        free(data);
        return CUDNN_ALLOCATION_FAILED;
    }
    if (values)
        memcpy(data, values, bytes);
    if (type == TYPE_BACKEND_DESCRIPTOR)
        for (int64_t i = 0; i < count; i++)
            if (((struct descriptor **)data)[i])
                __atomic_add_fetch(&((struct descriptor **)data)[i]->references, 1, __ATOMIC_RELAXED);
    release_values(attribute);
    *attribute = (struct attribute){name, type, count, data, attribute->next};
    return CUDNN_SUCCESS;
}

static void copy_attributes(const struct descriptor *from, struct descriptor *to) {
    for (const struct attribute *attribute = from->attributes; attribute; attribute = attribute->next)
        cudnnBackendSetAttribute(to, attribute->name, attribute->type, attribute->count, attribute->data);
}

/* The caller made the descriptors that are to be filled: give them the attributes of ours. */
static void copy_descriptors(struct descriptor *const *from, struct descriptor **to, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!from[i] || !to[i] || from[i] == to[i])
            continue;
        to[i]->type = from[i]->type;
        copy_attributes(from[i], to[i]);
    }
}

static void set_notes(struct descriptor *descriptor, int name, int type, unsigned long long set) {
    int notes[64], count = 0;
    for (int note = 0; note < 64; note++)
        if (set >> note & 1)
            notes[count++] = note;
    cudnnBackendSetAttribute(descriptor, name, type, count, notes);
}

/* Bytes of workspace that plans may take on a GPU beyond what is said without one: a convolution that is divided among
 * the multiprocessors keeps a part of its sums for each block of threads, 128 x 128 floats, of which two run at once on
 * each. How many it is divided into is not told without a device. On an H200 the first plan of 369 convolutions took up
 * to 249 such parts more than the largest of the list (of 264; benchmarks/data/cudnn_on_gpu.json.gz). */
static int64_t parts_of_sums(void) {
    return xmem_device ? (int64_t)xmem_device()->multiprocessors * 2 * 128 * 128 * (int64_t)sizeof(float) : 0;
}

/* The most workspace that any plan of a list takes. Which one a GPU runs is not known: the first that runs, or with
 * torch.backends.cudnn.benchmark the fastest. */
static int64_t largest_workspace(const char *lines) {
    int64_t largest = 0;
    for (const char *line = lines; *line; line = strchr(line, '\n') + 1) {
        long long workspace = 0;
        int status = CUDNN_NOT_SUPPORTED;
        sscanf(line, "%*d %d %lld", &status, &workspace);
        if (status == CUDNN_SUCCESS && workspace > largest)
            largest = workspace;
    }
    return largest ? largest + parts_of_sums() : 0;
}

/* Heuristics that the real library answered: one line a configuration. What belongs to its engine stands on the
 * configuration itself, and goes to the engine's descriptor when that is asked for. */
static void get_configurations(const char *lines, struct descriptor **values, int64_t wanted, int64_t *count) {
    int64_t there = 0, largest = largest_workspace(lines);
    for (const char *line = lines; *line; line = strchr(line, '\n') + 1, there++) {
        long long engine = 0, workspace = 0;
        unsigned long long numerical = 0, behavior = 0;
        int status = 0;
        if (!values || there >= wanted || !values[there])
            continue;
        if (sscanf(line, "%lld %d %lld %llx %llx", &engine, &status, &workspace, &numerical, &behavior) != 5)
            status = CUDNN_NOT_SUPPORTED;
        struct descriptor *configuration = values[there];
        configuration->type = ENGINECFG_DESCRIPTOR;
        cudnnBackendSetAttribute(configuration, OUR_PLAN_STATUS, TYPE_INT64, 1, &(int64_t){status});
        cudnnBackendSetAttribute(configuration, ENGINECFG_WORKSPACE_SIZE, TYPE_INT64, 1, &(int64_t){workspace});
        cudnnBackendSetAttribute(configuration, OUR_LARGEST, TYPE_INT64, 1, &largest);
        cudnnBackendSetAttribute(configuration, ENGINE_GLOBAL_INDEX, TYPE_INT64, 1, &(int64_t){engine});
        set_notes(configuration, ENGINE_NUMERICAL_NOTE, TYPE_NUMERICAL_NOTE, numerical);
        set_notes(configuration, ENGINE_BEHAVIOR_NOTE, TYPE_BEHAVIOR_NOTE, behavior);
    }
    if (count)
        *count = there;
}

/* The first line of an answer is the status of the heuristics, the others are configurations. */
static int finalize_heuristics(struct descriptor *heuristics) {
    char *answer = cudnn_ask(heuristics);
    if (!answer)
        return CUDNN_SUCCESS;
    char *lines = strchr(answer, '\n') + 1, first[64], *all = NULL;
    cudnn_write_product(heuristics, first, sizeof first);
    int bytes = asprintf(&all, "%s%s", first, lines);
    free(answer);
    if (bytes < 0)
        return CUDNN_ALLOCATION_FAILED;
    int status = cudnnBackendSetAttribute(heuristics, OUR_CONFIGURATIONS, TYPE_CHAR, bytes + 1, all);
    free(all);
    return status;
}

static int is_of_convolutions(const struct descriptor *configuration) {
    const struct attribute *graph = cudnn_find(configuration, OUR_GRAPH);
    const struct attribute *operations = graph ? cudnn_find(*(struct descriptor **)graph->data, OPERATIONGRAPH_OPS) : 0;
    for (int64_t i = 0; operations && i < operations->count; i++) {
        const struct descriptor *operation = ((struct descriptor **)operations->data)[i];
        if (operation && operation->type >= OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR &&
            operation->type <= OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR)
            return 1;
    }
    return 0;
}

/* Of convolutions torch tries one plan after another until one runs; with torch.backends.cudnn.benchmark it makes them
 * all, runs each, and keeps the fastest (Conv_v8.cpp). Here all take the same time, so that the first one wins;
 * whichever wins on a GPU takes no more than the largest of the list, which is what its workspace is said to take at
 * the most. Of all else, such as attention, the first plan that can be made is taken, and no other is made (MHA.cpp:
 * build_plans of cudnn-frontend's plans.h, HEURISTICS_CHOICE). */
static int finalize_plan(struct descriptor *plan) {
    const struct attribute *given = cudnn_find(plan, EXECUTION_PLAN_ENGINE_CONFIG);
    const struct descriptor *configuration = given ? *(struct descriptor **)given->data : NULL;
    const struct attribute *status = configuration ? cudnn_find(configuration, OUR_PLAN_STATUS) : NULL;
    if (!status)
        return CUDNN_SUCCESS;
    if (*(int64_t *)status->data)
        return (int)*(int64_t *)status->data;
    int64_t workspace = *(int64_t *)cudnn_find(configuration, ENGINECFG_WORKSPACE_SIZE)->data;
    int64_t largest = *(int64_t *)cudnn_find(configuration, OUR_LARGEST)->data;
    if (is_of_convolutions(configuration) && xmem_at_most)
        workspace = (int64_t)xmem_at_most((uint64_t)workspace, (uint64_t)largest);
    return cudnnBackendSetAttribute(plan, EXECUTION_PLAN_WORKSPACE_SIZE, TYPE_INT64, 1, &workspace);
}

int cudnnBackendFinalize(struct descriptor *descriptor) {
    switch (descriptor->type) {
    case ENGINEHEUR_DESCRIPTOR:
        return finalize_heuristics(descriptor);
    case EXECUTION_PLAN_DESCRIPTOR:
        return finalize_plan(descriptor);
    default:
        return CUDNN_SUCCESS;
    }
}

int cudnnBackendExecute(void **handle, const struct descriptor *plan, void *variant_pack UNUSED) {
    cudnn_count(plan);
    if (xmem_library_launched)
        xmem_library_launched("cudnnBackendExecute", handle ? *handle : NULL);
    return CUDNN_SUCCESS;
}

/* What nobody set. `values` has room for `wanted` values of `type`; *count is how many there are. */
static int unset_attribute(int name, int type, int64_t wanted, int64_t *count, void *values) {
    int is_text = name == EXECUTION_PLAN_JSON_REPRESENTATION;
    int is_descriptor = name == ENGINEHEUR_RESULTS || name == ENGINECFG_ENGINE; /* the caller's, which stays as it is */
    int is_number =
        name == EXECUTION_PLAN_WORKSPACE_SIZE || name == ENGINECFG_WORKSPACE_SIZE || name == ENGINE_GLOBAL_INDEX;
    const char *why = name == EXECUTION_PLAN_WORKSPACE_SIZE ? cudnn_no_answer() : NULL;
    if (why && strcmp(why, CUDNN_OUT_OF_TIME) == 0)
        doubt("cudnn-time", why);
    else if (why)
        doubt("cudnn-plan", why);
    if (values && wanted > 0) {
        if (is_text)
            memcpy(values, "{}", wanted < 2 ? (size_t)wanted : 2);
        else if (!is_descriptor)
            memset(values, 0, (size_t)wanted * cudnn_attribute_bytes(type));
        else if (name == ENGINEHEUR_RESULTS && *(struct descriptor **)values)
            (*(struct descriptor **)values)->type = ENGINECFG_DESCRIPTOR;
    }
    if (count)
        *count = is_text ? 2 : is_descriptor || is_number;
    return CUDNN_SUCCESS;
}

/* Of what is executed the FLOPs are counted (cudnn_work.c): each configuration knows its graph. */
static void give_graph(const struct attribute *graph, struct descriptor **configurations, int64_t wanted) {
    for (int64_t i = 0; graph && configurations && i < wanted; i++)
        if (configurations[i])
            cudnnBackendSetAttribute(configurations[i], OUR_GRAPH, graph->type, graph->count, graph->data);
}

int cudnnBackendGetAttribute(const struct descriptor *descriptor, int name, int type, int64_t wanted, int64_t *count,
                             void *values) {
    const struct attribute *attribute = cudnn_find(descriptor, name);
    const struct attribute *configurations =
        name == ENGINEHEUR_RESULTS ? cudnn_find(descriptor, OUR_CONFIGURATIONS) : NULL;
    if (name == ENGINEHEUR_RESULTS)
        give_graph(cudnn_find(descriptor, ENGINEHEUR_OPERATION_GRAPH), values, wanted);
    if (configurations) {
        get_configurations(configurations->data, values, wanted, count);
        return CUDNN_SUCCESS;
    }
    if (!attribute) {
        if (name == ENGINECFG_ENGINE && values && wanted > 0 && *(struct descriptor **)values)
            copy_attributes(descriptor, *(struct descriptor **)values);
        return unset_attribute(name, type, wanted, count, values);
    }
    int64_t given = wanted < attribute->count ? wanted : attribute->count;
    if (count)
        *count = attribute->count;
    if (!values || given <= 0)
        return CUDNN_SUCCESS;
    if (type == TYPE_BACKEND_DESCRIPTOR && *(struct descriptor **)values)
        copy_descriptors(attribute->data, values, given);
    else
        memcpy(values, attribute->data, (size_t)given * cudnn_attribute_bytes(type));
    return CUDNN_SUCCESS;
}
