/* The backend (graph) API's descriptors, shared by cudnn_backend.c, cudnn_plans.c and plans/answer.c.
 * Numbers: cudnn_graph.h 9.19. */
#ifndef XMEM_CUDNN_BACKEND_H
#define XMEM_CUDNN_BACKEND_H

#include "cudnn.h"

/* cudnnBackendDescriptorType_t */
enum {
    ENGINE_DESCRIPTOR = 2,
    ENGINECFG_DESCRIPTOR = 3,
    ENGINEHEUR_DESCRIPTOR = 4,
    EXECUTION_PLAN_DESCRIPTOR = 5,
    OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR = 10,
    OPERATION_CONVOLUTION_FILTER_DESCRIPTOR = 11,
    OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR = 12,
    DEVICEPROP_DESCRIPTOR = 38,
};

/* cudnnBackendAttributeType_t, those that are not int-sized enumerations */
enum {
    TYPE_HANDLE = 0,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_DOUBLE = 5,
    TYPE_VOID_PTR = 6,
    TYPE_NUMERICAL_NOTE = 11,
    TYPE_BACKEND_DESCRIPTOR = 15,
    TYPE_BEHAVIOR_NOTE = 19,
    TYPE_CHAR = 24,
    TYPE_FRACTION = 26,
};

/* cudnnBackendAttributeName_t; ours are negative */
enum {
    OUR_PLAN_STATUS = -1,    /* of an engine configuration: what finalizing its plan returns */
    OUR_CONFIGURATIONS = -2, /* of heuristics: the real library's answer, text */
    OUR_GRAPH = -3,          /* of an engine configuration: what it is for */
    OUR_LARGEST = -4,        /* of an engine configuration: the most that a plan of its list takes */
    ENGINEHEUR_OPERATION_GRAPH = 201,
    ENGINEHEUR_RESULTS = 202,
    ENGINEHEUR_DEVICEPROP = 204,
    ENGINECFG_ENGINE = 300,
    ENGINECFG_WORKSPACE_SIZE = 303,
    EXECUTION_PLAN_ENGINE_CONFIG = 401,
    EXECUTION_PLAN_WORKSPACE_SIZE = 402,
    EXECUTION_PLAN_JSON_REPRESENTATION = 405,
    EXECUTION_PLAN_DEVICEPROP = 407,
    OPERATIONGRAPH_OPS = 801,
    TENSOR_DATA_TYPE = 901,
    TENSOR_DIMENSIONS = 902,
    TENSOR_STRIDES = 903,
    ENGINE_OPERATION_GRAPH = 1300,
    ENGINE_GLOBAL_INDEX = 1301,
    ENGINE_NUMERICAL_NOTE = 1303,
    ENGINE_BEHAVIOR_NOTE = 1305,
    DEVICEPROP_JSON = 2702,
};

enum { CUDNN_NUMERICAL_NOTE_TENSOR_CORE = 0 };

/* In the order in which they were set. A value of TYPE_BACKEND_DESCRIPTOR holds a reference. */
struct attribute {
    int name, type;
    int64_t count;
    void *data;
    struct attribute *next;
};

struct descriptor {
    int type;
    int references;
    struct attribute *attributes;
};

size_t cudnn_attribute_bytes(int type);
struct attribute *cudnn_find(const struct descriptor *descriptor, int name);
const struct descriptor *cudnn_refers(const struct descriptor *descriptor, int name);

/* cudnn_work.c */
void cudnn_count(const struct descriptor *plan);

/* cudnn_products.c: a line of an answer for an engine that cuDNN leaves out without a GPU, or nothing. */
void cudnn_write_product(const struct descriptor *heuristics, char *line, size_t size);

/* The job's own cuDNN on heuristics: its answer as text (plans/answer.c), to be freed, or NULL: cudnn_no_answer() says
 * why, in words that stay. */
char *cudnn_ask(const struct descriptor *heuristics);
const char *cudnn_no_answer(void);
#define CUDNN_OUT_OF_TIME "the time for asking cuDNN ran out" /* that is why */

#endif
