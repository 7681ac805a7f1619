/* libnvrtc: run-time compilation (nvrtc.h, CUDA 12.9 and 13.0). Programs compile at once, to 64 zero bytes that only
 * the stand-in driver is given. */
#include "../xmem.h"

#define IMAGE_BYTES 64

int nvrtcVersion(int *major, int *minor) {
    *major = XMEM_CUDA_VERSION / 1000;
    *minor = XMEM_CUDA_VERSION / 10 % 100;
    return 0;
}

const char *nvrtcGetErrorString(int result) { return result ? "NVRTC_ERROR" : "NVRTC_SUCCESS"; }

int nvrtcCreateProgram(void **program, const char *source UNUSED, const char *name UNUSED, int headers UNUSED,
                       const char *const *contents UNUSED, const char *const *names UNUSED) {
    return make_handle(program, IMAGE_BYTES) ? 1 : 0;
}

int nvrtcDestroyProgram(void **program) {
    free(*program);
    *program = NULL;
    return 0;
}

int nvrtcGetPTXSize(void *program UNUSED, size_t *bytes) {
    *bytes = IMAGE_BYTES;
    return 0;
}

int nvrtcGetCUBINSize(void *program UNUSED, size_t *bytes) {
    *bytes = IMAGE_BYTES;
    return 0;
}

int nvrtcGetPTX(void *program UNUSED, char *image) {
    memset(image, 0, IMAGE_BYTES);
    return 0;
}

int nvrtcGetCUBIN(void *program UNUSED, char *image) {
    memset(image, 0, IMAGE_BYTES);
    return 0;
}

int nvrtcGetProgramLogSize(void *program UNUSED, size_t *bytes) {
    *bytes = 1;
    return 0;
}

int nvrtcGetProgramLog(void *program UNUSED, char *log) {
    *log = 0;
    return 0;
}

int nvrtcGetLoweredName(void *program UNUSED, const char *expression, const char **name) {
    *name = expression;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *count) {
    *count = 1;
    return 0;
}

int nvrtcGetSupportedArchs(int *architectures) {
    architectures[0] = xmem_device ? xmem_device()->major * 10 + xmem_device()->minor : 90;
    return 0;
}
