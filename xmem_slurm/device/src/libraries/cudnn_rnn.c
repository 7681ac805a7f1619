/* libcudnn: recurrent networks (cudnn_adv.h, "RNN API v8").
 *
 * Note [RNN weights]: cuDNN keeps all weights of an RNN in one buffer and tells where each matrix and bias lies. Here,
 * as in the real library, the matrices of all layers come first (per layer and direction: input matrices of every gate,
 * then recurrent ones, then the projection), then all biases in the same order, all packed.
 *
 * Note [RNN scratch]: the sizes of workspace and reserve are not published. These formulas are what an H200 with cuDNN
 * 9.19 answered to 13,360 questions (benchmarks/data/cudnn_scratch_on_gpu.json.gz; `python -m
 * benchmarks.cudnn_scratch_on_gpu --stand-ins` compares). Weights are the same to the byte, and reserves but for 62 at
 * most. Workspaces are less by 508 bytes at most, as their parts are rounded up, and never more. torch takes one of the
 * persistent algorithms for small networks (get_algo, native/cudnn/RNN.cpp); these were asked in half precision alone.
 * Where a number was met on one side of a limit only, as batches of 9 and 99 were not, the limit gives more.
 *
 * What stands for what: a step is the state of one time step, a sequence that of all; what comes in and goes out is
 * copied into a form of cuDNN's own unless it is packed, for gradients twice.
 */
#include "cudnn.h"

enum cell { RELU, TANH, LSTM, GRU };
enum bias { NO_BIAS, INPUT_BIAS, BOTH_BIASES, RECURRENT_BIAS };
enum { STANDARD_ALGORITHM = 0, PERSISTENT_ALGORITHM = 1, PADDED_IO_ENABLED = 1 };
enum { HEAD_BYTES = 256 };

struct rnn {
    int cell, bias, bidirectional, type;
    int input, hidden, projection, layers;
    int algorithm, packed, drops;
};

struct rnn_data {
    int type, steps, batch, vector;
};

int cudnnSetRNNDescriptor_v8(struct rnn *rnn, int algorithm, int cell, int bias, int direction, int input_mode UNUSED,
                             int type, int math_precision UNUSED, int math_type UNUSED, int input, int hidden,
                             int projection, int layers, const float *dropout, unsigned flags) {
    int packed = !(flags & PADDED_IO_ENABLED), drops = dropout && *dropout > 0;
    *rnn = (struct rnn){cell, bias, direction, type, input, hidden, projection, layers, algorithm, packed, drops};
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
    cudnn_doubt_unmeasured(rnn->type, "cudnn-rnn", __func__);
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

static size_t at_least(size_t count, size_t least) { return count < least ? least : count; }

/* How many steps at a time the standard algorithm's backward pass has gates for: it goes through layers and steps as a
 * wavefront, of so many steps of each. Of one layer it has all at once. */
static size_t steps_at_once(size_t layers, size_t batch, size_t steps) {
    size_t wave = batch == 1 ? 32 : batch < 10 ? 16 : batch <= 16 || steps > 100 ? 8 : batch < 100 ? 4 : 2;
    size_t most = wave * layers + at_least(wave, 8);
    return layers > 1 && most < steps ? most : steps;
}

/* Elements of workspace beside the weights: copies of what comes in and goes out, and the larger of what the forward
 * and the backward pass take. */
static size_t workspace_elements(const struct rnn *rnn, const struct rnn_data *data, int training) {
    size_t layers = (size_t)rnn->layers, directions = (size_t)directions_of(rnn), gates = (size_t)gates_of(rnn);
    size_t batch = (size_t)data->batch, steps = (size_t)data->steps, hidden = (size_t)rnn->hidden;
    size_t step = batch * hidden, sequence = steps * step, output = batch * (size_t)output_of(rnn);
    size_t widest = steps * batch * at_least((size_t)rnn->input, hidden), between = layers > 1 ? sequence : 0;
    size_t dropped = rnn->drops ? sequence : 0, projected = is_projected(rnn) ? directions * sequence : 0;
    size_t copied = steps * (batch * (size_t)rnn->input + directions * output) +
                    2 * layers * directions * (output + (rnn->cell == LSTM ? step : 0));
    size_t forward, backward;
    if (rnn->algorithm == STANDARD_ALGORITHM) {
        size_t chunk = steps < 256 ? steps : 256;
        size_t states = rnn->cell == LSTM ? 6 : rnn->cell == GRU ? 3 : 1, gradients = rnn->cell == LSTM ? 3 : 1;
        forward = states * layers * step + gates * chunk * step + dropped;
        backward = gradients * layers * step + steps_at_once(layers, batch, steps) * step + widest;
        if (rnn->bidirectional) {
            forward = (2 * states + 4) * layers * step + (2 * gates + 4) * sequence;
            backward = (2 * gradients + 4) * layers * step + 2 * (sequence + between) + 4 * widest;
        }
    } else {
        size_t states = rnn->cell == LSTM ? 4 : 2, gradients = rnn->cell == LSTM ? 13 : rnn->cell == GRU ? 15 : 10;
        forward = states * layers * step + 5 * gates * sequence + dropped;
        backward = states * layers * step + gradients * sequence + widest + between;
        if (rnn->bidirectional) {
            forward = (2 * states + 2) * layers * step + (6 * gates + 4) * sequence;
            backward = (2 * states + 2) * layers * step + (gradients + 1) * sequence + 4 * widest + 2 * between;
        }
        if (rnn->algorithm == PERSISTENT_ALGORITHM) /* of few samples it is as much as of 304 */
            backward += at_least(hidden * (8 * 304 + batch), 8 * sequence) - 8 * sequence;
    }
    if (rnn->packed)
        copied = 0;
    return (training ? at_least(forward + copied, backward + 2 * copied) : forward + copied) + projected;
}

/* Bytes that are kept for the backward pass: gates, states and outputs, and which outputs were dropped. */
static size_t reserve_bytes(const struct rnn *rnn, const struct rnn_data *data) {
    size_t layers = (size_t)rnn->layers, directions = (size_t)directions_of(rnn);
    size_t samples = (size_t)data->batch * (size_t)data->steps * directions, projection = (size_t)rnn->projection;
    size_t sequence = samples * (size_t)rnn->hidden, output = samples * (size_t)output_of(rnn);
    size_t kept = rnn->cell == LSTM ? 6 : rnn->cell == GRU ? 7 : 2;
    size_t elements = (kept * layers - 1) * sequence;
    if (is_projected(rnn))
        elements += layers * (sequence + samples * projection);
    size_t dropped = rnn->drops ? (layers - 1) * directions * cudnn_round_up((output + 7) / 8, 32) : 0;
    return elements * cudnn_type_bytes(rnn->type) + dropped + HEAD_BYTES;
}

/* See Note [RNN scratch]. `mode` 1 is training; inference needs no reserve. */
int cudnnGetRNNTempSpaceSizes(void *handle UNUSED, const struct rnn *rnn, int mode, const struct rnn_data *data,
                              size_t *workspace, size_t *reserve) {
    size_t element = cudnn_type_bytes(rnn->type), pseudo_layers = (size_t)(rnn->layers * directions_of(rnn));
    size_t matrices = (size_t)matrices_before(rnn, (int)pseudo_layers);
    size_t lengths = rnn->packed ? 0 : 2 * sizeof(int) * cudnn_round_up((size_t)data->batch, 4);
    cudnn_doubt_unmeasured(rnn->type, "cudnn-rnn", __func__);
    if (workspace)
        *workspace = 8 * MIB * pseudo_layers + HEAD_BYTES + lengths +
                     element * (matrices + workspace_elements(rnn, data, mode == 1));
    if (reserve)
        *reserve = mode == 1 ? reserve_bytes(rnn, data) : 0;
    return CUDNN_SUCCESS;
}
