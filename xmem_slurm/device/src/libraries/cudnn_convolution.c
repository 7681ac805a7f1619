/* libcudnn: the older convolution API, which torch takes when its v8 one is switched off (cudnn_cnn.h).
 *
 * One algorithm, without workspace. The workspace sizes of the older API come from outputs.txt.
 */
#include "cudnn.h"

/* cudnnConvolutionFwdAlgoPerf_t and its two sisters: the same layout. */
struct performance {
    int algorithm, status;
    float milliseconds;
    size_t workspace;
    int determinism, math_type;
    int reserved[3];
};

static int one_algorithm(int wanted, int *count, struct performance *results, const char *function) {
    doubt("cudnn-plan", function);
    *count = wanted > 0;
    if (wanted > 0)
        results[0] = (struct performance){.algorithm = 1, .determinism = 1};
    return CUDNN_SUCCESS;
}

#define GET(direction)                                                                                                 \
    int cudnnGetConvolution##direction##Algorithm_v7(void *handle UNUSED, void *a UNUSED, void *b UNUSED,              \
                                                     void *convolution UNUSED, void *c UNUSED, int wanted, int *count, \
                                                     struct performance *results) {                                    \
        return one_algorithm(wanted, count, results, "cudnnGetConvolution" #direction "Algorithm_v7");                 \
    }
#define FIND(direction)                                                                                                \
    int cudnnFindConvolution##direction##AlgorithmEx(                                                                  \
        void *handle UNUSED, void *a UNUSED, void *a_data UNUSED, void *b UNUSED, void *b_data UNUSED,                 \
        void *convolution UNUSED, void *c UNUSED, void *c_data UNUSED, int wanted, int *count,                         \
        struct performance *results, void *workspace UNUSED, size_t workspace_bytes UNUSED) {                          \
        return one_algorithm(wanted, count, results, "cudnnFindConvolution" #direction "AlgorithmEx");                 \
    }

GET(Forward) GET(BackwardData) GET(BackwardFilter) FIND(Forward) FIND(BackwardData) FIND(BackwardFilter)
