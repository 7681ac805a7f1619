/* libcudnn: the FLOPs of a plan that is executed: those of the convolutions and products in its graph. */
#include "cudnn_backend.h"

/* Attributes of operations: convolutions forward, for inputs and for filters; products; what is done to each element.
 */
static const int filters[] = {703, 709, 715}, outputs[] = {705, 711, 717};
enum { POINTWISE_DESCRIPTOR = 750, POINTWISE_MODE = 0, MATMUL_A = 1520, MATMUL_C = 1522 };
#define MODE_GEN_INDEX 501

/* The product of a tensor's dimensions but for the first ones. */
static double size(const struct descriptor *tensor, int but) {
    const struct attribute *sizes = cudnn_find(tensor, TENSOR_DIMENSIONS);
    double product = 1;
    for (int64_t i = but; sizes && i < sizes->count; i++)
        product *= (double)((const int64_t *)sizes->data)[i];
    return product;
}

/* cudnnDataType_t */
static const char *precision_of(const struct descriptor *tensor) {
    const struct attribute *type = cudnn_find(tensor, TENSOR_DATA_TYPE);
    switch (type ? *(const int *)type->data : 0) {
    case 1:
        return "fp64";
    case 2:
        return "fp16";
    case 9:
        return "bf16";
    case 12:
    case 13:
        return "fp8";
    default:
        return "tf32"; /* of float: torch allows it, and a GPU without it computes in fp32 */
    }
}

struct found {
    double flops;
    const char *kind, *precision;
    int masked;
};

/* Each element of a convolution's output is a product with a filter; of C, with a row of A. All of a graph is computed
 * as its first operands are. */
static void look(const struct descriptor *operation, struct found *found) {
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++) {
        const struct descriptor *filter = cudnn_refers(operation, filters[i]),
                                *output = cudnn_refers(operation, outputs[i]);
        if (filter && output)
            *found = (struct found){found->flops + 2 * size(output, 0) * size(filter, 1), "convolution",
                                    precision_of(filter), 0};
    }
    const struct descriptor *a = cudnn_refers(operation, MATMUL_A), *c = cudnn_refers(operation, MATMUL_C);
    const struct attribute *sizes = a && c ? cudnn_find(a, TENSOR_DIMENSIONS) : NULL;
    if (sizes) {
        found->flops += 2 * size(c, 0) * size(a, (int)sizes->count - 1);
        found->kind = "attention";
        found->precision = found->precision ? found->precision : precision_of(a);
    }
    const struct descriptor *pointwise = cudnn_refers(operation, POINTWISE_DESCRIPTOR);
    const struct attribute *mode = pointwise ? cudnn_find(pointwise, POINTWISE_MODE) : NULL;
    found->masked |= mode && *(const int *)mode->data == MODE_GEN_INDEX;
}

/* Attention that asks for the index of a row and a column is causal, and computes half. */
void cudnn_count(const struct descriptor *plan) {
    const struct descriptor *configuration = cudnn_refers(plan, EXECUTION_PLAN_ENGINE_CONFIG);
    const struct descriptor *graph = cudnn_refers(configuration, OUR_GRAPH);
    if (!graph)
        graph = cudnn_refers(cudnn_refers(configuration, ENGINECFG_ENGINE), ENGINE_OPERATION_GRAPH);
    const struct attribute *operations = graph ? cudnn_find(graph, OPERATIONGRAPH_OPS) : NULL;
    struct found found = {0};
    for (int64_t i = 0; operations && i < operations->count; i++)
        if (((struct descriptor **)operations->data)[i])
            look(((struct descriptor **)operations->data)[i], &found);
    if (xmem_work && found.kind)
        xmem_work(found.kind, found.precision, (int64_t)(found.masked ? found.flops / 2 : found.flops), 0, 0, 0);
}
