/* libcudnn: recurrent networks (cudnn_adv.h, "RNN API v8").
 *
 * Note [RNN weights]: cuDNN keeps all weights of an RNN in one buffer and tells where each matrix and bias lies. Here,
 * as in the real library, the matrices of all layers come first (per layer and direction: input matrices of every gate,
 * then recurrent ones, then the projection), then all biases in the same order, all packed. The size is exact as far as
 * the real one does not pad.
 *
 * Note [RNN scratch]: the real sizes of workspace and reserve depend on the algorithm and are not published. Known are
 * those of an LSTM of two layers on an H200 (cuDNN 9.19.0, three shapes and types: the runs of "lstm" in
 * benchmarks/data/ground-truth). Its reserve is, to the byte, the gates and the cell state of every layer and time
 * step, the outputs of all layers but the last, a bit for each of those, which dropout may drop, and 256 bytes. Its
 * workspace is 16 MiB and 768 bytes, a copy of all matrices, 20 outputs of a step and 7 of the whole sequence; for
 * other numbers of layers 10 a layer, and the gates of all but one output, are a guess. So is all of other cells; all
 * of it is a doubt.
 */
#include "cudnn.h"

enum cell { RELU, TANH, LSTM, GRU };
enum bias { NO_BIAS, INPUT_BIAS, BOTH_BIASES, RECURRENT_BIAS };

struct rnn {
    int cell, bias, bidirectional, type;
    int input, hidden, projection, layers;
};

struct rnn_data {
    int type, steps, batch, vector;
};

int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int algorithm UNUSED, int cell, int bias, int direction,
                             int input_mode UNUSED, int type, int math_precision UNUSED, int math_type UNUSED,
                             int input, int hidden, int projection, int layers, void *dropout UNUSED,
                             unsigned flags UNUSED) {
    *rnn = (struct rnn){cell, bias, direction, type, input, hidden, projection, layers};
    return CUDNN_SUCCESS;
}

int cudnnSetRNNDataDescriptor(struct rnn_data *data, int type, int layout UNUSED, int steps, int batch, int vector,
                              const int *lengths UNUSED, void *padding UNUSED) {
    *data = (struct rnn_data){type, steps, batch, vector};
    return CUDNN_SUCCESS;
}

static int gates_of(const struct rnn *rnn) { return rnn->cell == LSTM ? 4 : rnn->cell == GRU ? 3 : 1; }

static int directions_of(const struct rnn *rnn) { return rnn->bidirectional ? 2 : 1; }

static int is_projected(const struct rnn *rnn) { return rnn->projection > 0 && rnn->projection < rnn->hidden; }

/* What a layer passes on, for one direction. */
static int64_t output_of(const struct rnn *rnn) { return is_projected(rnn) ? rnn->projection : rnn->hidden; }

/* A pseudo layer is a layer and direction: number layer * directions + direction. */
static int64_t input_of(const struct rnn *rnn, int pseudo_layer) {
    int first = pseudo_layer < directions_of(rnn);
    return first ? rnn->input : output_of(rnn) * directions_of(rnn);
}

static int64_t matrix_elements(const struct rnn *rnn, int pseudo_layer) {
    int64_t per_gate = rnn->hidden * (input_of(rnn, pseudo_layer) + output_of(rnn));
    return gates_of(rnn) * per_gate + (is_projected(rnn) ? (int64_t)rnn->projection * rnn->hidden : 0);
}

static int64_t bias_elements(const struct rnn *rnn) {
    int kinds = rnn->bias == NO_BIAS ? 0 : rnn->bias == BOTH_BIASES ? 2 : 1;
    return (int64_t)kinds * gates_of(rnn) * rnn->hidden;
}

/* Elements before the matrices of a pseudo layer; for the number of pseudo layers, all matrices. */
static int64_t matrices_before(const struct rnn *rnn, int pseudo_layer) {
    int64_t elements = 0;
    for (int i = 0; i < pseudo_layer; i++)
        elements += matrix_elements(rnn, i);
    return elements;
}

int cudnnGetRNNWeightSpaceSize(void *handle UNUSED, const struct rnn *rnn, size_t *bytes) {
    int pseudo_layers = rnn->layers * directions_of(rnn);
    int64_t elements = matrices_before(rnn, pseudo_layers) + pseudo_layers * bias_elements(rnn);
    doubt("cudnn-rnn", "cudnnGetRNNWeightSpaceSize");
    *bytes = (size_t)elements * cudnn_type_bytes(rnn->type);
    return CUDNN_SUCCESS;
}

static void give(struct tensor *descriptor, void **address, int type, int rows, int columns, const char *at) {
    if (descriptor)
        cudnn_set_tensor(descriptor, type, 3, (int[]){1, rows, columns});
    if (address)
        *address = (void *)at;
}

/* Where matrix and bias of a linear layer lie: numbers 0 to gates - 1 are the input ones, then the recurrent ones, then
 * the projection. What is not there gets a null address. Matrices are 1 x rows x columns. A caller that wants only one
 * of the two passes null for the other. */
int cudnnGetRNNWeightParams(void *handle UNUSED, const struct rnn *rnn, int pseudo_layer, size_t weight_bytes UNUSED,
                            const void *weights, int linear, struct tensor *matrix, void **matrix_address,
                            struct tensor *bias, void **bias_address) {
    int gates = gates_of(rnn);
    size_t element = cudnn_type_bytes(rnn->type);
    int64_t columns = input_of(rnn, pseudo_layer), rows = rnn->hidden;
    int64_t offset = matrices_before(rnn, pseudo_layer);
    if (matrix_address)
        *matrix_address = NULL;
    if (bias_address)
        *bias_address = NULL;
    if (linear == 2 * gates) {
        if (!is_projected(rnn))
            return CUDNN_SUCCESS;
        offset += gates * rows * (columns + output_of(rnn));
        rows = rnn->projection;
        columns = rnn->hidden;
    } else if (linear >= gates) {
        offset += gates * rows * columns + (linear - gates) * rows * output_of(rnn);
        columns = output_of(rnn);
    } else {
        offset += linear * rows * columns;
    }
    give(matrix, matrix_address, rnn->type, (int)rows, (int)columns, (const char *)weights + (size_t)offset * element);

    int has_bias = linear < gates ? rnn->bias == INPUT_BIAS || rnn->bias == BOTH_BIASES
                                  : rnn->bias == RECURRENT_BIAS || rnn->bias == BOTH_BIASES;
    if (linear == 2 * gates || !has_bias)
        return CUDNN_SUCCESS;
    int place = rnn->bias == BOTH_BIASES ? linear : linear % gates;
    offset = matrices_before(rnn, rnn->layers * directions_of(rnn)) + pseudo_layer * bias_elements(rnn) +
             (int64_t)place * rnn->hidden;
    give(bias, bias_address, rnn->type, rnn->hidden, 1, (const char *)weights + (size_t)offset * element);
    return CUDNN_SUCCESS;
}

/* See Note [RNN scratch]. `mode` 1 is training; inference needs no reserve. */
int cudnnGetRNNTempSpaceSizes(void *handle UNUSED, const struct rnn *rnn, int mode, const struct rnn_data *data,
                              size_t *workspace, size_t *reserve) {
    size_t element = cudnn_type_bytes(rnn->type), layers = (size_t)rnn->layers, gates = (size_t)gates_of(rnn);
    size_t step = (size_t)data->batch * (size_t)rnn->hidden * (size_t)directions_of(rnn);
    size_t sequence = step * (size_t)data->steps;
    size_t matrices = (size_t)matrices_before(rnn, rnn->layers * directions_of(rnn));
    size_t outputs = rnn->cell == LSTM ? layers - 1 : layers;
    size_t kept = layers > 1 ? gates * layers - 1 : gates + 3;
    doubt("cudnn-rnn", "cudnnGetRNNTempSpaceSizes");
    if (workspace)
        *workspace = 16 * MIB + 768 + (matrices + 10 * layers * step + kept * sequence) * element;
    if (reserve)
        *reserve = mode == 1 ? sequence * (layers * (gates + 1) + outputs) * element + sequence * outputs / 8 + 256 : 0;
    return CUDNN_SUCCESS;
}
