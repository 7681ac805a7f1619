/* libcusolver: handles (cusolverDn.h, CUDA 12.9 and 13.0). Buffer sizes come from outputs.txt; solvers are defaults. */
#include "../xmem.h"

#define HANDLE(create, destroy)                                                                                        \
    int create(void **handle) { return make_handle(handle, 64); }                                                      \
    int destroy(void *handle) {                                                                                        \
        free(handle);                                                                                                  \
        return 0;                                                                                                      \
    }

HANDLE(cusolverDnCreate, cusolverDnDestroy)
HANDLE(cusolverDnCreateParams, cusolverDnDestroyParams)
HANDLE(cusolverDnCreateGesvdjInfo, cusolverDnDestroyGesvdjInfo)
HANDLE(cusolverDnCreateSyevjInfo, cusolverDnDestroySyevjInfo)
