/* libcublas: modes and the sizes of products (cublas_v2.h, cublas_api.h, CUDA 12.9 and 13.0). Other functions are
 * generated defaults; torch gives cuBLAS its workspace itself (cublasSetWorkspace), so its size is torch's own and
 * exact.
 */
#include "cublas.h"

struct handle {
    int math_mode, pointer_mode;
    void *stream;
};

#define FIELD(name, type, field, version)                                                                              \
    int cublasSet##name##version(struct handle *handle, type value) {                                                  \
        handle->field = value;                                                                                         \
        return 0;                                                                                                      \
    }                                                                                                                  \
    int cublasGet##name##version(struct handle *handle, type *value) {                                                 \
        *value = handle->field;                                                                                        \
        return 0;                                                                                                      \
    }

FIELD(Stream, void *, stream, _v2)
FIELD(MathMode, int, math_mode, )
FIELD(PointerMode, int, pointer_mode, _v2)

const char *cublasGetStatusString(int status) { return status ? "cuBLAS error" : "CUBLAS_STATUS_SUCCESS"; }

static int multiply(const struct handle *handle, const char *function, int type, int compute, int m, int n, int k,
                    int batch) {
    if (handle->math_mode == MATH_TF32)
        compute = COMPUTE_FAST_TF32;
    count_product(cublas_precision(type, compute), m, n, k, batch);
    if (xmem_library_launched)
        xmem_library_launched(function, handle->stream);
    return 0;
}

/* A complex product is four. */
#define TYPED(letter, type, times)                                                                                     \
    int cublas##letter##gemm_v2(struct handle *handle, int a UNUSED, int b UNUSED, int m, int n, int k) {              \
        return multiply(handle, "cublas" #letter "gemm", type, 0, m, n, (times) * k, 1);                               \
    }                                                                                                                  \
    int cublas##letter##gemv_v2(struct handle *handle, int a UNUSED, int m, int n) {                                   \
        return multiply(handle, "cublas" #letter "gemv", type, 0, m, 1, (times) * n, 1);                               \
    }                                                                                                                  \
    int cublas##letter##gemmStridedBatched(struct handle *handle, int a UNUSED, int b UNUSED, int m, int n, int k,     \
                                           const void *alpha UNUSED, const void *A UNUSED, int lda UNUSED,             \
                                           long long strideA UNUSED, const void *B UNUSED, int ldb UNUSED,             \
                                           long long strideB UNUSED, const void *beta UNUSED, void *C UNUSED,          \
                                           int ldc UNUSED, long long strideC UNUSED, int batch) {                      \
        return multiply(handle, "cublas" #letter "gemmStridedBatched", type, 0, m, n, (times) * k, batch);             \
    }

TYPED(S, R_32F, 1)
TYPED(D, R_64F, 1)
TYPED(C, R_32F, 4)
TYPED(Z, R_64F, 4)

int cublasSgemmEx(struct handle *handle, int a UNUSED, int b UNUSED, int m, int n, int k, const void *alpha UNUSED,
                  const void *A UNUSED, int type) {
    return multiply(handle, "cublasSgemmEx", type, 0, m, n, k, 1);
}

int cublasGemmEx(struct handle *handle, int a UNUSED, int b UNUSED, int m, int n, int k, const void *alpha UNUSED,
                 const void *A UNUSED, int type, int lda UNUSED, const void *B UNUSED, int b_type UNUSED,
                 int ldb UNUSED, const void *beta UNUSED, void *C UNUSED, int c_type UNUSED, int ldc UNUSED,
                 int compute) {
    return multiply(handle, "cublasGemmEx", type, compute, m, n, k, 1);
}

int cublasGemmStridedBatchedEx(struct handle *handle, int a UNUSED, int b UNUSED, int m, int n, int k,
                               const void *alpha UNUSED, const void *A UNUSED, int type, int lda UNUSED,
                               long long strideA UNUSED, const void *B UNUSED, int b_type UNUSED, int ldb UNUSED,
                               long long strideB UNUSED, const void *beta UNUSED, void *C UNUSED, int c_type UNUSED,
                               int ldc UNUSED, long long strideC UNUSED, int batch, int compute) {
    return multiply(handle, "cublasGemmStridedBatchedEx", type, compute, m, n, k, batch);
}
