/* libcuda.so.1: launches of code that was loaded at run time (by triton, by torch's own just-in-time kernels), as the
 * runtime's. cuda.h, "Execution Control" (CUDA 12.9, 13.5). */
#include "../cudart/runtime.h"

int cuLaunchKernel(void *function UNUSED, unsigned grid_x UNUSED, unsigned grid_y UNUSED, unsigned grid_z UNUSED,
                   unsigned block_x UNUSED, unsigned block_y UNUSED, unsigned block_z UNUSED, unsigned shared UNUSED,
                   void *stream, void **arguments UNUSED, void **extra UNUSED) {
    xmem_launched(stream);
    return SUCCESS;
}

struct configuration { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
};

int cuLaunchKernelEx(const struct configuration *configuration, void *function UNUSED, void **arguments UNUSED,
                     void **extra UNUSED) {
    xmem_launched(configuration->stream);
    return SUCCESS;
}
