/* Streams and events. Nothing runs, so all work is done when it is submitted; when events are over is a pretence.
 *
 * Note [Pending events]: with XMEM_DEVICE_EVENTS=pending an event stays pending from its recording until something
 * synchronizes. Allocator tests use it: a block used on another stream (record_stream) then waits, as on a busy GPU.
 *
 * Note [Queued events]: when would an event be over on a GPU? Between at once, on one that waits for the host, and the
 * next synchronization. But a host cannot be ahead of its GPU by more than the launches that a stream's queue takes,
 * about 1000 (forums.developer.nvidia.com/t/68937): the next one waits. With XMEM_DEVICE_EVENTS=queued, as dry runs
 * have it, an event is over when that many launches came after it: the GPU is taken to be as far behind as it can be,
 * as it is in training that it bounds. It has caught up, too, when nothing was launched for a while, as in compilation,
 * so that a program that asks until an event is over goes on.
 */
#include <pthread.h>
#include <time.h>

#include "runtime.h"

#define STREAM_SLOTS 4096
#define QUEUED_LAUNCHES 1024
#define IDLE_SECONDS 3 /* longer than the probe lets a process wait for torch's watchdogs (ranks/rank.py) */

struct event {
    uint64_t sequence, launch, on_default;
    struct capture *capture; /* of the stream that recorded it */
    struct stream *stream;   /* that recorded it */
};

static struct stream default_stream;
static struct stream slots[STREAM_SLOTS];
static unsigned next_slot;
static uint64_t recorded, completed;                /* sequence numbers of events */
static uint64_t launches, in_libraries, on_default; /* kernels; those of libraries are in the last two alone */
static time_t launched_at;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* 0, 1 (cudaStreamLegacy) and 2 (cudaStreamPerThread) name the default stream. */
struct stream *stream_of(void *handle) { return (uintptr_t)handle <= 2 ? &default_stream : handle; }

static void goes_on(void *stream) {
    if (stream_of(stream) == &default_stream) {
        __atomic_fetch_add(&on_default, 1, __ATOMIC_RELAXED);
        xmem_work_goes_on();
    }
}

void xmem_launched(void *stream) {
    xmem_forget_contents();
    __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    goes_on(stream);
    __atomic_store_n(&launched_at, time(NULL), __ATOMIC_RELAXED);
}

/* It is a default, too, as it was before anybody counted. */
void xmem_library_launched(const char *function, void *stream) {
    __atomic_fetch_add(&in_libraries, 1, __ATOMIC_RELAXED);
    goes_on(stream);
    xmem_default(function);
}

uint64_t xmem_launches(void) {
    return __atomic_load_n(&launches, __ATOMIC_RELAXED) + __atomic_load_n(&in_libraries, __ATOMIC_RELAXED);
}

/* Handles ascend in the order of creation, because torch's allocator orders blocks by them. */
int cudaStreamCreateWithPriority(void **handle, unsigned flags, int priority) {
    unsigned slot = __atomic_fetch_add(&next_slot, 1, __ATOMIC_RELAXED);
    struct stream *stream = slot < STREAM_SLOTS ? &slots[slot] : calloc(1, sizeof *stream);
    if (!stream)
        return fail(ERROR_MEMORY_ALLOCATION);
    *stream = (struct stream){.priority = priority, .flags = flags, .id = slot + 3};
    *handle = stream;
    return SUCCESS;
}

/* Note [Waited or beside] in work.c. */
int xmem_waited_for_newest(void *stream) {
    return stream_of(stream) == &default_stream ||
           stream_of(stream)->waited == __atomic_load_n(&on_default, __ATOMIC_RELAXED);
}

/* cuda_runtime_api.h, "Stream Management" (CUDA 12.9, 13.5). */

int cudaStreamCreate(void **stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

int cudaStreamCreateWithFlags(void **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }

int cudaStreamGetPriority(void *stream, int *priority) {
    *priority = stream_of(stream)->priority;
    return SUCCESS;
}

int cudaStreamGetFlags(void *stream, unsigned *flags) {
    *flags = stream_of(stream)->flags;
    return SUCCESS;
}

int cudaStreamGetId(void *stream, unsigned long long *id) {
    *id = stream_of(stream)->id;
    return SUCCESS;
}

int cudaStreamGetDevice(void *stream UNUSED, int *device) {
    *device = xmem_current_device();
    return SUCCESS;
}

int cudaStreamSynchronize(void *stream UNUSED) {
    pthread_mutex_lock(&lock);
    completed = recorded;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Waiting for an event that a capturing stream recorded joins this stream to the capture (CUDA C++ Programming Guide,
 * "Cross-stream Dependencies and Events"). */
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags UNUSED) {
    struct event *recorded_one = event;
    struct capture *capture = recorded_one->capture;
    if (capture && capture->active)
        stream_of(stream)->capture = capture;
    if (stream_of(stream) == &default_stream)
        xmem_work_waits(recorded_one->stream);
    else if (recorded_one->stream == &default_stream)
        stream_of(stream)->waited = recorded_one->on_default;
    return SUCCESS;
}

int cudaStreamAddCallback(void *stream, void (*callback)(void *, int, void *), void *data, unsigned flags UNUSED) {
    callback(stream, SUCCESS, data);
    return SUCCESS;
}

int cudaLaunchHostFunc(void *stream UNUSED, void (*function)(void *), void *data) {
    function(data);
    return SUCCESS;
}

/* cuda_runtime_api.h, "Event Management". */

int cudaEventCreateWithFlags(void **event, unsigned flags UNUSED) {
    return make_handle(event, sizeof(struct event)) ? fail(ERROR_MEMORY_ALLOCATION) : SUCCESS;
}

int cudaEventRecord(void *handle, void *stream) {
    struct event *event = handle;
    pthread_mutex_lock(&lock);
    event->sequence = ++recorded;
    event->launch = __atomic_load_n(&launches, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    event->on_default = __atomic_load_n(&on_default, __ATOMIC_RELAXED);
    event->stream = stream_of(stream);
    event->capture = event->stream->capture;
    return SUCCESS;
}

int cudaEventQuery(void *handle) {
    struct event *event = handle;
    enum events mode = xmem_device()->events;
    if (mode == READY)
        return SUCCESS;
    pthread_mutex_lock(&lock);
    int done = event->sequence <= completed;
    if (mode == QUEUED)
        done |= __atomic_load_n(&launches, __ATOMIC_RELAXED) - event->launch >= QUEUED_LAUNCHES ||
                time(NULL) - __atomic_load_n(&launched_at, __ATOMIC_RELAXED) > IDLE_SECONDS;
    pthread_mutex_unlock(&lock);
    return done ? SUCCESS : fail(ERROR_NOT_READY);
}

/* Events complete in the order of their recording. */
int cudaEventSynchronize(void *handle) {
    struct event *event = handle;
    pthread_mutex_lock(&lock);
    if (event->sequence > completed)
        completed = event->sequence;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}
