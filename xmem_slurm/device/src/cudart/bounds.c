/* What buffers of libraries take at the most, where a library chooses on the GPU: read by the probe through
 * xmem_bounds_report().
 *
 * A request to torch's allocator is known by its size, wherever it comes again: torch's own notes have it, and so do
 * steps that are not run again. So a size stands for its bound: it is an odd number of bytes, which no tensor of
 * numbers has, within the 512 bytes that torch rounds up to in any case (kMinBlockSize, c10/core/AllocatorConfig.h).
 * The block is the one that it would have been. What needs no bytes gets a block of 512, so that there is one that can
 * be more.
 */
#include <pthread.h>
#include <stdio.h>

#include "runtime.h"

#define BLOCK 512
#define MAX_BOUNDS 4096 /* of one process: as many as convolutions of different forms, and few models have 100 */

static struct bound {
    uint64_t asked, most;
} bounds[MAX_BOUNDS];
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint64_t in_blocks(uint64_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }

/* The bound of this size, a new one of 0 bytes where there was none; NULL where there is no room for it. */
static struct bound *bound_of(uint64_t asked) {
    size_t i = 0;
    while (i < used && bounds[i].asked != asked)
        i++;
    if (i == MAX_BOUNDS)
        return NULL;
    if (i == used)
        bounds[used++] = (struct bound){asked, 0};
    return &bounds[i];
}

uint64_t xmem_at_most(uint64_t bytes, uint64_t most) {
    if (in_blocks(most) <= in_blocks(bytes))
        return bytes;
    uint64_t asked = in_blocks(bytes ? bytes : 1) - 1, last = asked - (BLOCK - 2);
    pthread_mutex_lock(&lock);
    struct bound *bound = bound_of(asked);
    while (bound && bound->most && bound->most != most && asked > last)
        bound = bound_of(asked -= 2);
    if (bound && bound->most < most)
        bound->most = most; /* of the last size of a block: it stands for all that had none left */
    pthread_mutex_unlock(&lock);
    if (!bound)
        xmem_doubt("cudnn-plan", "more kinds of convolutions than are kept apart");
    return asked;
}

/* Write the bounds as a JSON list of [size asked for, bytes at the most] into `out`, as xmem_device_report() does. */
int xmem_bounds_report(char *out, size_t size) {
    pthread_mutex_lock(&lock);
    size_t at = 0;
    APPEND("[");
    for (size_t i = 0; i < used; i++)
        APPEND("%s[%llu, %llu]", i ? ", " : "", (unsigned long long)bounds[i].asked,
               (unsigned long long)bounds[i].most);
    APPEND("]");
    pthread_mutex_unlock(&lock);
    return (int)at;
}
