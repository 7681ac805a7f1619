/* Sharing memory and events between processes: cuda_runtime_api.h, "Device Management" (CUDA 12.9, 13.5).
 *
 * A handle carries the address. The process that opens it gets the same address, uncharged: the memory is charged where
 * it was allocated. Addresses of different processes may coincide, which nothing here minds.
 */
#include "runtime.h"

struct ipc_handle {
    void *address;
    char rest[56]; /* 64 bytes in all: CUDA_IPC_HANDLE_SIZE */
};

int cudaIpcGetMemHandle(struct ipc_handle *handle, void *pointer) {
    struct range range;
    *handle = (struct ipc_handle){.address = xmem_find_range(pointer, &range) ? (void *)range.start : pointer};
    return SUCCESS;
}

int cudaIpcOpenMemHandle(void **pointer, struct ipc_handle handle, unsigned flags UNUSED) {
    *pointer = handle.address;
    return SUCCESS;
}

int cudaIpcGetEventHandle(struct ipc_handle *handle, void *event UNUSED) {
    *handle = (struct ipc_handle){0};
    return SUCCESS;
}

/* The other process's event: one that is complete. */
extern int cudaEventCreateWithFlags(void **event, unsigned flags);

int cudaIpcOpenEventHandle(void **event, struct ipc_handle handle UNUSED) { return cudaEventCreateWithFlags(event, 0); }
