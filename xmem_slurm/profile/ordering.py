"""A rule of the Orchestrator: the order in which one operator allocates its results.

The blocks are the same, but which hole of a segment each finds, and so what is reserved, depends on
who came first.
"""

from collections.abc import Sequence
from dataclasses import replace

from xmem_slurm.profile.analyzer import Analysis, CpuBlock
from xmem_slurm.profile.recording import Operator

_BATCH_NORM = "aten::native_batch_norm_backward"
_CONVOLUTION = "aten::convolution_backward"


def in_the_gpus_order(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Swap the births of an operator's results where a GPU allocates them in another order than the
    CPU.

    Batch norm: the gradient of the input comes first, on the CPU last. Source:
    `cudnn_batch_norm_backward` in aten/src/ATen/native/cudnn/BatchNorm.cpp,
    `batch_norm_backward_cuda_template` in .../cuda/Normalization.cuh. Depthwise convolutions: the
    gradient of the weights comes before that of the input. Source: `_conv_depthwise2d_backward_out`
    in aten/src/ATen/native/cuda/DepthwiseConv2d.cu. torch 2.4 to 2.15.
    """
    wanted = dict(analysis.operators(_BATCH_NORM, _CONVOLUTION))
    results: dict[int, list[int]] = {}
    for index, block in enumerate(blocks):
        number = next(
            (operator for operator, _ in analysis.above(block.operator) if operator in wanted), None
        )
        if number is not None and (block.freed is None or block.freed > wanted[number].last):
            results.setdefault(number, []).append(index)
    changed = list(blocks)
    for number, indices in results.items():
        for index, place in zip(
            _order(wanted[number], indices),
            [blocks[result].born for result in indices],
            strict=True,
        ):
            changed[index] = replace(changed[index], born=place)
    return changed


def _order(operator: Operator, indices: list[int]) -> list[int]:
    """Return an operator's results, given in the CPU's order, in the GPU's."""
    if operator.name == _BATCH_NORM:
        return [*indices[-1:], *indices[:-1]]
    if len(indices) > 1 and _is_depthwise(operator):
        return [indices[1], indices[0], *indices[2:]]
    return indices


def _is_depthwise(operator: Operator) -> bool:
    """Whether torch computes it by its own kernel: one channel in for each group. cuDNN has it in
    half precision.

    Source: `ConvParams::is_depthwise` and `use_cudnn_depthwise` in
    aten/src/ATen/native/Convolution.cpp.
    """
    _, images, weights = operator.inputs[:3]
    channels = images.shape[1]
    return (
        weights.shape[1] == 1 < channels
        and weights.shape[0] % channels == 0
        and images.dtype != "float16"
    )
