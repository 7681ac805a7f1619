/* libcuda.so.1: the virtual memory API, which torch's expandable segments use.
 *
 * cuda.h, "Virtual Memory Management" (CUDA 12.9, 13.5): cuMemCreate makes physical memory of a size that is a multiple
 * of the granularity, charged exactly; cuMemAddressReserve takes addresses, which are free of charge; cuMemMap ties the
 * two. Physical memory is given back when it is released and no longer mapped anywhere.
 */
#include <pthread.h>

#include "../cudart/runtime.h"

struct physical {
    uint64_t bytes;
    int device;
    int references; /* the handle's own, one for each mapping and each import */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ranges mappings;

static void drop_locked(struct physical *physical) {
    if (--physical->references)
        return;
    xmem_release(physical->device, physical->bytes);
    free(physical);
}

int cuMemCreate(uint64_t *handle, size_t bytes, const struct CUmemAllocationProp *properties,
                unsigned long long flags UNUSED) {
    int device = properties->location.id;
    if (device < 0 || device >= xmem_visible_devices())
        return ERROR_INVALID_DEVICE;
    struct physical *physical = malloc(sizeof *physical);
    int error = physical ? xmem_charge(device, bytes) : ERROR_MEMORY_ALLOCATION;
    xmem_trace("create %zu%s", bytes, error ? " out of memory" : "");
    if (error) {
        free(physical);
        return error;
    }
    *physical = (struct physical){bytes, device, 1};
    *handle = (uint64_t)physical;
    return SUCCESS;
}

int cuMemRelease(uint64_t handle) {
    pthread_mutex_lock(&lock);
    drop_locked((struct physical *)handle);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment UNUSED, uint64_t wanted UNUSED,
                        unsigned long long flags UNUSED) {
    *address = xmem_reserve_addresses(bytes);
    if (!*address)
        return ERROR_MEMORY_ALLOCATION;
    return xmem_track_range((struct range){*address, bytes, RESERVED, xmem_current_device(), NULL});
}

int cuMemAddressFree(uint64_t address, size_t bytes UNUSED) {
    struct range forgotten;
    return xmem_forget_range(address, RESERVED, &forgotten) ? SUCCESS : ERROR_INVALID_VALUE;
}

int cuMemMap(uint64_t address, size_t bytes, size_t offset UNUSED, uint64_t handle, unsigned long long flags UNUSED) {
    struct physical *physical = (struct physical *)handle;
    pthread_mutex_lock(&lock);
    int error = xmem_ranges_add(&mappings, (struct range){address, bytes, MAPPED, physical->device, physical});
    if (!error)
        physical->references++;
    pthread_mutex_unlock(&lock);
    return error ? ERROR_MEMORY_ALLOCATION : SUCCESS;
}

/* Unmaps every mapping that starts in [address, address + bytes). */
int cuMemUnmap(uint64_t address, size_t bytes) {
    pthread_mutex_lock(&lock);
    size_t i = 0;
    while (i < mappings.count && mappings.items[i].start < address)
        i++;
    while (i < mappings.count && mappings.items[i].start < address + bytes) {
        drop_locked(mappings.items[i].owner);
        xmem_ranges_remove(&mappings, &mappings.items[i]);
    }
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    pthread_mutex_lock(&lock);
    struct range *mapping = xmem_ranges_find(&mappings, (uint64_t)address);
    if (mapping) {
        *handle = (uint64_t)mapping->owner;
        ((struct physical *)mapping->owner)->references++;
    }
    pthread_mutex_unlock(&lock);
    return mapping ? SUCCESS : ERROR_INVALID_VALUE;
}

/* Memory of this process cannot be given to another one. */
int cuMemExportToShareableHandle(void *shareable UNUSED, uint64_t handle UNUSED, int type UNUSED,
                                 unsigned long long flags UNUSED) {
    return ERROR_NOT_SUPPORTED;
}

int cuMemImportFromShareableHandle(uint64_t *handle UNUSED, void *shareable UNUSED, int type UNUSED) {
    return ERROR_NOT_SUPPORTED;
}

int cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address) {
    struct range range;
    if (!xmem_find_range((void *)address, &range))
        return ERROR_INVALID_VALUE;
    if (base)
        *base = range.start;
    if (bytes)
        *bytes = range.size;
    return SUCCESS;
}
