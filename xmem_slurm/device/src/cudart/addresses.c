/* Which addresses does the driver give to device memory?
 *
 * Note [Device addresses]: of free blocks of one size torch takes the one with the lowest address, so how much it
 * reserves hangs on the order of addresses, too. Drivers do it thus: what is asked for, in pages of 2 MiB, gets the
 * lowest hole that is large enough in the chunks that there are; else a new chunk of whole 32 MiB, at the highest free
 * place of all. A chunk in which nothing lives any more is given back.
 *
 * Two chunks are there from the beginning. The upper one's last 24 MiB are free. In the lower one the driver holds a
 * pool that it gives back when the first kernel is launched: its place is used again before any new chunk, if something
 * else came to live in that chunk meanwhile, and is free room if not. It is 414 MiB on an H200, and taken to be as much
 * for each multiprocessor; of other GPUs nobody has seen it.
 *
 * Seen on an H200 (driver 580.159.04, 132 multiprocessors): with these addresses 113 of 114 recorded histories reserve
 * to the byte what they did (`python -m benchmarks.ground_truth --compare`), and four of five small scripts that did
 * not without the two chunks. What else the driver takes for itself lies in between and is not known.
 * xmem_slurm/allocator/addresses.py does the same.
 *
 * The window is mapped without access and without backing, which keeps everything else out of it and makes a stray host
 * access a segmentation fault, as on a real GPU. The mapping is a safeguard only: under RLIMIT_AS it is left out,
 * because it would use the limit up, and the addresses stay plain numbers.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/resource.h>

#include "runtime.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* glibc before 2.27 does not name it */
#endif

#define WINDOW_START (16 * TIB)
#define WINDOW_END (48 * TIB)
#define PAGE_BYTES (2 * MIB)
#define CHUNK_BYTES (32 * MIB)
#define UPPER_BYTES (96 * MIB) /* the context's upper chunk... */
#define UPPER_HOLE (24 * MIB)  /* ...and what is free of it */
#define POOL_OF_132 (414 * MIB)

static struct ranges chunks, holes; /* the holes lie in the chunks */
static int begun;
static struct range pool; /* what the first launch gives back; of no size once it has */

static uint64_t round_up(uint64_t bytes, uint64_t granule) { return (bytes + granule - 1) / granule * granule; }

static uint64_t end_of(const struct range *range) { return range->start + range->size; }

__attribute__((constructor)) static void map_window(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur != RLIM_INFINITY)
        return;
    for (uint64_t bytes = WINDOW_END - WINDOW_START; bytes >= 64 * GIB; bytes /= 2) {
        void *wanted = (void *)(WINDOW_END - bytes);
        void *at =
            mmap(wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
        if (at == wanted)
            return;
        if (at != MAP_FAILED)
            munmap(at, bytes); /* a kernel before 4.17 took the address for a hint */
    }
}

int xmem_is_device_address(const void *pointer) {
    return (uint64_t)pointer >= WINDOW_START && (uint64_t)pointer < WINDOW_END;
}

/* The end of the highest place outside the chunks that has room for `bytes`, or 0. */
static uint64_t end_of_room(uint64_t bytes) {
    uint64_t end = WINDOW_END;
    for (size_t i = chunks.count; i-- > 0; end = chunks.items[i].start)
        if (end - end_of(&chunks.items[i]) >= bytes)
            return end;
    return end - WINDOW_START >= bytes ? end : 0;
}

/* The context's two chunks, as torch finds them at its first allocation. */
static void begin(void) {
    uint64_t bytes = round_up(POOL_OF_132 * (uint64_t)xmem_device()->multiprocessors / 132, PAGE_BYTES);
    uint64_t chunk = round_up(bytes, CHUNK_BYTES), upper = WINDOW_END - UPPER_BYTES;
    begun = 1;
    pool = (struct range){.start = upper - chunk, .size = bytes};
    xmem_ranges_add(&chunks, (struct range){.start = pool.start, .size = chunk});
    xmem_ranges_add(&chunks, (struct range){.start = upper, .size = UPPER_BYTES});
    if (chunk > bytes)
        xmem_ranges_add(&holes, (struct range){.start = pool.start + bytes, .size = chunk - bytes});
    xmem_ranges_add(&holes, (struct range){.start = WINDOW_END - UPPER_HOLE, .size = UPPER_HOLE});
}

uint64_t xmem_addresses_take(uint64_t bytes) {
    uint64_t size = round_up(bytes ? bytes : 1, PAGE_BYTES);
    if (!begun)
        begin();
    if (pool.size && xmem_launches()) {
        xmem_addresses_give_back(pool.start, pool.size);
        pool.size = 0;
    }
    for (size_t i = 0; i < holes.count; i++) {
        struct range *hole = &holes.items[i];
        uint64_t at = hole->start;
        if (hole->size < size)
            continue;
        if (hole->size == size)
            xmem_ranges_remove(&holes, hole);
        else
            *hole = (struct range){.start = at + size, .size = hole->size - size};
        return at;
    }
    uint64_t chunk = round_up(size, CHUNK_BYTES), end = end_of_room(chunk), at = end - chunk;
    if (!end || xmem_ranges_add(&chunks, (struct range){.start = at, .size = chunk}))
        return 0;
    if (chunk > size)
        xmem_ranges_add(&holes, (struct range){.start = at + size, .size = chunk - size});
    return at;
}

void xmem_addresses_give_back(uint64_t at, uint64_t bytes) {
    struct range *chunk = xmem_ranges_find(&chunks, at), *next, *before;
    struct range hole = {.start = at, .size = round_up(bytes ? bytes : 1, PAGE_BYTES)};
    if (!chunk)
        return;
    next = xmem_ranges_find(&holes, end_of(&hole));
    if (next && next->start == end_of(&hole) && end_of(&hole) < end_of(chunk)) {
        hole.size += next->size;
        xmem_ranges_remove(&holes, next);
    }
    before = at > chunk->start ? xmem_ranges_find(&holes, at - 1) : NULL;
    if (before) {
        hole = (struct range){.start = before->start, .size = before->size + hole.size};
        xmem_ranges_remove(&holes, before);
    }
    if (hole.size == chunk->size)
        xmem_ranges_remove(&chunks, chunk);
    else
        xmem_ranges_add(&holes, hole);
}
