/* What libcublas and libcublasLt share: types of numbers, and how a product is counted (library_types.h, cublas_api.h).
 */
#ifndef XMEM_CUBLAS_H
#define XMEM_CUBLAS_H

#include "../xmem.h"

/* cudaDataType_t, cublasComputeType_t, cublasMath_t */
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_8I = 3, R_16BF = 14, R_8F_E4M3 = 28, R_8F_E5M2 = 29 };
enum { COMPUTE_FAST_TF32 = 77 };
enum { MATH_TF32 = 3 };

/* In which precision operands of a type are multiplied. */
static inline UNUSED const char *cublas_precision(int type, int compute) {
    switch (type) {
    case R_16F:
        return "fp16";
    case R_16BF:
        return "bf16";
    case R_8F_E4M3:
    case R_8F_E5M2:
        return "fp8";
    case R_8I:
        return "int8";
    case R_64F:
        return "fp64";
    default:
        return compute == COMPUTE_FAST_TF32 ? "tf32" : "fp32";
    }
}

static inline UNUSED void count_product(const char *precision, int64_t m, int64_t n, int64_t k, int64_t batch) {
    if (xmem_work)
        xmem_work("product", precision, m, n, k, batch);
}

#endif
