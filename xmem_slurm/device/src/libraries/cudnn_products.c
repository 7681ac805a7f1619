/* libcudnn: convolutions that are products of matrices.
 *
 * Note [Products]: for a convolution with filters of 1 x 1, stride 1 and no padding cuDNN has engines that call
 * cuBLASLt. Without a GPU it leaves them out of its answer, as cuBLASLt cannot be asked there. On an H200 (cuDNN
 * 9.19.0; benchmarks/data/cudnn_on_gpu.json.gz has 183 questions of this kind, from five networks) they came first in
 * 36 of 36 answers for channels_last, in 120 of 123 for contiguous images whose H * W is a multiple of 4, and in 10 of
 * 24 for others. They take at most 400 bytes; but gradients of filters take one product an image, in float, where
 * images are contiguous, and parts of a sum that cuBLASLt chooses, 0 to 8.3 MiB, in channels_last: there the answer
 * stays as it is. What cuDNN answered follows, and bounds the workspace as before. Older releases have not been seen.
 */
#include <stdio.h>

#include "cudnn_backend.h"

#define OLDEST_SEEN 91900

enum { CONVOLUTION_STRIDES = 103, CONVOLUTION_POST_PADDINGS = 104, CONVOLUTION_PRE_PADDINGS = 105 };

/* Attributes of the three operations, and the engines' numbers in 9.19. */
static const struct direction {
    int operation, convolution, filter, images, engine;
} directions[] = {
    {OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 702, 703, 704, 58},
    {OPERATION_CONVOLUTION_FILTER_DESCRIPTOR, 714, 715, 716, 62},
    {OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, 708, 709, 710, 63},
};

static const int64_t *numbers(const struct descriptor *descriptor, int name, int64_t count) {
    const struct attribute *found = descriptor ? cudnn_find(descriptor, name) : NULL;
    return found && found->type == TYPE_INT64 && found->count == count ? found->data : NULL;
}

/* Whether both of two numbers are there and are `value`. */
static int both(const int64_t *pair, int64_t value) { return pair && pair[0] == value && pair[1] == value; }

/* The workspace of a product in that direction, or -1 where there is none that is known. */
static int64_t workspace_of(const struct direction *direction, const struct descriptor *operation) {
    const struct descriptor *convolution = cudnn_refers(operation, direction->convolution);
    const struct descriptor *filter = cudnn_refers(operation, direction->filter);
    const struct descriptor *images = cudnn_refers(operation, direction->images);
    const int64_t *weights = numbers(filter, TENSOR_DIMENSIONS, 4);
    const int64_t *sizes = numbers(images, TENSOR_DIMENSIONS, 4), *strides = numbers(images, TENSOR_STRIDES, 4);
    if (!weights || !sizes || !strides || !both(weights + 2, 1) || weights[1] != sizes[1] ||
        !both(numbers(convolution, CONVOLUTION_STRIDES, 2), 1) ||
        !both(numbers(convolution, CONVOLUTION_PRE_PADDINGS, 2), 0) ||
        !both(numbers(convolution, CONVOLUTION_POST_PADDINGS, 2), 0))
        return -1;
    int contiguous = strides[1] != 1, of_filters = direction->operation == OPERATION_CONVOLUTION_FILTER_DESCRIPTOR;
    if (contiguous ? sizes[2] * sizes[3] % 4 != 0 : of_filters)
        return -1;
    return of_filters ? sizes[0] * weights[0] * weights[1] * (int64_t)sizeof(float) : 0;
}

void cudnn_write_product(const struct descriptor *heuristics, char *line, size_t size) {
    const struct descriptor *graph = cudnn_refers(heuristics, ENGINEHEUR_OPERATION_GRAPH);
    const struct descriptor *operation = cudnn_refers(graph, OPERATIONGRAPH_OPS);
    *line = 0;
    for (size_t i = 0; operation && i < sizeof directions / sizeof *directions; i++) {
        if (directions[i].operation != operation->type)
            continue;
        int64_t workspace = XMEM_CUDNN_VERSION < OLDEST_SEEN ? -1 : workspace_of(&directions[i], operation);
        if (workspace >= 0)
            snprintf(line, size, "%d %d %lld %x 0\n", directions[i].engine, CUDNN_SUCCESS, (long long)workspace,
                     1 << CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    }
}
