/* Which GPU the process is shown: the XMEM_DEVICE_* environment, the visible devices and the current one. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "runtime.h"

static struct xmem_device device = {
    .name = "NVIDIA H100 80GB HBM3",
    .major = 9,
    .minor = 0,
    .multiprocessors = 132,
    .count = 1,
    .total_bytes = 80 * GIB,
    .limit_bytes = UINT64_MAX,
};

static __thread int current;
static __thread int last_error;
static int visible;
static pthread_once_t visible_once = PTHREAD_ONCE_INIT;

static uint64_t from_environment(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* Once more in a process that was forked from one with another environment, as our tests have them. */
__attribute__((constructor)) void xmem_configure(void) {
    const char *text = getenv("XMEM_DEVICE_NAME");
    if (text && *text)
        snprintf(device.name, sizeof device.name, "%s", text);
    text = getenv("XMEM_DEVICE_CAPABILITY");
    if (text)
        sscanf(text, "%d.%d", &device.major, &device.minor);
    device.multiprocessors = (int)from_environment("XMEM_DEVICE_MULTIPROCESSORS", (uint64_t)device.multiprocessors);
    device.total_bytes = from_environment("XMEM_DEVICE_TOTAL_BYTES", device.total_bytes);
    device.context_bytes = from_environment("XMEM_DEVICE_CONTEXT_BYTES", 0);
    device.limit_bytes = from_environment("XMEM_DEVICE_LIMIT_BYTES", UINT64_MAX);
    device.count = (int)from_environment("XMEM_DEVICE_COUNT", 1);
    if (device.count < 0 || device.count > MAX_DEVICES)
        device.count = MAX_DEVICES;
    text = getenv("XMEM_DEVICE_EVENTS");
    if (text && strcmp(text, "queued") == 0)
        device.events = QUEUED;
    if (text && strcmp(text, "pending") == 0)
        device.events = PENDING;
    device.trace = (int)from_environment("XMEM_DEVICE_TRACE", 0);
}

const struct xmem_device *xmem_device(void) { return &device; }

void xmem_trace(const char *format, ...) {
    if (!device.trace)
        return;
    va_list arguments;
    va_start(arguments, format);
    fputs("xmem-device: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
}

/* CUDA_VISIBLE_DEVICES lists ordinals or UUIDs, and ends at the first one that does not exist (CUDA C++ Programming
 * Guide 13.0, "CUDA Environment Variables"). It is read at the first question for devices, as the real runtime does,
 * because scripts set it after their imports. */
static void count_visible(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    visible = device.count;
    if (!list)
        return;
    int listed = 0;
    while (*list && listed < device.count) {
        while (*list == ' ')
            list++;
        if (strncmp(list, "GPU-", 4) != 0 && strncmp(list, "MIG-", 4) != 0) {
            char *end;
            long ordinal = strtol(list, &end, 10);
            if (end == list || ordinal < 0 || ordinal >= device.count)
                break;
        }
        listed++;
        list += strcspn(list, ",");
        if (*list == ',')
            list++;
    }
    visible = listed;
}

int xmem_visible_devices(void) {
    pthread_once(&visible_once, count_visible);
    return visible;
}

int xmem_current_device(void) { return current; }

int fail(int error) {
    if (error)
        last_error = error;
    return error;
}

/* cuda_runtime_api.h, "Device Management" and "Error Handling" (CUDA 12.9, 13.5). */

int cudaGetDeviceCount(int *count) {
    *count = xmem_visible_devices();
    return *count ? SUCCESS : fail(ERROR_NO_DEVICE);
}

int cudaGetDevice(int *ordinal) {
    *ordinal = current;
    return SUCCESS;
}

int cudaSetDevice(int ordinal) {
    if (ordinal < 0 || ordinal >= xmem_visible_devices())
        return fail(ERROR_INVALID_DEVICE);
    current = ordinal;
    return SUCCESS;
}

/* Returns the last error of this thread and forgets it. */
int cudaGetLastError(void) {
    int error = last_error;
    last_error = SUCCESS;
    return error;
}

int cudaPeekAtLastError(void) { return last_error; }

struct error_text {
    int code;
    const char *name, *text;
};

static const struct error_text errors[] = {
    {SUCCESS, "cudaSuccess", "no error"},
    {ERROR_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
    {ERROR_MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", "out of memory"},
    {ERROR_INSUFFICIENT_DRIVER, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {ERROR_NO_DEVICE, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {ERROR_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {ERROR_NO_KERNEL_IMAGE, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {ERROR_SYMBOL_NOT_FOUND, "cudaErrorSymbolNotFound", "named symbol not found"},
    {ERROR_NOT_READY, "cudaErrorNotReady", "device not ready"},
    {ERROR_NOT_SUPPORTED, "cudaErrorNotSupported", "operation not supported"},
};

static const struct error_text *text_of(int code) {
    static const struct error_text unknown = {-1, "unrecognized error code", "unrecognized error code"};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == code)
            return &errors[i];
    return &unknown;
}

const char *cudaGetErrorString(int code) { return text_of(code)->text; }

const char *cudaGetErrorName(int code) { return text_of(code)->name; }
