/* libcublas: handles and modes (cublas_v2.h, cublas_api.h, CUDA 12.9 and 13.0). Products are generated defaults; torch
 * gives cuBLAS its workspace itself (cublasSetWorkspace), so its size is torch's own and exact. */
#include "../xmem.h"

struct handle {
    int math_mode, pointer_mode;
    void *stream;
};

int cublasCreate_v2(void **handle) { return make_handle(handle, sizeof(struct handle)) ? 3 : 0; }

int cublasDestroy_v2(void *handle) {
    free(handle);
    return 0;
}

int cublasGetVersion_v2(void *handle UNUSED, int *version) {
    *version = XMEM_CUBLAS_VERSION;
    return 0;
}

int cublasSetStream_v2(struct handle *handle, void *stream) {
    handle->stream = stream;
    return 0;
}

int cublasGetStream_v2(struct handle *handle, void **stream) {
    *stream = handle->stream;
    return 0;
}

int cublasSetMathMode(struct handle *handle, int mode) {
    handle->math_mode = mode;
    return 0;
}

int cublasGetMathMode(struct handle *handle, int *mode) {
    *mode = handle->math_mode;
    return 0;
}

int cublasSetPointerMode_v2(struct handle *handle, int mode) {
    handle->pointer_mode = mode;
    return 0;
}

int cublasGetPointerMode_v2(struct handle *handle, int *mode) {
    *mode = handle->pointer_mode;
    return 0;
}

const char *cublasGetStatusString(int status) { return status ? "cuBLAS error" : "CUBLAS_STATUS_SUCCESS"; }
