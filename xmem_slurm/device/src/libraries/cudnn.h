/* Shared by the sources of the stand-in libcudnn. Source of types and numbers: cudnn.h 9.1 to 9.20 (cudnn_graph.h,
 * cudnn_ops.h, cudnn_cnn.h, cudnn_adv.h). */
#ifndef XMEM_CUDNN_H
#define XMEM_CUDNN_H

#include "../xmem.h"

enum { CUDNN_SUCCESS = 0, CUDNN_ALLOCATION_FAILED = 2, CUDNN_BAD_PARAM = 3, CUDNN_NOT_SUPPORTED = 3000 };

enum { CUDNN_FLOAT = 0, CUDNN_DOUBLE = 1 }; /* cudnnDataType_t */

#define MAX_DIMENSIONS 16

/* cudnnTensorDescriptor_t and cudnnFilterDescriptor_t (which has no strides). */
struct tensor {
    int type, dimensions, format;
    int size[MAX_DIMENSIONS], stride[MAX_DIMENSIONS];
};

void cudnn_doubt_unmeasured(int type, const char *code, const char *function);
size_t cudnn_round_up(size_t count, size_t unit);
size_t cudnn_type_bytes(int data_type);
void cudnn_set_tensor(struct tensor *tensor, int type, int dimensions, const int *size);

#endif
