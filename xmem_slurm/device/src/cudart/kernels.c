/* Kernels: registered by nvcc's start-up code, launched, never run.
 *
 * The functions that begin with two underscores are those that nvcc's output calls (crt/host_runtime.h,
 * CUDA 12.9, 13.5).
 */
#include <stdio.h>

#include "runtime.h"

/* Device variables and symbols all lie here; nothing reads or writes them. */
#define SYMBOL_BYTES 65536
static uint64_t symbols;

char __cudaInitModule(void **handle UNUSED) { return 1; }

/* <<<grid, block, shared, stream>>> pushes its configuration, the stub pops it. */
static __thread struct {
    struct dim3 grid, block;
    size_t shared;
    void *stream;
} pushed;

unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, void *stream) {
    pushed.grid = grid;
    pushed.block = block;
    pushed.shared = shared;
    pushed.stream = stream;
    return 0;
}

int __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream) {
    *grid = pushed.grid;
    *block = pushed.block;
    *shared = pushed.shared;
    *(void **)stream = pushed.stream;
    return SUCCESS;
}

/* Launches do nothing and succeed: the spellings that torch's and nvcc's code use. */
int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block UNUSED, void **arguments,
                     size_t shared UNUSED, void *stream) {
    struct xmem_image image;
    xmem_launched(stream);
    int error = xmem_image_of(function, &image);
    if (!error && image.attention)
        xmem_count_attention(image.attention, grid, arguments);
    return error;
}

struct configuration { /* cudaLaunchConfig_t */
    struct dim3 grid, block;
    size_t shared;
    void *stream;
};

int cudaLaunchKernelExC(const struct configuration *configuration, const void *function, void **arguments) {
    return cudaLaunchKernel(function, configuration->grid, configuration->block, arguments, configuration->shared,
                            configuration->stream);
}

/* What the compiled code would say of itself is known as far as its architecture; else 32 registers, no static shared
 * memory. */
int cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    struct xmem_image image;
    int error = xmem_image_of(function, &image);
    if (error)
        return error;
    *attributes = (struct cudaFuncAttributes){
        .maxThreadsPerBlock = 1024,
        .numRegs = 32,
        .ptxVersion = image.ptx,
        .binaryVersion = image.binary,
        .maxDynamicSharedSizeBytes = 48 * 1024,
    };
    return SUCCESS;
}

int cudaOccupancyMaxActiveClusters(int *clusters, const void *function UNUSED, const void *configuration UNUSED) {
    *clusters = xmem_device()->multiprocessors / 2; /* clusters of two, the portable minimum */
    return SUCCESS;
}

int cudaGetSymbolAddress(void **address, const void *symbol UNUSED) {
    if (!symbols)
        symbols = xmem_reserve_addresses(SYMBOL_BYTES);
    *address = (void *)symbols;
    return SUCCESS;
}

int cudaGetSymbolSize(size_t *bytes, const void *symbol UNUSED) {
    *bytes = SYMBOL_BYTES;
    return SUCCESS;
}

/* "0000:01:00.0" and so on, as the properties' pciBusID. */
int cudaDeviceGetPCIBusId(char *text, int size, int device) {
    snprintf(text, (size_t)size, "0000:%02x:00.0", (unsigned)device + 1);
    return SUCCESS;
}
