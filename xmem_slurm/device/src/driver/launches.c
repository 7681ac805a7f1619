/* libcuda.so.1: launches of code that was loaded at run time (by triton, by torch's own just-in-time kernels), as the
 * runtime's. cuda.h, "Execution Control" (CUDA 12.9, 13.5). */
#include "../cudart/runtime.h"

int cuLaunchKernel(void) {
    xmem_launched();
    return SUCCESS;
}

int cuLaunchKernelEx(void) { return cuLaunchKernel(); }
