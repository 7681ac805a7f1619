/* Device memory is address space and an account; host memory is real.
 *
 * Note [Charges]: cudaMalloc charges whole 2 MiB pages, the granularity of the real driver on the GPUs of the last
 * years; pool allocations (cudaMallocAsync) whole 512 B; physical memory of the virtual memory API exactly, its size
 * being a multiple of the granularity already. What is freed is free at once. With a limit, an allocation fails when
 * context + charges would pass it; without one nothing fails, so that the whole demand of a job is seen.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "runtime.h"

#define PAGE_BYTES (2 * MIB)
#define MOST_BYTES TIB /* of one allocation: more than any GPU has; of 4 TiB torch's kernels divide by zero */
#define POOL_GRANULE 512
#define POOL_RESERVE (32 * MIB) /* a pool takes memory from the device in steps of this size */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used[MAX_DEVICES];
static uint64_t pool_used[MAX_DEVICES], pool_high[MAX_DEVICES];
static struct ranges ranges; /* allocations of the runtime, host memory, reservations of the driver */
static int pools[MAX_DEVICES];
static uint64_t before_launch[MAX_DEVICES]; /* allocations that were made before any kernel was launched */

static uint64_t round_up(uint64_t bytes, uint64_t granule) { return (bytes + granule - 1) / granule * granule; }

static int charge_locked(int device, uint64_t bytes) {
    const struct xmem_device *gpu = xmem_device();
    uint64_t taken = gpu->context_bytes + used[device];
    if (taken > gpu->limit_bytes || bytes > gpu->limit_bytes - taken)
        return ERROR_MEMORY_ALLOCATION;
    used[device] += bytes;
    return SUCCESS;
}

int xmem_charge(int device, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    int error = charge_locked(device, bytes);
    pthread_mutex_unlock(&lock);
    return error;
}

void xmem_release(int device, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    used[device] -= bytes;
    pthread_mutex_unlock(&lock);
}

/* Addresses for `bytes`, or 0 when the window is used up. */
uint64_t xmem_reserve_addresses(uint64_t bytes) {
    pthread_mutex_lock(&lock);
    uint64_t at = xmem_addresses_take(bytes);
    pthread_mutex_unlock(&lock);
    return at;
}

int xmem_find_range(const void *pointer, struct range *found) {
    pthread_mutex_lock(&lock);
    struct range *range = xmem_ranges_find(&ranges, (uint64_t)pointer);
    if (range)
        *found = *range;
    pthread_mutex_unlock(&lock);
    return range != NULL;
}

int xmem_track_range(struct range range) {
    pthread_mutex_lock(&lock);
    int error = xmem_ranges_add(&ranges, range);
    pthread_mutex_unlock(&lock);
    return error ? ERROR_MEMORY_ALLOCATION : SUCCESS;
}

/* Forget the range that starts at `start` and is of that kind; 0 where there is none. */
int xmem_forget_range(uint64_t start, enum range_kind kind, struct range *forgotten) {
    pthread_mutex_lock(&lock);
    struct range *range = xmem_ranges_find(&ranges, start);
    int found = range && range->start == start && range->kind == kind;
    if (found) {
        *forgotten = *range;
        xmem_ranges_remove(&ranges, range);
        xmem_addresses_give_back(start, forgotten->size);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* How often memory was taken before the first launch, after which the driver gives its pool's addresses back. */
unsigned long long xmem_mallocs_before_launch(int device) {
    return device >= 0 && device < MAX_DEVICES ? before_launch[device] : 0;
}

/* Bytes free and in all; what is in use beyond the total, which only a device without a limit can show, leaves 0 free.
 */
void xmem_memory_info(int device, size_t *free_bytes, size_t *total_bytes) {
    const struct xmem_device *gpu = xmem_device();
    uint64_t capacity = gpu->limit_bytes < gpu->total_bytes ? gpu->limit_bytes : gpu->total_bytes;
    pthread_mutex_lock(&lock);
    uint64_t taken = gpu->context_bytes + used[device];
    pthread_mutex_unlock(&lock);
    *free_bytes = taken < capacity ? capacity - taken : 0;
    *total_bytes = gpu->total_bytes;
}

static uint64_t charge_of(uint64_t bytes, enum range_kind kind) {
    return round_up(bytes, kind == POOL ? POOL_GRANULE : PAGE_BYTES);
}

static int allocate(void **pointer, size_t bytes, enum range_kind kind, int device) {
    *pointer = NULL;
    if (!bytes)
        return SUCCESS;
    uint64_t charge = charge_of(bytes, kind);
    pthread_mutex_lock(&lock);
    int error = charge_locked(device, charge);
    if (!error) {
        uint64_t at = bytes > MOST_BYTES ? 0 : xmem_addresses_take(bytes);
        if (!at)
            doubt("takes-all", "cudaMalloc"); /* a limit fails before */
        if (!at || xmem_ranges_add(&ranges, (struct range){at, bytes, kind, device, NULL})) {
            xmem_addresses_give_back(at, bytes);
            used[device] -= charge;
            error = ERROR_MEMORY_ALLOCATION;
        } else {
            *pointer = (void *)at;
            before_launch[device] += !xmem_launches();
            if (kind == POOL) {
                pool_used[device] += charge;
                if (pool_used[device] > pool_high[device])
                    pool_high[device] = pool_used[device];
            }
        }
    }
    pthread_mutex_unlock(&lock);
    xmem_trace("allocate %zu -> %p%s", bytes, *pointer, error ? " out of memory" : "");
    return fail(error);
}

int cudaFree(void *pointer) {
    if (!pointer)
        return SUCCESS;
    pthread_mutex_lock(&lock);
    struct range *range = xmem_ranges_find(&ranges, (uint64_t)pointer);
    struct range freed = {0};
    if (range && range->start == (uint64_t)pointer &&
        (range->kind == DEVICE || range->kind == POOL || range->kind == MANAGED)) {
        freed = *range;
        xmem_ranges_remove(&ranges, range);
        xmem_addresses_give_back(freed.start, freed.size);
        if (freed.kind != MANAGED)
            used[freed.device] -= charge_of(freed.size, freed.kind);
        if (freed.kind == POOL)
            pool_used[freed.device] -= charge_of(freed.size, POOL);
    }
    pthread_mutex_unlock(&lock);
    if (freed.kind == MANAGED && freed.size)
        munmap(pointer, freed.size);
    xmem_trace("free %p", pointer);
    return fail(freed.size ? SUCCESS : ERROR_INVALID_VALUE);
}

/* Host memory that the real runtime pins: fresh pages, zeroed, taken only when touched. */
static int allocate_host(void **pointer, size_t bytes, enum range_kind kind) {
    *pointer = NULL;
    if (!bytes)
        return SUCCESS;
    uint64_t size = round_up(bytes, 4096);
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return fail(ERROR_MEMORY_ALLOCATION);
    if (xmem_track_range((struct range){(uint64_t)at, size, kind, xmem_current_device(), NULL})) {
        munmap(at, size);
        return fail(ERROR_MEMORY_ALLOCATION);
    }
    *pointer = at;
    return SUCCESS;
}

/* cuda_runtime_api.h, "Memory Management" (CUDA 12.9, 13.5). cudaMalloc of 0 bytes gives a null pointer and succeeds.
 */

int cudaMalloc(void **pointer, size_t bytes) { return allocate(pointer, bytes, DEVICE, xmem_current_device()); }

/* Rows are padded to 512 B, the pitch of the real runtime. */
int cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    *pitch = round_up(width, 512);
    return cudaMalloc(pointer, *pitch * height);
}

/* Managed memory is reachable from both sides, so it is really there; it is not charged to the device, where the real
 * one takes room only page by page as kernels touch it. */
int cudaMallocManaged(void **pointer, size_t bytes, unsigned flags UNUSED) {
    doubt("managed", "cudaMallocManaged");
    return allocate_host(pointer, bytes, MANAGED);
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    xmem_memory_info(xmem_current_device(), free_bytes, total_bytes);
    return SUCCESS;
}

int cudaHostAlloc(void **pointer, size_t bytes, unsigned flags UNUSED) { return allocate_host(pointer, bytes, HOST); }

int cudaFreeHost(void *pointer) {
    struct range freed;
    if (!pointer)
        return SUCCESS;
    if (!xmem_forget_range((uint64_t)pointer, HOST, &freed))
        return fail(ERROR_INVALID_VALUE);
    munmap(pointer, freed.size);
    return SUCCESS;
}

int cudaHostRegister(void *pointer, size_t bytes, unsigned flags UNUSED) {
    return fail(xmem_track_range((struct range){(uint64_t)pointer, bytes, REGISTERED, xmem_current_device(), NULL}));
}

int cudaHostUnregister(void *pointer) {
    struct range forgotten;
    return xmem_forget_range((uint64_t)pointer, REGISTERED, &forgotten) ? SUCCESS : fail(ERROR_INVALID_VALUE);
}

int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    struct range range;
    memset(attributes, 0, sizeof *attributes);
    attributes->device = -2; /* cudaInvalidDeviceId */
    attributes->hostPointer = (void *)pointer;
    if (!xmem_find_range(pointer, &range)) {
        if (!xmem_is_device_address(pointer))
            return SUCCESS; /* unregistered host memory is no error since CUDA 11 */
        range = (struct range){.kind = DEVICE, .device = xmem_current_device()};
    }
    attributes->device = range.device;
    attributes->devicePointer = (void *)pointer;
    int on_host = range.kind == HOST || range.kind == REGISTERED;
    attributes->type = on_host ? MEMORY_HOST : range.kind == MANAGED ? MEMORY_MANAGED : MEMORY_DEVICE;
    if (attributes->type == MEMORY_DEVICE)
        attributes->hostPointer = NULL;
    return SUCCESS;
}

/* cuda_runtime_api.h, "Stream Ordered Memory Allocator". Every device has one pool; made pools draw from it too. */

int cudaMallocAsync(void **pointer, size_t bytes, void *stream UNUSED) {
    return allocate(pointer, bytes, POOL, xmem_current_device());
}

int cudaMallocFromPoolAsync(void **pointer, size_t bytes, void *pool, void *stream UNUSED) {
    return allocate(pointer, bytes, POOL, (int)((int *)pool - pools));
}

int cudaDeviceGetDefaultMemPool(void **pool, int device) {
    *pool = &pools[device];
    return SUCCESS;
}

int cudaMemPoolCreate(void **pool, const void *properties UNUSED) {
    return cudaDeviceGetDefaultMemPool(pool, xmem_current_device());
}

int cudaMemPoolGetAttribute(void *pool, int attribute, void *value) {
    int device = (int)((int *)pool - pools);
    uint64_t bytes = 0;
    pthread_mutex_lock(&lock);
    /* enum cudaMemPoolAttr: 5 ReservedMemCurrent, 6 ReservedMemHigh, 7 UsedMemCurrent, 8 UsedMemHigh; the reuse
     * policies (1 to 3) are int, the rest 64 bits */
    if (attribute >= 5 && attribute <= 8)
        bytes = attribute % 2 ? pool_used[device] : pool_high[device];
    if (attribute < 7)
        bytes = round_up(bytes, POOL_RESERVE);
    pthread_mutex_unlock(&lock);
    if (attribute <= 3)
        *(int *)value = 1;
    else
        *(uint64_t *)value = bytes;
    return SUCCESS;
}

/* Setting a high-water mark to 0 starts it again from what is in use. */
int cudaMemPoolSetAttribute(void *pool, int attribute, void *value UNUSED) {
    int device = (int)((int *)pool - pools);
    if (attribute == 6 || attribute == 8) {
        pthread_mutex_lock(&lock);
        pool_high[device] = pool_used[device];
        pthread_mutex_unlock(&lock);
    }
    return SUCCESS;
}
