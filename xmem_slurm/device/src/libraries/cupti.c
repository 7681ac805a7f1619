/* libcupti: a profiler that sees nothing (cupti.h, CUDA 12.9 and 13.0). torch.profiler loads it and gets empty buffers.
 */
#include "../xmem.h"

enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_MAX_LIMIT_REACHED = 12 };

int cuptiGetVersion(uint32_t *version) {
    *version = XMEM_CUDA_VERSION >= 13000 ? 130000 : 24; /* CUPTI_API_VERSION */
    return CUPTI_SUCCESS;
}

int cuptiGetResultString(int result, const char **text) {
    *text = result ? "CUPTI error" : "CUPTI_SUCCESS";
    return CUPTI_SUCCESS;
}

int cuptiGetCallbackName(int domain UNUSED, uint32_t id UNUSED, const char **name) {
    *name = "";
    return CUPTI_SUCCESS;
}

int cuptiSubscribe(void **subscriber, void *callback UNUSED, void *data UNUSED) { return make_handle(subscriber, 64); }

/* "No more records." */
int cuptiActivityGetNextRecord(void *buffer UNUSED, size_t bytes UNUSED, void **record) {
    *record = NULL;
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
}

int cuptiActivityGetNumDroppedRecords(void *context UNUSED, uint32_t stream UNUSED, size_t *dropped) {
    *dropped = 0;
    return CUPTI_SUCCESS;
}

int cuptiActivityPopExternalCorrelationId(int kind UNUSED, uint64_t *last) {
    if (last)
        *last = 0;
    return CUPTI_SUCCESS;
}

int cuptiGetTimestamp(uint64_t *nanoseconds) {
    *nanoseconds = 0;
    return CUPTI_SUCCESS;
}
