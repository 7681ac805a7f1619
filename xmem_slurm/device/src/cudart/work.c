/* What the GPU was given to do from one optimizer step to the next: a table of rows, counted, and read by the probe.
 *
 * A row is a kind, a word, and what it is of:
 *
 *   product       precision         m, n, k, batch
 *   attention     precision         FLOPs of one kernel; of the backward pass five products for the forward's two
 *   convolution   precision         FLOPs
 *   all_reduce... waited, beside    bytes of the whole buffer, ranks
 *   copied                          bytes between host and GPU
 *   graph                           one was launched; its kernels are not seen
 *
 * Note [Waited or beside]: a collective is waited for when nothing is computed meanwhile: its stream waited for the
 * newest kernel of the default stream, which then waits for it before its next kernel. What was gathered ahead, on a
 * stream of its own, and the buckets of gradients that are reduced while the next ones are computed run beside it.
 *
 * Note [Passes alike]: a step may have many micro-batches, of which the probe skips what it has met (repeat/calls).
 * What lies between the ends of two backward passes is a pass. One that was made whole is kept under a number, and one
 * like it in which calls were skipped counts as that one, or as what it has the GPU do itself where that is more: DDP
 * reduces gradients in the last one alone, skipped or not.
 */
#include <pthread.h>
#include <stdio.h>

#include "runtime.h"

#define SLOTS 16384 /* a power of two */
#define ROWS (SLOTS / 2)
#define PENDING 256
#define PASSES 16 /* probe/_xmem/record/counting.py has it, too */

static struct row {
    const char *kind, *word;
    int64_t of[4];
    uint64_t count, before, before_pass, kept;
} rows[ROWS];
static size_t used;
static int is_full;           /* nothing is said then */
static uint16_t slots[SLOTS]; /* a row's number + 1, where its hash says; 0: none */
static uint64_t steps, launched_before, kept_launches;
static uint64_t not_launched, launched_before_pass; /* what would have been, had no call been skipped */
static struct pass {
    uint64_t counts[ROWS], launches;
} passes[PASSES];
static double kept_flops;
static int64_t kept_backwards, kept_allocated;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct pending {
    const void *stream;
    const char *kind;
    int64_t bytes, ranks;
} pending[PENDING];
static size_t pending_count;

/* The row, made if there is none; NULL when the table is full. */
static struct row *find(const char *kind, const char *word, const int64_t *of) {
    uint64_t hash = (uint64_t)kind[0] << 8 ^ (uint64_t)word[0];
    for (int i = 0; i < 4; i++)
        hash = (hash ^ (uint64_t)of[i]) * 0x9e3779b97f4a7c15u;
    for (uint64_t i = hash >> 40;; i++) {
        uint16_t *slot = &slots[i % SLOTS];
        struct row *row = *slot ? &rows[*slot - 1] : used < ROWS ? &rows[used] : NULL;
        if (row && !*slot) {
            *slot = (uint16_t)++used;
            *row = (struct row){.kind = kind, .word = word, .of = {of[0], of[1], of[2], of[3]}};
        }
        if (!row || (!strcmp(row->kind, kind) && !strcmp(row->word, word) && !memcmp(row->of, of, sizeof row->of)))
            return row;
    }
}

static void add(const char *kind, const char *word, int64_t a, int64_t b, int64_t c, int64_t d) {
    struct row *row = find(kind, word, (int64_t[]){a, b, c, d});
    if (row)
        row->count++;
    else
        is_full = 1;
}

void xmem_work(const char *kind, const char *word, int64_t a, int64_t b, int64_t c, int64_t d) {
    pthread_mutex_lock(&lock);
    add(kind, word, a, b, c, d);
    pthread_mutex_unlock(&lock);
}

static void settle(const void *stream, const char *word) {
    size_t left = 0;
    for (size_t i = 0; i < pending_count; i++) {
        if (stream && pending[i].stream != stream)
            pending[left++] = pending[i];
        else
            add(pending[i].kind, word, pending[i].bytes, pending[i].ranks, 0, 0);
    }
    pending_count = left;
}

/* Note [Waited or beside]. */
void xmem_work_collective(const char *kind, int64_t bytes, int64_t ranks, void *stream) {
    pthread_mutex_lock(&lock);
    if (stream_of(stream) == stream_of(NULL))
        add(kind, "waited", bytes, ranks, 0, 0);
    else if (!xmem_waited_for_newest(stream) || pending_count == PENDING)
        add(kind, "beside", bytes, ranks, 0, 0);
    else
        pending[pending_count++] = (struct pending){stream_of(stream), kind, bytes, ranks};
    pthread_mutex_unlock(&lock);
}

/* A kernel was launched on the default stream. */
void xmem_work_goes_on(void) {
    if (!__atomic_load_n(&pending_count, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&lock);
    settle(NULL, "beside");
    pthread_mutex_unlock(&lock);
}

/* The default stream waits for what another has been given so far. */
void xmem_work_waits(const void *stream) {
    if (!__atomic_load_n(&pending_count, __ATOMIC_RELAXED))
        return;
    pthread_mutex_lock(&lock);
    settle(stream, "waited");
    pthread_mutex_unlock(&lock);
}

static double flops(const struct row *row) {
    double times = (double)(row->count - row->before), of = 2.0 * (double)row->of[0];
    if (!strcmp(row->kind, "product"))
        return times * of * (double)row->of[1] * (double)row->of[2] * (double)row->of[3];
    return !strcmp(row->kind, "attention") || !strcmp(row->kind, "convolution") ? times * of / 2 : 0;
}

static uint64_t all_launches(void) { return xmem_launches() + not_launched; }

static void begin_pass(void) {
    for (size_t i = 0; i < used; i++)
        rows[i].before_pass = rows[i].count;
    launched_before_pass = all_launches();
}

/* A backward pass has ended. Note [Passes alike]: it is kept under this number if it was made whole, else it counts as
 * the one that is. Below 0: neither. */
void xmem_work_pass(int number, int is_whole) {
    pthread_mutex_lock(&lock);
    if (number >= 0 && number < PASSES) {
        struct pass *pass = &passes[number];
        for (size_t i = 0; i < used; i++) {
            uint64_t count = rows[i].count - rows[i].before_pass;
            if (is_whole)
                pass->counts[i] = count;
            else if (count < pass->counts[i])
                rows[i].count += pass->counts[i] - count;
        }
        uint64_t launched = all_launches() - launched_before_pass;
        if (is_whole)
            pass->launches = launched;
        else if (launched < pass->launches)
            not_launched += pass->launches - launched;
    }
    begin_pass();
    pthread_mutex_unlock(&lock);
}

/* An optimizer stepped, after so many backward passes; below 0: calls were skipped in it that nothing stands for. So
 * many bytes were allocated in the step, as torch's allocator says. Kept is the step with the fewest launches, as
 * others evaluate or save, too; of equal ones the largest, as a last batch is smaller. */
void xmem_work_step(int64_t backwards, int64_t allocated) {
    pthread_mutex_lock(&lock);
    settle(NULL, "beside");
    double sum = 0;
    for (size_t i = 0; i < used; i++)
        sum += flops(&rows[i]);
    uint64_t launched = all_launches() - launched_before;
    int fewer = launched < kept_launches || (launched == kept_launches && sum > kept_flops);
    int keep = steps && backwards >= 0 && (!kept_launches || fewer);
    for (size_t i = 0; i < used; i++) {
        if (keep)
            rows[i].kept = rows[i].count - rows[i].before;
        rows[i].before = rows[i].count;
    }
    if (keep) {
        kept_launches = launched;
        kept_flops = sum;
        kept_backwards = backwards;
        kept_allocated = allocated;
    }
    steps++;
    launched_before += launched;
    begin_pass();
    pthread_mutex_unlock(&lock);
}

/* Write the step that was kept as a JSON object into `out`: {"launches", "backwards", "allocated", "rows": [[kind,
 * word, 4 numbers, count]]}; as xmem_device_report does. */
int xmem_work_report(char *out, size_t size) {
    pthread_mutex_lock(&lock);
    size_t at = 0;
    int first = 1;
    APPEND("{\"launches\": %llu, \"backwards\": %lld, \"allocated\": %lld, \"rows\": [",
           is_full ? 0 : (unsigned long long)kept_launches, (long long)kept_backwards, (long long)kept_allocated);
    for (size_t i = 0; i < used; i++) {
        const struct row *row = &rows[i];
        if (!row->kept)
            continue;
        APPEND("%s[\"%s\", \"%s\", %lld, %lld, %lld, %lld, %llu]", first ? "" : ", ", row->kind, row->word,
               (long long)row->of[0], (long long)row->of[1], (long long)row->of[2], (long long)row->of[3],
               (unsigned long long)row->kept);
        first = 0;
    }
    APPEND("]}");
    pthread_mutex_unlock(&lock);
    return (int)at;
}
