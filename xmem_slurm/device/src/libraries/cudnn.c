/* libcudnn: version, streams, tensors and filters, dropout. */
#include "cudnn.h"

/* cudart/capability.c; its attributes are those of cudaDeviceAttr. */
extern int xmem_attribute(int *value, int attribute, int ordinal) __attribute__((weak));

size_t cudnnGetVersion(void) { return XMEM_CUDNN_VERSION; }

size_t cudnnGetCudartVersion(void) { return XMEM_CUDA_VERSION; }

/* libraryPropertyType: 0 major, 1 minor, 2 patch. From 9 on the version is major * 10000 + minor * 100 + patch. */
int cudnnGetProperty(int property, int *value) {
    *value = property == 0   ? XMEM_CUDNN_VERSION / 10000
             : property == 1 ? XMEM_CUDNN_VERSION / 100 % 100
                             : XMEM_CUDNN_VERSION % 100;
    return CUDNN_SUCCESS;
}

const char *cudnnGetErrorString(int status) { return status ? "cuDNN error" : "CUDNN_STATUS_SUCCESS"; }

void cudnnGetLastErrorString(char *text, size_t size) {
    if (size)
        text[0] = 0;
}

/* Doubt what this file and its neighbours say of scratch, but where it is what a GPU answered: an H200 with cuDNN 9.19,
 * for types but double (benchmarks/data/cudnn_scratch_on_gpu.json.gz). */
void cudnn_doubt_unmeasured(int type, const char *code, const char *function) {
    const struct xmem_device *device = xmem_device ? xmem_device() : NULL;
    int is_hopper = device && device->major == 9 && device->minor == 0;
    if (XMEM_CUDNN_VERSION / 100 != 919 || !is_hopper || type == CUDNN_DOUBLE)
        doubt(code, function);
}

/* A handle remembers its stream. */
int cudnnSetStream(void **handle, void *stream) {
    *handle = stream;
    return CUDNN_SUCCESS;
}

int cudnnGetStream(void **handle, void **stream) {
    *stream = *handle;
    return CUDNN_SUCCESS;
}

size_t cudnn_round_up(size_t count, size_t unit) { return (count + unit - 1) / unit * unit; }

/* cudnnDataType_t -> bytes; the packed int8 types and those of 8 bits or fewer count 1. */
size_t cudnn_type_bytes(int data_type) {
    static const unsigned char bytes[] = {4, 8, 2, 1, 4, 1, 1, 1, 1, 2, 8}; /* FLOAT, DOUBLE, HALF; 9 BFLOAT16, INT64 */
    return data_type >= 0 && (size_t)data_type < sizeof bytes ? bytes[data_type] : 1;
}

/* Packed, the last dimension fastest. */
void cudnn_set_tensor(struct tensor *tensor, int type, int dimensions, const int *size) {
    tensor->type = type;
    tensor->dimensions = dimensions;
    int stride = 1;
    for (int i = dimensions - 1; i >= 0; i--) {
        tensor->size[i] = size[i];
        tensor->stride[i] = stride;
        stride *= size[i];
    }
}

int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int dimensions, const int *size, const int *stride) {
    if (dimensions > MAX_DIMENSIONS)
        return CUDNN_BAD_PARAM;
    cudnn_set_tensor(tensor, type, dimensions, size);
    memcpy(tensor->stride, stride, sizeof *stride * (size_t)dimensions);
    return CUDNN_SUCCESS;
}

/* At most `wanted` dimensions are written; *dimensions is how many there are. */
int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int wanted, int *type, int *dimensions, int *size,
                               int *stride) {
    size_t count = (size_t)(wanted < tensor->dimensions ? wanted : tensor->dimensions);
    *type = tensor->type;
    *dimensions = tensor->dimensions;
    memcpy(size, tensor->size, sizeof *size * count);
    memcpy(stride, tensor->stride, sizeof *stride * count);
    return CUDNN_SUCCESS;
}

int cudnnSetFilterNdDescriptor(struct tensor *filter, int type, int format, int dimensions, const int *size) {
    if (dimensions > MAX_DIMENSIONS)
        return CUDNN_BAD_PARAM;
    cudnn_set_tensor(filter, type, dimensions, size);
    filter->format = format;
    return CUDNN_SUCCESS;
}

int cudnnGetFilterNdDescriptor(const struct tensor *filter, int wanted, int *type, int *format, int *dimensions,
                               int *size) {
    size_t count = (size_t)(wanted < filter->dimensions ? wanted : filter->dimensions);
    *type = filter->type;
    *format = filter->format;
    *dimensions = filter->dimensions;
    memcpy(size, filter->size, sizeof *size * count);
    return CUDNN_SUCCESS;
}

/* A dropout descriptor remembers which share is dropped: recurrent networks keep what it was. */
int cudnnSetDropoutDescriptor(float *descriptor, void *handle UNUSED, float share, void *states UNUSED,
                              size_t bytes UNUSED, unsigned long long seed UNUSED) {
    *descriptor = share;
    return CUDNN_SUCCESS;
}

int cudnnRestoreDropoutDescriptor(float *descriptor, void *handle, float share, void *states, size_t bytes,
                                  unsigned long long seed) {
    return cudnnSetDropoutDescriptor(descriptor, handle, share, states, bytes, seed);
}

/* The random states of dropout: 24 bytes for each thread that the GPU can hold (48 KiB on each multiprocessor of an
 * H200, benchmarks/data/ground-truth; 24 KiB where there are 1024 threads on each, as on a T4). */
#define DROPOUT_BYTES_PER_THREAD 24
#define THREADS_PER_MULTIPROCESSOR 39 /* cudaDeviceAttr */

int cudnnDropoutGetStatesSize(void *handle UNUSED, size_t *bytes) {
    int threads = 0;
    if (xmem_attribute)
        xmem_attribute(&threads, THREADS_PER_MULTIPROCESSOR, 0);
    cudnn_doubt_unmeasured(CUDNN_FLOAT, "cudnn-rnn", __func__);
    *bytes =
        (size_t)DROPOUT_BYTES_PER_THREAD * (size_t)threads * (size_t)(xmem_device ? xmem_device()->multiprocessors : 1);
    return CUDNN_SUCCESS;
}
