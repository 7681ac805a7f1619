/* libcublasLt: one algorithm for every product, whose sizes are counted (cublasLt.h, CUDA 12.9 and 13.0). */
#include "cublas.h"

size_t cublasLtGetVersion(void) { return XMEM_CUBLAS_VERSION; }

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

struct layout {
    int type;
    uint64_t rows, columns;
    int batch;
};

#define LAYOUT_BATCH_COUNT 5 /* cublasLtMatrixLayoutAttribute_t */

int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows, uint64_t columns, int64_t ld UNUSED) {
    int error = make_handle((void **)layout, sizeof **layout);
    if (!error)
        **layout = (struct layout){type, rows, columns, 1};
    return error;
}

int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int attribute, const void *value, size_t size) {
    if (attribute == LAYOUT_BATCH_COUNT && size >= sizeof layout->batch)
        layout->batch = *(const int *)value;
    return 0;
}

struct operation {
    int compute;
};

int cublasLtMatmulDescCreate(struct operation **operation, int compute, int scale UNUSED) {
    int error = make_handle((void **)operation, sizeof **operation);
    if (!error)
        (*operation)->compute = compute;
    return error;
}

/* Of the operands, one is m x k or k x m, and the result m x n. */
int cublasLtMatmul(void *handle UNUSED, const struct operation *operation, const void *alpha UNUSED,
                   const void *A UNUSED, const struct layout *a, const void *B UNUSED, const void *b UNUSED,
                   const void *beta UNUSED, const void *C UNUSED, const void *c UNUSED, void *D UNUSED,
                   const struct layout *d, const void *algorithm UNUSED, void *workspace UNUSED, size_t bytes UNUSED,
                   void *stream) {
    if (d->rows)
        count_product(cublas_precision(a->type, operation->compute), (int64_t)d->rows, (int64_t)d->columns,
                      (int64_t)(a->rows * a->columns / d->rows), d->batch);
    if (xmem_library_launched)
        xmem_library_launched("cublasLtMatmul", stream);
    return 0;
}
