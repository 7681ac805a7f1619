/* libcuda.so.1: devices, contexts, pointers and looking functions up. cuda.h, CUDA 12.9 and 13.5; CUresult's numbers.
 *
 * State lives in the stand-in libcudart; both libraries show the same GPUs and draw on the same accounts.
 */
#include <stdio.h>

#include "../cudart/runtime.h"

extern int cudaSetDevice(int);
extern void *xmem_driver_function(const char *name);

static char contexts[MAX_DEVICES]; /* the address is the handle of the device's primary context */

int cuInit(unsigned flags UNUSED) { return xmem_visible_devices() ? SUCCESS : ERROR_NO_DEVICE; }

int cuDriverGetVersion(int *version) {
    *version = XMEM_CUDA_VERSION;
    return SUCCESS;
}

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

int cuDeviceGetAttribute(int *value, int attribute, int device) { return xmem_attribute(value, attribute, device); }

int cuDeviceGetUuid(char uuid[16], int device) {
    memset(uuid, 0, 16);
    uuid[0] = (char)(device + 1);
    return SUCCESS;
}

int cuDeviceGetUuid_v2(char uuid[16], int device) { return cuDeviceGetUuid(uuid, device); }

int cuDeviceTotalMem_v2(size_t *bytes, int device UNUSED) {
    *bytes = xmem_device()->total_bytes;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    xmem_memory_info(xmem_current_device(), free_bytes, total_bytes);
    return SUCCESS;
}

int cuDevicePrimaryCtxGetState(int device UNUSED, unsigned *flags, int *active) {
    if (flags)
        *flags = 0;
    *active = 1;
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

static int set_current(void *context) {
    if (!context)
        return SUCCESS;
    return cudaSetDevice((int)((char *)context - contexts));
}

int cuCtxSetCurrent(void *context) { return set_current(context); }

int cuCtxPushCurrent_v2(void *context) { return set_current(context); }

int cuCtxPopCurrent_v2(void **context) { return context ? cuCtxGetCurrent(context) : SUCCESS; }

int cuCtxGetDevice(int *device) {
    *device = xmem_current_device();
    return SUCCESS;
}

int cuGetErrorName(int error, const char **name) {
    *name = error == SUCCESS                   ? "CUDA_SUCCESS"
            : error == ERROR_INVALID_VALUE     ? "CUDA_ERROR_INVALID_VALUE"
            : error == ERROR_MEMORY_ALLOCATION ? "CUDA_ERROR_OUT_OF_MEMORY"
                                               : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}

int cuGetErrorString(int error, const char **text) {
    *text = error == SUCCESS                   ? "no error"
            : error == ERROR_INVALID_VALUE     ? "invalid argument"
            : error == ERROR_MEMORY_ALLOCATION ? "out of memory"
                                               : "unknown error";
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
    case 8: /* managed; the others below are ints too: 6 sync memops, 10 legacy IPC, 13 mapped, 16 GPUDirect */
        *(unsigned *)value = range.kind == MANAGED;
        break;
    case 6:
    case 10:
    case 13:
    case 16:
        *(int *)value = 0;
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
