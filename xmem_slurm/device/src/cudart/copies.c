/* Copies: device memory has no contents but the few that contents.c knows; what is read from it beyond them is zeros.
 *
 * The direction follows from the addresses; the `kind` argument says the same with unified addressing. Every read of
 * zeros is a doubt: the script saw them where a GPU would have computed something. cuda_runtime_api.h, "Memory
 * Management" (CUDA 12.9, 13.5); its other names for these functions are in outputs.txt.
 */
#define _GNU_SOURCE /* madvise */
#include <sys/mman.h>

#include "runtime.h"

#define PAGE_BYTES (4 * KIB)
#define SCALAR_BYTES 64 /* .item(), bool(tensor) and small lists of sizes read at most this much at a time */

/* The probe looks who it was that read. */
static void (*on_read)(size_t bytes);

void xmem_on_read(void (*callback)(size_t bytes)) { on_read = callback; }

static void zeros_were_read(size_t bytes) {
    if (on_read)
        on_read(bytes);
    doubt("value-read", bytes <= SCALAR_BYTES ? "up to 64 bytes, such as .item()" : "more than 64 bytes");
}

/* Whole pages of pinned memory (memory.c: private and anonymous) are given back instead: they read as zeros, and copies
 * of large tensors to the host, as inductor makes to measure kernels that write to their inputs, take no memory. */
static void fill_with_zeros(void *destination, size_t bytes) {
    struct range found;
    uintptr_t start = (uintptr_t)destination, end = start + bytes;
    uintptr_t first = (start + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1), last = end & ~(PAGE_BYTES - 1);
    if (first < last && xmem_find_range(destination, &found) && found.kind == HOST &&
        !madvise((void *)first, last - first, MADV_DONTNEED)) {
        memset(destination, 0, first - start);
        memset((void *)last, 0, end - last);
    } else {
        memset(destination, 0, bytes);
    }
}

int xmem_copy(void *destination, const void *source, size_t bytes) {
    int to_device = xmem_is_device_address(destination), from_device = xmem_is_device_address(source);
    if (!bytes)
        return SUCCESS;
    if (to_device != from_device)
        xmem_work("copied", "", (int64_t)bytes, 0, 0, 0);
    if (to_device && from_device) {
        xmem_move_contents(destination, source, bytes);
    } else if (to_device) {
        xmem_note_contents(destination, source, bytes);
    } else if (!from_device) {
        memmove(destination, source, bytes);
    } else if (!xmem_known_contents(source, destination, bytes)) {
        zeros_were_read(bytes);
        fill_with_zeros(destination, bytes);
    }
    return SUCCESS;
}

int xmem_set(void *destination, int value, size_t bytes) {
    if (xmem_is_device_address(destination))
        xmem_note_contents(destination, NULL, bytes);
    else
        memset(destination, value, bytes);
    return SUCCESS;
}

int cudaMemcpy2D(void *destination, size_t destination_pitch, const void *source, size_t source_pitch, size_t width,
                 size_t height, int kind UNUSED) {
    if (xmem_is_device_address(destination)) {
        xmem_note_contents(destination, NULL, destination_pitch * height);
        return SUCCESS;
    }
    int from_device = xmem_is_device_address(source);
    if (from_device && width && height)
        zeros_were_read(width * height);
    for (size_t row = 0; row < height; row++) {
        char *to = (char *)destination + row * destination_pitch;
        if (from_device)
            memset(to, 0, width);
        else
            memmove(to, (const char *)source + row * source_pitch, width);
    }
    return SUCCESS;
}

int cudaMemcpyPeer(void *destination, int to UNUSED, const void *source, int from UNUSED, size_t bytes) {
    return xmem_copy(destination, source, bytes);
}

/* Device variables have no contents either. */
int cudaMemcpyFromSymbol(void *destination, const void *symbol UNUSED, size_t bytes, size_t offset UNUSED,
                         int kind UNUSED) {
    if (!xmem_is_device_address(destination)) {
        zeros_were_read(bytes);
        memset(destination, 0, bytes);
    }
    return SUCCESS;
}
