/* libcudnn: what batch norm takes beside its inputs and outputs (cudnn_ops.h).
 *
 * Note [Batch norm's scratch]: cudnnBatchNormalizationForwardTrainingEx has workspace and reserve for one kernel alone,
 * one of CUDNN_BATCHNORM_SPATIAL_PERSISTENT; in the other modes it is as cudnnBatchNormalizationForwardTraining, which
 * has neither (NVIDIA's cuDNN API reference, 8.9, says when that kernel is taken). torch asks for that mode in
 * channels_last (getCudnnBatchNormMode, aten/src/ATen/native/cudnn/BatchNorm.cpp; seen in 2.6 and 2.11), and for no
 * activation, for which there is no reserve. How large the workspace is is not published. On an H200 (cuDNN 9.19) it
 * was, to the byte, for all of 1,300 inputs with a number of channels that 4 divides: for each tile of 64 channels and
 * each block of rows, of which a row is the channels of one pixel, two sums a channel, forward one more word; and a
 * head. A block has 96 rows backward, and forward 64 of float, 160 of narrower types. With 3 and
 * 33 channels, 176 inputs, it was less (benchmarks/data/cudnn_scratch_on_gpu.json.gz).
 */
#include "cudnn.h"

enum { SPATIAL_PERSISTENT = 2, TILE = 64 };

/* `words` of each tile and block, and a word of each tile, after `head` bytes. */
static int give_workspace(int mode, const struct tensor *x, size_t rows_of_a_block, size_t words, size_t head,
                          size_t *bytes, const char *function) {
    *bytes = 0;
    if (mode != SPATIAL_PERSISTENT)
        return CUDNN_SUCCESS;
    size_t rows = (size_t)x->size[0];
    for (int i = 2; i < x->dimensions; i++)
        rows *= (size_t)x->size[i];
    size_t tiles = cudnn_round_up((size_t)x->size[1], TILE) / TILE;
    size_t blocks = cudnn_round_up(rows, rows_of_a_block) / rows_of_a_block;
    *bytes = head + tiles * sizeof(float) * (1 + words * blocks);
    cudnn_doubt_unmeasured(x->type, "cudnn-batchnorm", function);
    return CUDNN_SUCCESS;
}

int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *handle UNUSED, int mode, int operations UNUSED,
                                                             const struct tensor *x, void *z UNUSED, void *y UNUSED,
                                                             void *scale UNUSED, void *activation UNUSED,
                                                             size_t *bytes) {
    return give_workspace(mode, x, x->type == CUDNN_FLOAT ? 64 : 160, 2 * TILE + 1, 1072, bytes, __func__);
}

int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *handle UNUSED, int mode, int operations UNUSED,
                                                      const struct tensor *x, void *y UNUSED, void *dy UNUSED,
                                                      void *dz UNUSED, void *dx UNUSED, void *scale UNUSED,
                                                      void *activation UNUSED, size_t *bytes) {
    return give_workspace(mode, x, 96, 2 * TILE, 1056, bytes, __func__);
}

int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle UNUSED, int mode, int operations UNUSED,
                                                         void *activation UNUSED, const struct tensor *x,
                                                         size_t *bytes) {
    if (mode == SPATIAL_PERSISTENT)
        cudnn_doubt_unmeasured(x->type, "cudnn-batchnorm", __func__);
    *bytes = 0;
    return CUDNN_SUCCESS;
}
