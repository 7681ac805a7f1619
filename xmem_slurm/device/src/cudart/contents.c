/* The few bytes of device memory whose contents are known: copied there by the host and not overtaken by device work.
 *
 * Nothing is computed, so any kernel may have changed any byte: each launch, and each call of a library that would run
 * kernels, forgets everything. What is left is exact, never stale. It matters where a program sends a small value and
 * reads it back, as DistributedDataParallel does when it compares the shapes of its parameters across ranks.
 */
#include <pthread.h>

#include "runtime.h"

#define MAX_KNOWN 8192             /* a gather writes two for each rank: those of 4096 ranks */
#define MAX_KNOWN_BYTES (64 * KIB) /* of one copy */
#define MAX_TOTAL_BYTES (4096 * KIB)

struct known {
    uint64_t start, size;
    char *bytes;
};

/* The oldest first. */
static struct known entries[MAX_KNOWN];
static size_t used, total;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void drop(const struct known *entry) {
    total -= entry->size;
    free(entry->bytes);
}

static void drop_oldest_locked(size_t count) {
    for (size_t i = 0; i < count; i++)
        drop(&entries[i]);
    used -= count;
    memmove(entries, entries + count, used * sizeof *entries);
}

/* What is written is known no more, where it was, in whole entries. */
static void forget_locked(uint64_t start, uint64_t size) {
    size_t kept = 0;
    for (size_t i = 0; i < used; i++) {
        if (entries[i].start < start + size && start < entries[i].start + entries[i].size)
            drop(&entries[i]);
        else if (kept++ != i)
            entries[kept - 1] = entries[i];
    }
    used = kept;
}

void xmem_forget_contents(void) {
    if (!__atomic_load_n(&used, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&lock);
    drop_oldest_locked(used);
    pthread_mutex_unlock(&lock);
}

/* `bytes` (NULL: unknown ones) are written to device memory at `destination`. */
void xmem_note_contents(const void *destination, const void *bytes, size_t size) {
    pthread_mutex_lock(&lock);
    forget_locked((uint64_t)destination, size);
    if (bytes && size && size <= MAX_KNOWN_BYTES) {
        char *copy = malloc(size);
        if (copy) {
            memcpy(copy, bytes, size);
            while (used == MAX_KNOWN || total + size > MAX_TOTAL_BYTES)
                drop_oldest_locked((used + 1) / 2); /* the older half at once, so that it is rarely done */
            total += size;
            entries[used++] = (struct known){(uint64_t)destination, size, copy};
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Read device memory into `out`; 0 where any byte of it is not known, and `out` is then untouched. */
int xmem_known_contents(const void *source, void *out, size_t size) {
    int found = 0;
    uint64_t start = (uint64_t)source;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < used && !found; i++) {
        found = entries[i].start <= start && start + size <= entries[i].start + entries[i].size;
        if (found)
            memcpy(out, entries[i].bytes + (start - entries[i].start), size);
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Copy within device memory. */
void xmem_move_contents(const void *destination, const void *source, size_t size) {
    char *bytes = size <= MAX_KNOWN_BYTES ? malloc(size) : NULL;
    int known = bytes && xmem_known_contents(source, bytes, size);
    xmem_note_contents(destination, known ? bytes : NULL, size);
    free(bytes);
}
