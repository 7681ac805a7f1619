"""Rules of the Orchestrator: what a GPU's kernels and libraries allocate besides their results."""

from collections.abc import Collection, Iterator, Sequence
from math import prod

from xmem_slurm.profile.analyzer import Analysis, CpuBlock, StepPhase
from xmem_slurm.profile.recording import Operator, aten
from xmem_slurm.trace import Category
from xmem_slurm.units import MIB

CUBLAS_WORKSPACE = 8_519_680
"""Bytes of cuBLAS's workspace: 2 of 4 MiB and 8 of 16 KiB. Source: `parseChosenWorkspaceSize` in
aten/src/ATen/cuda/CublasHandlePool.cpp, torch 2.4 to 2.15."""
CUBLAS_WORKSPACE_HOPPER = 33_554_432
"""The same on compute capability 9.0; from torch 2.15 on also on 10.0 and above."""
CUBLASLT_WORKSPACE = MIB
"""Bytes that cublasLt is given where a product and its bias are one call. Source:
`_getWorkspaceSize` in aten/src/ATen/cuda/CUDABlas.cpp, torch 2.4 to 2.15."""

_PRODUCTS = aten("mm addmm bmm baddbmm mv addmv dot")


def matrix_products(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Add the workspaces of cuBLAS and cublasLt, which torch takes from its own allocator.

    One for each thread that multiplies: a GPU's backward pass has a thread, and so a handle, of its
    own. Up to torch 2.8 cublasLt's lives for its one call, from 2.9 on it is kept; from 2.15 on
    both are given back after the call.
    """
    release = analysis.recording.release
    size = _cublas_workspace(analysis.recording.gpu.capability, release)
    keeps, keeps_lt = release < (2, 15), (2, 9) <= release < (2, 15)
    added: list[CpuBlock] = []
    with_workspace: set[tuple[bool, bool]] = set()
    for number, row, place in _on_device(analysis, blocks, _PRODUCTS):
        backward = analysis.phase_of(number) is StepPhase.BACKWARD
        with_bias = _is_biased_product(row)
        if not (with_bias and release >= (2, 15)) and (
            not keeps or (backward, False) not in with_workspace
        ):
            added.append(_workspace(size, place, None if keeps else 0.2))
            with_workspace.add((backward, False))
        if with_bias and (not keeps_lt or (backward, True) not in with_workspace):
            added.append(_workspace(CUBLASLT_WORKSPACE, place + 0.3, None if keeps_lt else 0.2))
            with_workspace.add((backward, True))
    return [*blocks, *added]


def _workspace(size: int, born: float, lifetime: float | None) -> CpuBlock:
    if lifetime is None:
        return CpuBlock(size, born, None, category=Category.OTH)
    return CpuBlock(size, born, born + lifetime)


def _cublas_workspace(capability: str, release: tuple[int, int]) -> int:
    major, _, minor = capability.partition(".")
    hopper = (int(major), int(minor)) == (9, 0) or (release >= (2, 15) and int(major) >= 10)
    return CUBLAS_WORKSPACE_HOPPER if hopper else CUBLAS_WORKSPACE


def _is_biased_product(row: Operator) -> bool:
    """Whether cublasLt takes this product: it has a bias, a vector. Source:
    aten/src/ATen/native/cuda/Blas.cpp.
    """
    return row.name == "aten::addmm" and len(row.inputs) >= 3 and len(row.inputs[0].shape) == 1


EMBEDDING_SORT_FROM = 3072
"""Gradients of an embedding with more indices than this are summed in sorted order. Source:
`embedding_dense_backward` in aten/src/ATen/native/cuda/Embedding.cu, torch 2.4 to 2.15."""


def embedding_gradients(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Add the index arrays with which a GPU sorts the gradients of an embedding; the CPU sums them
    in a loop.
    """
    added = []
    for _, row, place in _on_device(analysis, blocks, ("aten::embedding_dense_backward",)):
        count = prod(row.inputs[1].shape) if len(row.inputs) > 1 else 1
        if count > EMBEDDING_SORT_FROM:
            added += [
                CpuBlock(8 * count, place, place + 0.2),
                CpuBlock(8 * count, place + 0.1, place + 0.2),
            ]
    return [*blocks, *added]


CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")


def convolutions(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Add what a GPU's convolutions take while they compute each result, in place of what the CPU
    copied first.

    The probe has it from torch on the stand-in libraries, and so from the job's own cuDNN where
    that could be asked; there is none in recordings of a CPU build
    (`probe/_xmem/cpu/workspaces.py`).
    """
    wanted = {number: row for number, row in analysis.operators(*CONVOLUTIONS) if row.workspaces}
    kept: list[CpuBlock] = []
    results: dict[int, list[float]] = {}
    for block in blocks:
        number = next(
            (operator for operator, _ in analysis.above(block.operator) if operator in wanted), None
        )
        if number is None:
            kept.append(block)
        elif block.freed is None or block.freed > wanted[number].last:
            kept.append(block)
            results.setdefault(number, []).append(block.born)
    for number, born in results.items():
        places, last = sorted(born), len(born) - 1
        sizes = enumerate(wanted[number].workspaces)
        kept += [
            _workspace(size, places[min(index, last)] + 0.25, 0.2) for index, size in sizes if size
        ]
    return kept


def _on_device(
    analysis: Analysis, blocks: Sequence[CpuBlock], names: Collection[str]
) -> Iterator[tuple[int, Operator, float]]:
    """Yield (row's number, operator, place just after its first block on the GPU) of each such
    operator with one.
    """
    first_blocks: dict[int, tuple[int, Operator, float]] = {}
    for block in blocks:
        for number, row in analysis.above(block.operator):
            if row.name in names:
                first_blocks.setdefault(number, (number, row, block.born + 0.25))
    yield from sorted(first_blocks.values())
