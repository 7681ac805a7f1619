/* libcuda.so.1: code loaded at run time (by triton, by torch's own just-in-time kernels) and its launches. cuda.h,
 * "Module Management", "Execution Control", "Occupancy" (CUDA 12.9, 13.5).
 *
 * Modules and functions are opaque; launches return success and do nothing.
 */
#include "../cudart/runtime.h"

#define MODULE_BYTES 64

static int make_module(void **module) { return make_handle(module, MODULE_BYTES) ? ERROR_MEMORY_ALLOCATION : SUCCESS; }

int cuModuleLoad(void **module, const char *path UNUSED) { return make_module(module); }

int cuModuleLoadData(void **module, const void *image UNUSED) { return make_module(module); }

int cuModuleLoadDataEx(void **module, const void *image UNUSED, unsigned count UNUSED, void *options UNUSED,
                       void **values UNUSED) {
    return make_module(module);
}

int cuModuleUnload(void *module) {
    free(module);
    return SUCCESS;
}

int cuLibraryLoadData(void **library, const void *code UNUSED, void *options UNUSED, void **values UNUSED,
                      unsigned count UNUSED, void *library_options UNUSED, void **library_values UNUSED,
                      unsigned library_count UNUSED) {
    return make_module(library);
}

int cuLinkCreate_v2(unsigned count UNUSED, void *options UNUSED, void **values UNUSED, void **state) {
    return make_module(state);
}

/* The linked image: torch only hands it on to cuModuleLoadData. */
int cuLinkComplete(void *state, void **image, size_t *bytes) {
    *image = state;
    *bytes = MODULE_BYTES;
    return SUCCESS;
}

/* A function's handle is its module's. */
int cuModuleGetFunction(void **function, void *module, const char *name UNUSED) {
    *function = module;
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel, void *library, const char *name UNUSED) {
    *kernel = library;
    return SUCCESS;
}

int cuKernelGetFunction(void **function, void *kernel) {
    *function = kernel;
    return SUCCESS;
}

int cuFuncGetModule(void **module, void *function) {
    *module = function;
    return SUCCESS;
}

/* As the runtime's launches. */
int cuLaunchKernel(void) {
    xmem_launched();
    return SUCCESS;
}

int cuLaunchKernelEx(void) { return cuLaunchKernel(); }

/* CUfunction_attribute: 0 threads per block, 4 registers, 1 to 3 bytes of shared, constant and local memory. */
int cuFuncGetAttribute(int *value, int attribute, void *function UNUSED) {
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return SUCCESS;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, void *function UNUSED, int threads,
                                                size_t dynamic_shared_bytes) {
    *blocks = xmem_active_blocks(threads, dynamic_shared_bytes);
    return SUCCESS;
}

int cuOccupancyMaxActiveClusters(int *clusters, void *function UNUSED, void *configuration UNUSED) {
    *clusters = xmem_device()->multiprocessors / 2; /* clusters of two, as in the runtime */
    return SUCCESS;
}

/* A tensor map is 128 opaque bytes that the caller passes to kernels. */
#define TENSOR_MAP_BYTES 128

int cuTensorMapEncodeTiled(void *map) {
    memset(map, 0, TENSOR_MAP_BYTES);
    return SUCCESS;
}
