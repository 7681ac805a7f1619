/* FLOPs of attention in one kernel, by the kernel's name and grid.
 *
 * FlashAttention-2 (torch's own and the package flash_attn; csrc/flash_attn/src/flash_{fwd,bwd}_launch_template.h): the
 * name has the head's size and the rows and columns of a block, whether it is causal, and the type; the grid is
 * (blocks, samples, heads). As many keys as queries are taken; a causal one computes half.
 *
 * cutlass' memory-efficient attention (torch, mem_eff_attention/kernel_forward.h, 2.4 to 2.11): the forward kernel's
 * argument has the sizes, which its grid confirms. Its backward kernel is taken to follow the last forward one with as
 * many heads and samples.
 */
#include <stdio.h>

#include "runtime.h"

#define FORWARD 4.0 /* two products */
#define BACKWARD 10.0

static double last_forward;

static const char *precision_of(const char *name) {
    return strstr(name, "bfloat16_t") || strstr(name, "_bf16_") ? "bf16"
           : strstr(name, "half_t") || strstr(name, "_f16_")    ? "fp16"
                                                                : "fp32";
}

static void flash(const char *name, struct dim3 grid, double products) {
    const char *traits = strstr(name, "kernel_traitsILi");
    int head = 0, rows = 0, columns = 0, dropout = 0, causal = 0;
    const char *inner = strstr(name, "Flash_kernel_traitsI"), *options = inner ? strstr(inner, "EELb") : NULL;
    if (!traits || sscanf(traits, "kernel_traitsILi%dELi%dELi%dE", &head, &rows, &columns) != 3)
        return;
    if (options)
        sscanf(options, "EELb%dELb%dE", &dropout, &causal);
    double length = (double)grid.x * (products == FORWARD ? rows : columns);
    double flops = products * grid.y * grid.z * length * length * head * (causal ? 0.5 : 1);
    xmem_work("attention", precision_of(name), (int64_t)flops, 0, 0, 0);
}

/* AttentionKernel::Params: seven pointers and an offset, three pointers, window and scale, then these. */
struct sizes {
    char before[96];
    int32_t head, head_of_values, queries, keys, keys_absolute;
    uint8_t mask;
};

static void memory_efficient(const char *name, struct dim3 grid, void **arguments) {
    int rows = 0, columns = 0;
    const char *block = strstr(name, "aligned_");
    if (!block || sscanf(block, "aligned_%dx%d", &rows, &columns) != 2 || !arguments || !arguments[0])
        return;
    const struct sizes *of = arguments[0];
    double queries = (double)grid.x * rows, keys = queries, heads = columns, causal = 1;
    if (of->queries > 0 && of->keys > 0 && of->head > 0 && of->head <= 65536 &&
        (unsigned)((of->queries + rows - 1) / rows) == grid.x) {
        queries = of->queries;
        keys = of->keys;
        heads = (of->head + of->head_of_values) / 2.0;
        causal = of->mask ? 0.5 : 1;
    }
    last_forward = FORWARD * grid.y * grid.z * queries * keys * heads * causal;
    xmem_work("attention", precision_of(name), (int64_t)last_forward, 0, 0, 0);
}

void xmem_count_attention(const char *name, struct dim3 grid, void **arguments) {
    if (strstr(name, "flash_fwd_kernel") || strstr(name, "flash_fwd_splitkv_kernel"))
        flash(name, grid, FORWARD);
    else if (strstr(name, "flash_bwd_dq_dk_dv_loop"))
        flash(name, grid, BACKWARD);
    else if (strstr(name, "fmha_cutlassF_"))
        memory_efficient(name, grid, arguments);
    else if (strstr(name, "fmha_cutlassB_"))
        xmem_work("attention", precision_of(name), (int64_t)(last_forward * BACKWARD / FORWARD), 0, 0, 0);
}

int xmem_is_attention(const char *name) {
    return name && (strstr(name, "flash_fwd_") || strstr(name, "flash_bwd_dq_dk_dv") || strstr(name, "fmha_cutlass"));
}
