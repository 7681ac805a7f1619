/* CUDA graphs: which streams are capturing, so that torch's allocator gives captured memory a pool of its own.
 *
 * cuda_runtime_api.h, "Stream Management" and "Graph Management" (CUDA 12.9, 13.5). A graph holds no work; launching
 * one does nothing.
 */
#include "runtime.h"

#define GRAPH_BYTES 64

static unsigned long long next_capture = 1;

static struct capture *capture_of(void *stream) {
    struct capture *capture = stream_of(stream)->capture;
    return capture && capture->active ? capture : NULL;
}

int cudaStreamBeginCaptureToGraph(void *stream, void *graph, const void *dependencies UNUSED, const void *edges UNUSED,
                                  size_t count UNUSED, int mode UNUSED) {
    struct capture *capture = calloc(1, sizeof *capture); /* kept: events of the capture may outlive it */
    if (!capture)
        return fail(ERROR_MEMORY_ALLOCATION);
    *capture = (struct capture){1, __atomic_fetch_add(&next_capture, 1, __ATOMIC_RELAXED), graph};
    stream_of(stream)->capture = capture;
    return SUCCESS;
}

int cudaStreamBeginCapture(void *stream, int mode) {
    void *graph;
    if (make_handle(&graph, GRAPH_BYTES))
        return fail(ERROR_MEMORY_ALLOCATION);
    return cudaStreamBeginCaptureToGraph(stream, graph, NULL, NULL, 0, mode);
}

/* Ends the capture for every stream that joined it. */
int cudaStreamEndCapture(void *stream, void **graph) {
    struct capture *capture = capture_of(stream);
    if (!capture)
        return fail(ERROR_INVALID_VALUE);
    *graph = capture->graph;
    capture->active = 0;
    stream_of(stream)->capture = NULL;
    return SUCCESS;
}

int cudaStreamIsCapturing(void *stream, int *status) {
    *status = capture_of(stream) != NULL;
    return SUCCESS;
}

int cudaStreamGetCaptureInfo_v3(void *stream, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, const void **edges, size_t *count) {
    struct capture *capture = capture_of(stream);
    *status = capture != NULL;
    if (id)
        *id = capture ? capture->id : 0;
    if (graph)
        *graph = capture ? capture->graph : NULL;
    if (dependencies)
        *dependencies = NULL;
    if (edges)
        *edges = NULL;
    if (count)
        *count = 0;
    return SUCCESS;
}

int cudaStreamGetCaptureInfo_v2(void *stream, int *status, unsigned long long *id, void **graph,
                                const void **dependencies, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, count);
}

#if XMEM_CUDA_MAJOR == 12
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}
#else
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id, void **graph, const void **dependencies,
                             const void **edges, size_t *count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}
#endif

/* Swaps the thread's capture mode with *mode. */
int cudaThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int current;
    int previous = current;
    current = *mode;
    *mode = previous;
    return SUCCESS;
}

int cudaGraphLaunch(void *executable UNUSED, void *stream) {
    xmem_launched(stream);
    xmem_work("graph", "", 0, 0, 0, 0);
    return SUCCESS;
}

/* One node, which stands for all: torch warns about a graph with none. */
int cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
    if (nodes && *count)
        nodes[0] = graph;
    *count = 1;
    return SUCCESS;
}

int cudaGraphNodeGetDependencies_v2(void *node UNUSED, void **dependencies UNUSED, void *edges UNUSED, size_t *count) {
    *count = 0;
    return SUCCESS;
}

/* CUDA 13 gave the plain name to that. */
int cudaGraphNodeGetDependencies(void *node, void **dependencies, void *edges_or_count, size_t *count) {
    size_t *out = XMEM_CUDA_MAJOR == 12 ? edges_or_count : count;
    return cudaGraphNodeGetDependencies_v2(node, dependencies, NULL, out);
}
