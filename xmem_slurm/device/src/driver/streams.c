/* libcuda.so.1: contexts, streams and events made through the driver; the runtime's own (cuda.h, CUDA 12.9 and 13.5).
 */
#include "../cudart/runtime.h"

extern int cudaSetDevice(int device);
extern int cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority);
extern int cudaStreamSynchronize(void *stream);
extern int cudaDeviceSynchronize(void);
extern int cudaEventCreateWithFlags(void **event, unsigned flags);
extern int cudaEventDestroy(void *event);
extern int cudaEventRecord(void *event, void *stream);
extern int cudaEventQuery(void *event);
extern int cudaEventSynchronize(void *event);
extern int cudaEventElapsedTime(float *milliseconds, void *start, void *end);
extern int cuDevicePrimaryCtxRetain(void **context, int device);

/* A made context is the device's primary one. */
int cuCtxCreate_v2(void **context, unsigned flags UNUSED, int device) {
    int error = cudaSetDevice(device);
    return error ? error : cuDevicePrimaryCtxRetain(context, device);
}

int cuCtxSynchronize(void) { return cudaDeviceSynchronize(); }

int cuStreamCreate(void **stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }

int cuStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    return cudaStreamCreateWithPriority(stream, flags, priority);
}

int cuStreamSynchronize(void *stream) { return cudaStreamSynchronize(stream); }

int cuEventCreate(void **event, unsigned flags) { return cudaEventCreateWithFlags(event, flags); }

int cuEventDestroy_v2(void *event) { return cudaEventDestroy(event); }

int cuEventRecord(void *event, void *stream) { return cudaEventRecord(event, stream); }

int cuEventQuery(void *event) { return cudaEventQuery(event); }

int cuEventSynchronize(void *event) { return cudaEventSynchronize(event); }

int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    return cudaEventElapsedTime(milliseconds, start, end);
}
