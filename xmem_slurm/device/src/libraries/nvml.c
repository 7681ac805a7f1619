/* libnvidia-ml.so.1: what torch and nvidia-ml-py ask of the management library (nvml.h, R580).
 *
 * NVML sees every GPU of the machine, CUDA_VISIBLE_DEVICES or not.
 */
#include <stdio.h>

#include "../xmem.h"

enum { NVML_SUCCESS = 0, NVML_ERROR_INVALID_ARGUMENT = 2, NVML_ERROR_NOT_SUPPORTED = 3 };

static char handles[MAX_DEVICES]; /* the address is the handle */

extern int cudaMemGetInfo(size_t *, size_t *) __attribute__((weak));

static unsigned devices(void) { return xmem_device ? (unsigned)xmem_device()->count : 0; }

const char *nvmlErrorString(int result) { return result ? "Not Supported" : "Success"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = devices();
    return NVML_SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    if (index >= devices())
        return NVML_ERROR_INVALID_ARGUMENT;
    *handle = &handles[index];
    return NVML_SUCCESS;
}

/* Bus n + 1 is device n, as in the runtime's properties. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **handle) {
    unsigned domain, bus;
    if (sscanf(bus_id, "%x:%x", &domain, &bus) != 2 || bus == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(bus - 1, handle);
}

int nvmlDeviceGetHandleByUUID(const char *text, void **handle) {
    unsigned number;
    if (sscanf(text, "GPU-%2x", &number) != 1 || number == 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    return nvmlDeviceGetHandleByIndex_v2(number - 1, handle);
}

int nvmlDeviceGetIndex(void *handle, unsigned *index) {
    *index = (unsigned)((char *)handle - handles);
    return NVML_SUCCESS;
}

int nvmlDeviceGetName(void *handle UNUSED, char *name, unsigned size) {
    snprintf(name, size, "%s", xmem_device ? xmem_device()->name : "");
    return NVML_SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    snprintf(text, size, "GPU-%02x000000-0000-0000-0000-000000000000", (unsigned)((char *)handle - handles) + 1);
    return NVML_SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *handle UNUSED, int *major, int *minor) {
    *major = xmem_device ? xmem_device()->major : 0;
    *minor = xmem_device ? xmem_device()->minor : 0;
    return NVML_SUCCESS;
}

/* nvmlMemory_t: total, free, used. */
int nvmlDeviceGetMemoryInfo(void *handle UNUSED, unsigned long long memory[3]) {
    size_t free_bytes = 0, total_bytes = 0;
    if (cudaMemGetInfo)
        cudaMemGetInfo(&free_bytes, &total_bytes);
    memory[0] = total_bytes;
    memory[1] = free_bytes;
    memory[2] = total_bytes - free_bytes;
    return NVML_SUCCESS;
}

/* nvmlMemory_v2_t: version, then total, reserved, free, used. */
int nvmlDeviceGetMemoryInfo_v2(void *handle, unsigned long long memory[5]) {
    unsigned long long first[3];
    nvmlDeviceGetMemoryInfo(handle, first);
    memory[1] = first[0];
    memory[2] = 0;
    memory[3] = first[1];
    memory[4] = first[2];
    return NVML_SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    snprintf(text, size, "580.00");
    return NVML_SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle UNUSED, unsigned link UNUSED, int *type UNUSED) {
    return NVML_ERROR_NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle UNUSED, unsigned link UNUSED, void *information UNUSED) {
    return NVML_ERROR_NOT_SUPPORTED;
}

/* nvmlGpuFabricInfoV_t: its first word is the caller's version; no fabric. torch's expandable segments ask for it and
 * take a failure as fatal. */
#define FABRIC_INFO_BYTES 32

int nvmlDeviceGetGpuFabricInfoV(void *handle UNUSED, char *information) {
    memset(information + 4, 0, FABRIC_INFO_BYTES - 4);
    return NVML_SUCCESS;
}
