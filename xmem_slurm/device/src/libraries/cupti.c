/* libcupti: a profiler that sees nothing (cupti.h, CUDA 12.9 and 13.0). torch.profiler loads it and gets empty buffers.
 */
#include "../xmem.h"

enum { CUPTI_SUCCESS = 0, CUPTI_ERROR_MAX_LIMIT_REACHED = 12 };

int cuptiGetResultString(int result, const char **text) {
    *text = result ? "CUPTI error" : "CUPTI_SUCCESS";
    return CUPTI_SUCCESS;
}

/* "No more records." */
int cuptiActivityGetNextRecord(void *buffer UNUSED, size_t bytes UNUSED, void **record) {
    *record = NULL;
    return CUPTI_ERROR_MAX_LIMIT_REACHED;
}
