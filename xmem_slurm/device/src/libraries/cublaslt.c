/* libcublasLt: opaque descriptors and one algorithm for every product (cublasLt.h, CUDA 12.9 and 13.0). */
#include "../xmem.h"

#define DESCRIPTOR_BYTES 256

size_t cublasLtGetVersion(void) { return XMEM_CUBLAS_VERSION; }

int cublasLtCreate(void **handle) { return make_handle(handle, DESCRIPTOR_BYTES) ? 3 : 0; }

int cublasLtMatmulDescCreate(void **descriptor, int compute UNUSED, int scale UNUSED) {
    return make_handle(descriptor, DESCRIPTOR_BYTES) ? 3 : 0;
}

int cublasLtMatmulDescDestroy(void *descriptor) {
    free(descriptor);
    return 0;
}

int cublasLtMatmulPreferenceCreate(void **preference) { return make_handle(preference, DESCRIPTOR_BYTES) ? 3 : 0; }

int cublasLtMatmulPreferenceDestroy(void *preference) {
    free(preference);
    return 0;
}

int cublasLtMatrixLayoutCreate(void **layout, int type UNUSED, uint64_t rows UNUSED, uint64_t columns UNUSED,
                               int64_t leading UNUSED) {
    return make_handle(layout, DESCRIPTOR_BYTES) ? 3 : 0;
}

int cublasLtMatrixLayoutDestroy(void *layout) {
    free(layout);
    return 0;
}

/* cublasLtMatmulHeuristicResult_t */
struct heuristic {
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

/* One algorithm without workspace. torch hands over its own workspace whatever the answer is. */
int cublasLtMatmulAlgoGetHeuristic(void *handle UNUSED, void *operation UNUSED, void *a UNUSED, void *b UNUSED,
                                   void *c UNUSED, void *d UNUSED, void *preference UNUSED, int wanted,
                                   struct heuristic *results, int *count) {
    *count = wanted > 0;
    if (wanted > 0)
        memset(results, 0, sizeof *results);
    return 0;
}
