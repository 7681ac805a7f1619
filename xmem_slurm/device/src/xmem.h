/* What every stand-in library shares: types, status codes, and the calls into the stand-in CUDA runtime.
 *
 * The stand-ins answer in place of NVIDIA's libraries on a machine without a GPU. They keep handles, sizes and memory
 * accounting as the real ones do and run no kernel. Only public headers were followed; each function names its own.
 */
#ifndef XMEM_H
#define XMEM_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define UNUSED __attribute__((unused))

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

#define MAX_DEVICES 16

/* The GPU that the process is shown, from the XMEM_DEVICE_* environment; set once when libcudart's stand-in is mapped.
 */
struct xmem_device {
    char name[256];
    int major, minor; /* compute capability */
    int multiprocessors;
    int count;              /* before CUDA_VISIBLE_DEVICES */
    uint64_t total_bytes;   /* what properties and cudaMemGetInfo call the memory of one GPU */
    uint64_t context_bytes; /* in use outside torch's allocator */
    uint64_t limit_bytes;   /* context and allocations together; UINT64_MAX: no limit */
    enum events {
        READY,   /* at once */
        QUEUED,  /* as on a GPU that the host is ahead of: Note [Queued events] in cudart/streams.c */
        PENDING, /* when something synchronizes */
    } events;    /* when they are over */
    int trace;   /* calls of generated defaults and of the allocation functions go to stderr */
};

/* Exported by libcudart's stand-in. Weak, so that a stand-in mapped without it still loads. */
extern const struct xmem_device *xmem_device(void) __attribute__((weak));

/* Count a doubt: something that the dry run could not see. `code` is a stable word, `detail` words for people; both
 * must be string constants (the table keeps the pointers). */
extern void xmem_doubt(const char *code, const char *detail) __attribute__((weak));

/* A buffer of a library is to have `bytes`, and may have to have `most` on the GPU. Returns the bytes to ask torch for,
 * by which the request is known (cudart/bounds.c). */
extern uint64_t xmem_at_most(uint64_t bytes, uint64_t most) __attribute__((weak));

/* A generated default was called. */
extern void xmem_default(const char *function) __attribute__((weak));

/* Count work (cudart/work.c): its kind, a word and what it is of; all of them string constants. */
extern void xmem_work(const char *kind, const char *word, int64_t a, int64_t b, int64_t c, int64_t d)
    __attribute__((weak));
extern void xmem_work_collective(const char *kind, int64_t bytes, int64_t ranks, void *stream) __attribute__((weak));

/* A kernel of a library was launched on this stream, by this function. */
extern void xmem_library_launched(const char *function, void *stream) __attribute__((weak));

static inline UNUSED void doubt(const char *code, const char *detail) {
    if (xmem_doubt)
        xmem_doubt(code, detail);
}

/* An opaque handle for the caller to pass back: zeroed, so that a field nobody set reads as 0. */
static inline UNUSED int make_handle(void **handle, size_t size) {
    *handle = calloc(1, size);
    return *handle ? 0 : 2; /* 2 is "allocation failed" or "out of memory" in every one of these libraries */
}

#endif
