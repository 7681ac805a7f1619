/* libcuda.so.1: devices, contexts, pointers, functions and looking them up. cuda.h, CUDA 12.9 and 13.5; CUresult's
 * numbers. Modules and functions are opaque; launches are generated defaults, which return success and do nothing.
 *
 * State lives in the stand-in libcudart; both libraries show the same GPUs and draw on the same accounts.
 */
#include <stdio.h>

#include "../cudart/runtime.h"

extern int cudaSetDevice(int);
extern const char *cudaGetErrorString(int);
extern void *xmem_driver_function(const char *name);

static char contexts[MAX_DEVICES]; /* the address is the handle of the device's primary context */

int cuInit(unsigned flags UNUSED) { return xmem_visible_devices() ? SUCCESS : ERROR_NO_DEVICE; }

int cuDeviceGetCount(int *count) {
    *count = xmem_visible_devices();
    return SUCCESS;
}

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < xmem_visible_devices() ? SUCCESS : ERROR_INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int size, int device UNUSED) {
    snprintf(name, (size_t)size, "%s", xmem_device()->name);
    return SUCCESS;
}

int cuDeviceGetUuid(char uuid[16], int device) {
    memset(uuid, 0, 16);
    uuid[0] = (char)(device + 1);
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device UNUSED) {
    *bytes = xmem_device()->total_bytes;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &contexts[device];
    return SUCCESS;
}

int cuCtxGetCurrent(void **context) {
    *context = &contexts[xmem_current_device()];
    return SUCCESS;
}

int cuCtxSetCurrent(void *context) { return context ? cudaSetDevice((int)((char *)context - contexts)) : SUCCESS; }

/* A made context is the device's primary one. */
int cuCtxCreate_v2(void **context, unsigned flags UNUSED, int device) {
    int error = cudaSetDevice(device);
    return error ? error : cuDevicePrimaryCtxRetain(context, device);
}

int cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : SUCCESS; }

int cuGetErrorName(int error, const char **name) {
    *name = error == SUCCESS                   ? "CUDA_SUCCESS"
            : error == ERROR_INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
            : error == ERROR_MEMORY_ALLOCATION ? "CUDA_ERROR_OUT_OF_MEMORY"
                                               : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

/* In the runtime's words. */
int cuGetErrorString(int error, const char **text) {
    *text = cudaGetErrorString(error);
    return SUCCESS;
}

/* CUfunction_attribute: 0 threads per block, 4 registers, 1 to 3 bytes of shared, constant and local memory. */
int cuFuncGetAttribute(int *value, int attribute, void *function UNUSED) {
    *value = attribute == 0 ? 1024 : attribute == 4 ? 32 : 0;
    return SUCCESS;
}

/* CUpointer_attribute: 1 context, 2 memory type, 3 device pointer, 4 host pointer, 9 device ordinal, 11 and 12 range.
 */
int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
    struct range range = {.start = pointer, .kind = DEVICE, .device = xmem_current_device()};
    if (!xmem_find_range((void *)pointer, &range) && !xmem_is_device_address((void *)pointer))
        return ERROR_INVALID_VALUE; /* the driver, unlike the runtime, knows nothing of plain host memory */
    switch (attribute) {
    case 1:
        *(void **)value = &contexts[range.device];
        break;
    case 2:
        *(unsigned *)value = range.kind == HOST || range.kind == REGISTERED ? 1 : 2;
        break;
    case 3:
    case 4:
        *(uint64_t *)value = pointer;
        break;
    case 9:
        *(int *)value = range.device;
        break;
    case 11:
        *(uint64_t *)value = range.start;
        break;
    case 12:
        *(uint64_t *)value = range.size;
        break;
    case 6: /* these are ints: sync memops, managed, legacy IPC, mapped, GPUDirect */
    case 8:
    case 10:
    case 13:
    case 16:
        *(int *)value = attribute == 8 && range.kind == MANAGED;
        break;
    default:
        *(uint64_t *)value = 0;
    }
    return SUCCESS;
}

/* *status as for cudaGetDriverEntryPoint. */
int cuGetProcAddress_v2(const char *name, void **function, int version UNUSED, uint64_t flags UNUSED, int *status) {
    *function = xmem_driver_function(name);
    if (status)
        *status = *function == NULL;
    return *function ? SUCCESS : ERROR_SYMBOL_NOT_FOUND;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}

/* Tables of undocumented functions: none. */
int cuGetExportTable(const void **table, const void *id UNUSED) {
    *table = NULL;
    return ERROR_SYMBOL_NOT_FOUND;
}
