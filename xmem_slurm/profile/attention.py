"""A rule of the Orchestrator: attention as the GPU's kernels compute it.

The CPU has one fused kernel, a GPU has three, and torch chooses among them. All keep the output and
one number for each query; what else they allocate differs. Source of the choice:
`select_sdp_backend` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; of the sizes:
`attention.cu` and `attention_backward.cu` beside it and aten/src/ATen/native/cudnn/MHA.cpp. All
sizes were compared with torch's own host code on stand-in libraries (torch 2.6 to 2.15, compute
capabilities 7.5, 8.0, 8.6 and 9.0).
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from math import ceil
from typing import NamedTuple

from xmem_slurm.profile.analyzer import Analysis, CpuBlock
from xmem_slurm.profile.recording import Operator, Tensor
from xmem_slurm.trace import Category, ShownGpu

FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
DROPOUT = "xmem::attention_dropout"
"""The redirection's scope around attention with dropout, which the CPU's kernel does not have."""
LAYOUT = "xmem::attention_layout"
"""The redirection's scope around the copy that gives attention's output the strides that a GPU's
kernel gives it."""

_FLOAT = 4
"""Bytes of a float32, in which every kernel accumulates."""
_MEM_EFFICIENT_ALIGNMENT = 32
"""Queries to a multiple of which the memory-efficient kernel pads its sums."""
_FLASH_BLOCK = 128
"""Queries to a multiple of which FlashAttention pads its buffers..."""
_FLASH_HEAD = 32
"""...and the same for the size of a head."""
_LOCK_BYTES = 16
"""A lock and a counter before each tile of the memory-efficient kernel's workspace."""


_CUDNN_FROM = (2, 11)
"""The first release of torch that comes with a cuDNN that it prefers (9.15)."""


class Machine(NamedTuple):
    """What the choice of a kernel depends on beside the tensors: the GPU, torch's release, whether
    there is dropout.
    """

    gpu: ShownGpu
    release: tuple[int, int]
    dropout: bool


class Kernel(Enum):
    """The GPU's fused attention kernels."""

    FLASH = "flash"
    EFFICIENT = "memory-efficient"
    CUDNN = "cuDNN"


def output_in_the_gpus_layout(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Let the copy of attention's output that was made for its strides be the output itself, as it
    is on a GPU.
    """
    changed, copies, output, call = list(blocks), set[int](), 0, -1
    for index, block in enumerate(blocks):
        for number, row in analysis.above(block.operator):
            if row.name == LAYOUT:
                copies.add(index)
                ends = (changed[output].freed, block.freed)
                changed[output] = replace(
                    changed[output], freed=None if None in ends else max(filter(None, ends))
                )
            elif row.name == FORWARD and number != call:
                output, call = index, number  # the output is allocated first
    return [block for index, block in enumerate(changed) if index not in copies]


def attention_of_gpu(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Give attention's blocks the sizes that the GPU's kernel keeps, and add what its backward pass
    works in.
    """
    results: dict[int, list[int]] = {}
    dropout = any(True for _ in analysis.operators(DROPOUT))
    wanted = dict(analysis.operators(FORWARD, BACKWARD))
    for index, block in enumerate(blocks):
        for number, _ in analysis.above(block.operator):
            if number in wanted:
                results.setdefault(number, []).append(index)
    changed = list(blocks)
    machine = Machine(analysis.recording.gpu, analysis.recording.release, dropout)
    for number, indices in results.items():
        operator = wanted[number]
        if operator.name == FORWARD and len(indices) > 1:
            query, kernel = operator.inputs[0], kernel_for(operator.inputs, machine, masks_from=3)
            sums = indices[-1]  # the output is allocated first
            changed[sums] = replace(changed[sums], size=_sums_bytes(query, kernel))
        elif operator.name == BACKWARD:
            place = max(blocks[index].born for index in indices)
            changed += _backward_buffers(operator, machine, place)
    return changed


def kernel_for(inputs: Sequence[Tensor], machine: Machine, masks_from: int) -> Kernel:
    """Return the kernel that torch chooses; a mask is an input from `masks_from` on with as many
    rows as queries.
    """
    query = inputs[0]
    major = int(machine.gpu.capability.partition(".")[0])
    masked = any(
        len(tensor.shape) >= 2 and tensor.shape[-2:-1] == query.shape[2:3]
        for tensor in inputs[masks_from:]
    )
    if query.dtype not in ("float16", "bfloat16") or major < 8:
        return Kernel.EFFICIENT
    if (
        major in (9, 10)
        and machine.release >= _CUDNN_FROM
        and not (machine.dropout and machine.release >= (2, 15))
    ):
        return Kernel.CUDNN
    return Kernel.EFFICIENT if masked else Kernel.FLASH


def _sums_bytes(query: Tensor, kernel: Kernel) -> int:
    batch, heads, queries, _ = query.shape
    if kernel is Kernel.EFFICIENT:
        queries = _padded(queries, _MEM_EFFICIENT_ALIGNMENT)
    return batch * heads * queries * _FLOAT


def _backward_buffers(operator: Operator, machine: Machine, place: float) -> list[CpuBlock]:
    """What the backward pass works in; its three results are the CPU's."""
    query = operator.inputs[1]
    batch, heads, queries, head = query.shape
    sums, sequences = batch * heads * queries * _FLOAT, batch * heads
    kernel = kernel_for(operator.inputs[1:], machine, masks_from=5)
    if kernel is Kernel.CUDNN:
        return [_buffer(sequences * queries * head * _FLOAT + sums, place, 0.1, 0.5)]
    if kernel is Kernel.FLASH:
        padded = sequences * _padded(queries, _FLASH_BLOCK) * _FLOAT
        return [
            _buffer(padded, place, 0.1, 0.5),
            _buffer(padded * _padded(head, _FLASH_HEAD), place, 0.2, 0.5),
        ]
    return [
        _buffer(sequences * queries * head * _FLOAT, place, 0.1, 0.3),
        _buffer(sums, place, 0.15, 0.25),
        _buffer(sums, place, 0.2, 0.5),
        _buffer(_efficient_workspace(query, machine.gpu), place, 0.4, 0.5),
    ]


def _efficient_workspace(query: Tensor, gpu: ShownGpu) -> int:
    """Tiles of the query's gradient, of 128 rows for large heads where shared memory is large (8.0
    and 9.0).
    """
    batch, heads, queries, head = query.shape
    rows = 128 if head > 64 and gpu.capability in ("8.0", "9.0") else 64
    tiles = ceil(queries / rows) * ceil(head / 64)
    return batch * heads * tiles * (rows * 64 * _FLOAT + _LOCK_BYTES)


def _buffer(size: int, place: float, born: float, freed: float) -> CpuBlock:
    return CpuBlock(size, place + born, place + freed, category=Category.TEMP)


def _padded(count: int, multiple: int) -> int:
    return ceil(count / multiple) * multiple
