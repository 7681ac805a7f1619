/* libnvrtc: run-time compilation (nvrtc.h, CUDA 12.9 and 13.0). */
#include "../xmem.h"

const char *nvrtcGetErrorString(int result) { return result ? "NVRTC_ERROR" : "NVRTC_SUCCESS"; }

int nvrtcDestroyProgram(void **program) {
    free(*program);
    *program = NULL;
    return 0;
}

int nvrtcGetSupportedArchs(int *architectures) {
    architectures[0] = xmem_device ? xmem_device()->major * 10 + xmem_device()->minor : 90;
    return 0;
}
