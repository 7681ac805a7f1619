/* libcublas: modes (cublas_v2.h, cublas_api.h, CUDA 12.9 and 13.0). Products are generated defaults; torch
 * gives cuBLAS its workspace itself (cublasSetWorkspace), so its size is torch's own and exact. */
#include "../xmem.h"

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
