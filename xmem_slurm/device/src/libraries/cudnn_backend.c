/* libcudnn: the backend (graph) API, on which torch's convolutions and cuDNN attention stand (cudnn_graph.h).
 *
 * Everything there is a descriptor with attributes. Descriptors keep what they are given; questions that only the real
 * library can answer are answered with one engine, no knobs, no notes and a workspace of 0 bytes, which is a doubt.
 */
#include "cudnn.h"

/* cudnnBackendDescriptorType_t */
enum { ENGINECFG_DESCRIPTOR = 3 };

/* cudnnBackendAttributeType_t, those that are not int-sized enumerations */
enum {
    TYPE_HANDLE = 0,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_DOUBLE = 5,
    TYPE_VOID_PTR = 6,
    TYPE_BACKEND_DESCRIPTOR = 15,
    TYPE_CHAR = 24,
    TYPE_FRACTION = 26,
};

/* cudnnBackendAttributeName_t */
enum {
    ENGINEHEUR_RESULTS = 202,
    ENGINECFG_ENGINE = 300,
    ENGINECFG_KNOB_CHOICES = 302,
    ENGINECFG_WORKSPACE_SIZE = 303,
    EXECUTION_PLAN_WORKSPACE_SIZE = 402,
    EXECUTION_PLAN_JSON_REPRESENTATION = 405,
    ENGINE_GLOBAL_INDEX = 1301,
    ENGINE_KNOB_INFO = 1302,
    ENGINE_NUMERICAL_NOTE = 1303,
    ENGINE_BEHAVIOR_NOTE = 1305,
};

struct attribute {
    int name, type;
    int64_t count;
    void *data;
    struct attribute *next;
};

struct descriptor {
    int type;
    struct attribute *attributes;
};

static size_t type_bytes(int type) {
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

static struct attribute *find(const struct descriptor *descriptor, int name) {
    struct attribute *attribute = descriptor->attributes;
    while (attribute && attribute->name != name)
        attribute = attribute->next;
    return attribute;
}

int cudnnBackendCreateDescriptor(int type, void **descriptor) {
    if (make_handle(descriptor, sizeof(struct descriptor)))
        return CUDNN_ALLOCATION_FAILED;
    ((struct descriptor *)*descriptor)->type = type;
    return CUDNN_SUCCESS;
}

int cudnnBackendDestroyDescriptor(struct descriptor *descriptor) {
    if (!descriptor)
        return CUDNN_SUCCESS;
    for (struct attribute *attribute = descriptor->attributes, *next; attribute; attribute = next) {
        next = attribute->next;
        free(attribute->data);
        free(attribute);
    }
    free(descriptor);
    return CUDNN_SUCCESS;
}

int cudnnBackendSetAttribute(struct descriptor *descriptor, int name, int type, int64_t count, const void *values) {
    size_t bytes = (size_t)count * type_bytes(type);
    struct attribute *attribute = find(descriptor, name);
    void *data = malloc(bytes + 1);
    if (!attribute) {
        attribute = calloc(1, sizeof *attribute);
        if (!attribute || !data) {
            free(attribute);
            free(data);
            return CUDNN_ALLOCATION_FAILED;
        }
        attribute->next = descriptor->attributes;
        descriptor->attributes = attribute;
    }
    if (!data)
        return CUDNN_ALLOCATION_FAILED;
    if (values)
        memcpy(data, values, bytes);
    free(attribute->data);
    attribute->name = name;
    attribute->type = type;
    attribute->count = count;
    attribute->data = data;
    return CUDNN_SUCCESS;
}

/* The caller made the descriptors that are to be filled: give them the attributes of ours. */
static void copy_descriptors(struct descriptor *const *from, struct descriptor **to, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!from[i] || !to[i] || from[i] == to[i])
            continue;
        to[i]->type = from[i]->type;
        for (struct attribute *attribute = from[i]->attributes; attribute; attribute = attribute->next)
            cudnnBackendSetAttribute(to[i], attribute->name, attribute->type, attribute->count, attribute->data);
    }
}

/* What nobody set. `values` has room for `wanted` values of `type`; *count is how many there are. */
static int unset_attribute(int name, int type, int64_t wanted, int64_t *count, void *values) {
    int64_t there = 0;
    if (values && wanted > 0)
        switch (name) {
        case ENGINEHEUR_RESULTS:
            if (*(struct descriptor **)values)
                (*(struct descriptor **)values)->type = ENGINECFG_DESCRIPTOR;
            break;
        case EXECUTION_PLAN_JSON_REPRESENTATION:
            memcpy(values, "{}", wanted < 2 ? (size_t)wanted : 2);
            break;
        case ENGINECFG_ENGINE: /* the caller's descriptor stays as it is */
            break;
        default:
            memset(values, 0, (size_t)wanted * type_bytes(type));
        }
    switch (name) {
    case EXECUTION_PLAN_WORKSPACE_SIZE:
        doubt("cudnn-plan", "workspace of an execution plan");
        /* fall through */
    case ENGINEHEUR_RESULTS:
    case ENGINECFG_ENGINE:
    case ENGINECFG_WORKSPACE_SIZE:
    case ENGINE_GLOBAL_INDEX:
        there = 1;
        break;
    case EXECUTION_PLAN_JSON_REPRESENTATION:
        there = 2;
        break;
    case ENGINECFG_KNOB_CHOICES:
    case ENGINE_KNOB_INFO:
    case ENGINE_NUMERICAL_NOTE:
    case ENGINE_BEHAVIOR_NOTE:
        break;
    }
    if (count)
        *count = there;
    return CUDNN_SUCCESS;
}

int cudnnBackendGetAttribute(const struct descriptor *descriptor, int name, int type, int64_t wanted, int64_t *count,
                             void *values) {
    const struct attribute *attribute = find(descriptor, name);
    if (!attribute)
        return unset_attribute(name, type, wanted, count, values);
    int64_t given = wanted < attribute->count ? wanted : attribute->count;
    if (count)
        *count = attribute->count;
    if (!values || given <= 0)
        return CUDNN_SUCCESS;
    if (type == TYPE_BACKEND_DESCRIPTOR && *(struct descriptor **)values)
        copy_descriptors(attribute->data, values, given);
    else
        memcpy(values, attribute->data, (size_t)given * type_bytes(type));
    return CUDNN_SUCCESS;
}
