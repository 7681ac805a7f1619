/* libcudnn: version, streams, tensors and filters, dropout, batch normalization.
 *
 * Note [Batch norm's reserve]: cudnnBatchNormalizationForwardTrainingEx uses its workspace and keeps its reserve for
 * one kernel alone, one of CUDNN_BATCHNORM_SPATIAL_PERSISTENT; in the other modes it is as
 * cudnnBatchNormalizationForwardTraining, which has neither (NVIDIA's cuDNN API reference, 8.9, says when that kernel
 * is taken). How large they are for it is not published. torch asks for that mode in channels_last
 * (getCudnnBatchNormMode, aten/src/ATen/native/cudnn/BatchNorm.cpp; seen in 2.6 and 2.11).
 */
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

/* A handle remembers its stream. */
int cudnnSetStream(void **handle, void *stream) {
    *handle = stream;
    return CUDNN_SUCCESS;
}

int cudnnGetStream(void **handle, void **stream) {
    *stream = *handle;
    return CUDNN_SUCCESS;
}

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

/* The random states of dropout: 24 bytes for each thread that the GPU can hold (48 KiB on each multiprocessor of an
 * H200, benchmarks/data/ground-truth; 24 KiB where there are 1024 threads on each, as on a T4). */
#define DROPOUT_BYTES_PER_THREAD 24
#define THREADS_PER_MULTIPROCESSOR 39 /* cudaDeviceAttr */

int cudnnDropoutGetStatesSize(void *handle UNUSED, size_t *bytes) {
    int threads = 0;
    if (xmem_attribute)
        xmem_attribute(&threads, THREADS_PER_MULTIPROCESSOR, 0);
    doubt("cudnn-rnn", "cudnnDropoutGetStatesSize");
    *bytes =
        (size_t)DROPOUT_BYTES_PER_THREAD * (size_t)threads * (size_t)(xmem_device ? xmem_device()->multiprocessors : 1);
    return CUDNN_SUCCESS;
}

enum { BATCHNORM_SPATIAL_PERSISTENT = 2 };

/* See Note [Batch norm's reserve]. */
static int no_batchnorm_bytes(int mode, size_t *bytes, const char *function) {
    if (mode == BATCHNORM_SPATIAL_PERSISTENT)
        doubt("cudnn-batchnorm", function);
    *bytes = 0;
    return CUDNN_SUCCESS;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle UNUSED, int mode, int operations UNUSED,
                                                             void *x UNUSED, void *z UNUSED, void *y UNUSED,
                                                             void *scale UNUSED, void *activation UNUSED,
                                                             size_t *bytes) {
    return no_batchnorm_bytes(mode, bytes, __func__);
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle UNUSED, int mode, int operations UNUSED,
                                                      void *x UNUSED, void *y UNUSED, void *dy UNUSED, void *dz UNUSED,
                                                      void *dx UNUSED, void *scale UNUSED, void *activation UNUSED,
                                                      size_t *bytes) {
    return no_batchnorm_bytes(mode, bytes, __func__);
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle UNUSED, int mode, int operations UNUSED,
                                                         void *activation UNUSED, void *x UNUSED, size_t *bytes) {
    return no_batchnorm_bytes(mode, bytes, __func__);
}
