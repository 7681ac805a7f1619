/* libnccl: communicators of any size in one process (nccl.h, 2.20 to 2.29).
 *
 * The other ranks do not run. A broadcast or gather gives what this rank has, as if all of them had the same; after
 * reductions and point-to-point transfers the contents of device memory are unknown. All are counted (cudart/work.c).
 * The buffers that a communicator takes on the GPU depend on topology and settings and are not known here: a doubt.
 */
#include "../xmem.h"

enum { NCCL_SUCCESS = 0, NCCL_UNHANDLED_CUDA_ERROR = 1 };
#define NCCL_SPLIT_NOCOLOR (-1)

struct communicator {
    int ranks, rank, device;
    char rest[4096]; /* torch reads nothing of it; the real one is far larger */
};

struct unique_id {
    char bytes[128];
};

extern int cudaGetDevice(int *) __attribute__((weak));
extern int cudaMalloc(void **, size_t) __attribute__((weak));
extern int cudaFree(void *) __attribute__((weak));
extern int cudaMemcpyAsync(void *, const void *, size_t, int, void *) __attribute__((weak));

static int make_communicator(void **communicator, int ranks, int rank, int device) {
    doubt("nccl", "buffers of a communicator");
    if (make_handle(communicator, sizeof(struct communicator)))
        return NCCL_UNHANDLED_CUDA_ERROR;
    struct communicator *made = *communicator;
    made->ranks = ranks;
    made->rank = rank;
    made->device = device;
    return NCCL_SUCCESS;
}

static int device_in_use(void) {
    int device = 0;
    if (cudaGetDevice)
        cudaGetDevice(&device);
    return device;
}

const char *ncclGetErrorString(int result) { return result ? "NCCL error" : "no error"; }

const char *ncclGetLastError(void *communicator UNUSED) { return ""; }

int ncclGetUniqueId(struct unique_id *id) {
    memset(id->bytes, 7, sizeof id->bytes);
    return NCCL_SUCCESS;
}

int ncclCommInitRank(void **communicator, int ranks, struct unique_id id UNUSED, int rank) {
    return make_communicator(communicator, ranks, rank, device_in_use());
}

int ncclCommInitRankConfig(void **communicator, int ranks, struct unique_id id UNUSED, int rank, void *config UNUSED) {
    return make_communicator(communicator, ranks, rank, device_in_use());
}

int ncclCommInitRankScalable(void **communicator, int ranks, int rank, int ids UNUSED, void *id UNUSED,
                             void *config UNUSED) {
    return make_communicator(communicator, ranks, rank, device_in_use());
}

int ncclCommInitAll(void **communicators, int count, const int *devices) {
    int result = NCCL_SUCCESS;
    for (int i = 0; i < count && !result; i++)
        result = make_communicator(&communicators[i], count, i, devices ? devices[i] : i);
    return result;
}

/* Which ranks share the color is known to all ranks only: the new one has the size of its parent. */
int ncclCommSplit(struct communicator *parent, int color, int key UNUSED, void **communicator, void *config UNUSED) {
    *communicator = NULL;
    return color == NCCL_SPLIT_NOCOLOR ? NCCL_SUCCESS
                                       : make_communicator(communicator, parent->ranks, parent->rank, parent->device);
}

int ncclCommShrink(struct communicator *parent, int *excluded UNUSED, int count, void **communicator,
                   void *config UNUSED, int flags UNUSED) {
    return make_communicator(communicator, parent->ranks - count, parent->rank, parent->device);
}

int ncclCommCount(const struct communicator *communicator, int *count) {
    *count = communicator->ranks;
    return NCCL_SUCCESS;
}

int ncclCommUserRank(const struct communicator *communicator, int *rank) {
    *rank = communicator->rank;
    return NCCL_SUCCESS;
}

int ncclCommCuDevice(const struct communicator *communicator, int *device) {
    *device = communicator->device;
    return NCCL_SUCCESS;
}

int ncclMemAlloc(void **pointer, size_t bytes) {
    return cudaMalloc && cudaMalloc(pointer, bytes) == 0 ? NCCL_SUCCESS : NCCL_UNHANDLED_CUDA_ERROR;
}

int ncclMemFree(void *pointer) { return cudaFree && cudaFree(pointer) == 0 ? NCCL_SUCCESS : NCCL_UNHANDLED_CUDA_ERROR; }

/* ncclDataType_t -> bytes */
static size_t type_bytes(int type) {
    static const unsigned char bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && (size_t)type < sizeof bytes ? bytes[type] : 1;
}

/* Beyond this size nobody knows the contents anyhow. */
#define COPIED_BYTES (64 * KIB)
#define DEVICE_TO_DEVICE 3

static void copy(void *to, const void *from, size_t bytes, void *stream) {
    if (to != from && cudaMemcpyAsync)
        cudaMemcpyAsync(to, from, bytes, DEVICE_TO_DEVICE, stream);
}

/* Broadcasts of one group, one from each rank, are a gather (torch from 2.15 on writes them so). What this rank sends
 * in the group stands for what the others of the same size send. */
#define MAX_GROUPED 1024

static __thread struct {
    const void *sent;
    size_t bytes;
    int count;
    void *received[MAX_GROUPED];
} group;

int ncclGroupStart(void) {
    group.sent = NULL;
    group.count = 0;
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void) {
    for (int i = 0; i < group.count && group.sent; i++)
        copy(group.received[i], group.sent, group.bytes, NULL);
    return ncclGroupStart();
}

static void count_transfer(const char *kind, size_t bytes, const struct communicator *communicator, void *stream) {
    if (xmem_work_collective)
        xmem_work_collective(kind, (int64_t)bytes, communicator->ranks, stream);
}

/* What is unknown afterwards. */
static int transfer(const char *function, const char *kind, size_t bytes, const struct communicator *communicator,
                    void *stream) {
    count_transfer(kind, bytes, communicator, stream);
    if (xmem_default)
        xmem_default(function);
    return NCCL_SUCCESS;
}

int ncclAllReduce(const void *send UNUSED, void *receive UNUSED, size_t count, int type, int operation UNUSED,
                  const struct communicator *communicator, void *stream) {
    return transfer("ncclAllReduce", "all_reduce", count * type_bytes(type), communicator, stream);
}

int ncclReduce(const void *send UNUSED, void *receive UNUSED, size_t count, int type, int operation UNUSED,
               int root UNUSED, const struct communicator *communicator, void *stream) {
    return transfer("ncclReduce", "reduce", count * type_bytes(type), communicator, stream);
}

int ncclReduceScatter(const void *send UNUSED, void *receive UNUSED, size_t count, int type, int operation UNUSED,
                      const struct communicator *communicator, void *stream) {
    size_t whole = count * type_bytes(type) * (size_t)communicator->ranks;
    return transfer("ncclReduceScatter", "reduce_scatter", whole, communicator, stream);
}

int ncclAlltoAll(const void *send UNUSED, void *receive UNUSED, size_t count, int type,
                 const struct communicator *communicator, void *stream) {
    size_t whole = count * type_bytes(type) * (size_t)communicator->ranks;
    return transfer("ncclAlltoAll", "all_to_all", whole, communicator, stream);
}

int ncclSend(const void *send UNUSED, size_t count, int type, int peer UNUSED, const struct communicator *communicator,
             void *stream) {
    return transfer("ncclSend", "send", count * type_bytes(type), communicator, stream);
}

int ncclBroadcast(const void *send, void *receive, size_t count, int type, int root,
                  const struct communicator *communicator, void *stream) {
    size_t bytes = count * type_bytes(type);
    count_transfer("broadcast", bytes, communicator, stream);
    copy(receive, send, bytes, stream);
    if (root == communicator->rank) {
        group.sent = send;
        group.bytes = bytes;
    } else if (send == receive && group.count < MAX_GROUPED && (!group.sent || group.bytes == bytes)) {
        group.received[group.count++] = receive;
    }
    return NCCL_SUCCESS;
}

int ncclAllGather(const void *send, void *receive, size_t count, int type, const struct communicator *communicator,
                  void *stream) {
    size_t bytes = count * type_bytes(type);
    count_transfer("all_gather", bytes * (size_t)communicator->ranks, communicator, stream);
    int copies = bytes <= COPIED_BYTES ? communicator->ranks : 0;
    if (!copies && xmem_default)
        xmem_default("ncclAllGather");
    for (int rank = 0; rank < copies; rank++)
        copy((char *)receive + bytes * (size_t)rank, send, bytes, stream);
    return NCCL_SUCCESS;
}
