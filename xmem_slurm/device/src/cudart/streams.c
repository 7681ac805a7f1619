/* Streams and events. Nothing runs, so all work is done when it is submitted.
 *
 * Note [Pending events]: with XMEM_DEVICE_EVENTS=pending an event stays pending from its recording until something
 * synchronizes. Allocator tests use it: a block used on another stream (record_stream) then waits, as on a busy GPU.
 */
#include <pthread.h>

#include "runtime.h"

#define STREAM_SLOTS 4096

struct event {
    uint64_t sequence;
    struct capture *capture; /* of the stream that recorded it */
};

static struct stream default_stream;
static struct stream slots[STREAM_SLOTS];
static unsigned next_slot;
static uint64_t recorded, completed; /* sequence numbers of events */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* 0, 1 (cudaStreamLegacy) and 2 (cudaStreamPerThread) name the default stream. */
struct stream *stream_of(void *handle) { return (uintptr_t)handle <= 2 ? &default_stream : handle; }

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
    struct capture *capture = ((struct event *)event)->capture;
    if (capture && capture->active)
        stream_of(stream)->capture = capture;
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
    pthread_mutex_unlock(&lock);
    event->capture = stream_of(stream)->capture;
    return SUCCESS;
}

int cudaEventQuery(void *handle) {
    struct event *event = handle;
    if (!xmem_device()->events_pending)
        return SUCCESS;
    pthread_mutex_lock(&lock);
    int done = event->sequence <= completed;
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
