/* Shared by the sources of the stand-in libcudart and libcuda: state of the pretended devices. */
#ifndef XMEM_RUNTIME_H
#define XMEM_RUNTIME_H

#include "../xmem.h"
#include "structs.h"

/* cudaError_t (driver_types.h, CUDA 12.9 and 13.5); CUresult has the same numbers for the ones used here. */
enum {
    SUCCESS = 0,
    ERROR_INVALID_VALUE = 1,
    ERROR_MEMORY_ALLOCATION = 2,
    ERROR_INSUFFICIENT_DRIVER = 35,
    ERROR_NO_DEVICE = 100,
    ERROR_INVALID_DEVICE = 101,
    ERROR_NO_KERNEL_IMAGE = 209,
    ERROR_SYMBOL_NOT_FOUND = 500,
    ERROR_NOT_READY = 600,
    ERROR_NOT_SUPPORTED = 801,
};

/* Remember the error for cudaGetLastError and return it. */
int fail(int error);

/* device.c */
int xmem_visible_devices(void);
int xmem_current_device(void);

/* images.c: for which architecture the code of a kernel was compiled that the device would take: 86 for sm_86, 0 for
 * none. `ptx` is what it was compiled from. Sets ERROR_NO_KERNEL_IMAGE if there is none. */
struct xmem_image {
    int binary, ptx;
    const char *attention; /* the kernel's name, if it is one of attention */
};
int xmem_image_of(const void *function, struct xmem_image *image);

/* attention.c: kernels whose FLOPs are in no product. */
int xmem_is_attention(const char *name);
void xmem_count_attention(const char *name, struct dim3 grid, void **arguments);

/* work.c, beside what xmem.h has of it */
void xmem_work_goes_on(void);
void xmem_work_waits(const void *stream);

/* capability.c: what the hardware of a compute capability has. */
struct capability {
    int major, minor;
    int threads_per_multiprocessor;
    int blocks_per_multiprocessor;
    int shared_per_multiprocessor; /* bytes */
    int shared_per_block_optin;    /* bytes */
    int l2_bytes;                  /* of the largest GPU with that capability */
    int memory_bus_bits;           /* of the same GPU */
};
const struct capability *xmem_capability(void);
int xmem_active_blocks(int threads_per_block, size_t dynamic_shared_bytes);
int xmem_attribute(int *value, int attribute, int device);

/* ranges.c: address ranges, sorted, found by an address inside them. */
enum range_kind { DEVICE, POOL, HOST, REGISTERED, MANAGED, RESERVED, MAPPED };
struct range {
    uint64_t start, size;
    enum range_kind kind;
    int device;
    void *owner; /* MAPPED: the physical allocation */
};
struct ranges {
    struct range *items;
    size_t count, room;
};
int xmem_ranges_add(struct ranges *table, struct range range);
struct range *xmem_ranges_find(struct ranges *table, uint64_t address);
void xmem_ranges_remove(struct ranges *table, struct range *range);

/* addresses.c; callers hold the memory lock. 0 where there are none left. */
uint64_t xmem_addresses_take(uint64_t bytes);
void xmem_addresses_give_back(uint64_t at, uint64_t bytes);
int xmem_is_device_address(const void *pointer);

/* memory.c: the accounts. All of them take the memory lock. */
int xmem_charge(int device, uint64_t bytes);
void xmem_release(int device, uint64_t bytes);
uint64_t xmem_reserve_addresses(uint64_t bytes);
void xmem_memory_info(int device, size_t *free_bytes, size_t *total_bytes);
int xmem_find_range(const void *pointer, struct range *found);
int xmem_track_range(struct range range);
int xmem_forget_range(uint64_t start, enum range_kind kind, struct range *forgotten);

/* contents.c */
void xmem_forget_contents(void);
void xmem_note_contents(const void *destination, const void *bytes, size_t size);
int xmem_known_contents(const void *source, void *out, size_t size);
void xmem_move_contents(const void *destination, const void *source, size_t size);

/* copies.c */
int xmem_copy(void *destination, const void *source, size_t bytes);
int xmem_set(void *destination, int value, size_t bytes);

/* streams.c */
struct capture {
    int active;
    unsigned long long id;
    void *graph;
};
struct stream {
    int priority;
    unsigned flags;
    unsigned long long id;
    struct capture *capture;
    uint64_t waited; /* how many launches the default stream had when this one last waited for it */
};
struct stream *stream_of(void *handle);
void xmem_launched(void *stream); /* the GPU was given work, which could write anywhere */
uint64_t xmem_launches(void);     /* how often so far */
int xmem_waited_for_newest(void *stream);
void xmem_trace(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Of a function that writes text into `out`, which has room for `size`, and has come to `at`: goes on counting where
 * there is no room. */
#define APPEND(...) at += (size_t)snprintf(at < size ? out + at : NULL, at < size ? size - at : 0, __VA_ARGS__)

#endif
