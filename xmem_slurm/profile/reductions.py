"""A rule of the Orchestrator: sums over rows, which a GPU's blocks of threads share and must put
together.

Where the rows are many and the columns few, several blocks sum one column and leave what they have
in a staging buffer, which torch takes from its allocator: for the gradient of a bias it can be
larger than all else in the layer. Source: `setReduceConfig` and `ReduceConfig::global_memory_size`
in aten/src/ATen/native/cuda/Reduce.cuh, torch 2.4 to 2.15.
"""

from collections.abc import Sequence
from math import ceil, prod

from xmem_slurm.profile.analyzer import Analysis, CpuBlock
from xmem_slurm.profile.recording import Tensor
from xmem_slurm.trace import ShownGpu

_OPERATORS = frozenset({"aten::sum", "aten::mean", "aten::norm", "aten::linalg_vector_norm"})

_MAX_THREADS = 512
_WARP = 32
_MIN_VALUES, _MAX_VALUES = 16, 256
"""Values that a thread sums at the least, and at the most before blocks share the work."""
_ACCUMULATOR_BYTES = 4
_SEMAPHORE_BYTES = 4

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Types whose sums are float32; others are rare where memory matters."""


def sums_over_rows(analysis: Analysis, blocks: Sequence[CpuBlock]) -> Sequence[CpuBlock]:
    """Add the staging buffers, and the counters by which the last block knows that it is the last.

    The profiler does not say along which dimension was summed: a square matrix counts as summed
    over its rows.
    """
    added: list[CpuBlock] = []
    for block in blocks:
        if block.operator < 0:
            continue
        _, row = next(analysis.above(block.operator))
        if row.name not in _OPERATORS or not row.inputs:
            continue
        staging, counters = staging_bytes(row.inputs[0], block.size, analysis.recording.gpu)
        if staging:
            added += [CpuBlock(staging, block.born + 0.25, block.born + 0.45)]
            added += [CpuBlock(counters, block.born + 0.35, block.born + 0.45)]
    return [*blocks, *added]


def staging_bytes(summed: Tensor, result_bytes: int, gpu: ShownGpu) -> tuple[int, int]:
    """Return the bytes of staging buffer and counters with which `summed` becomes a row of
    `result_bytes`.

    (0, 0) where no two blocks share a column, and where the sum is not one over the leading
    dimensions.
    """
    if summed.dtype not in _BYTES or not result_bytes:
        return 0, 0
    columns = result_bytes // _BYTES[summed.dtype]
    if not any(prod(summed.shape[kept:]) == columns for kept in range(1, len(summed.shape))):
        return 0, 0
    rows = prod(summed.shape) // columns
    at_once = next(count for count in (4, 2, 1) if columns % count == 0)
    limit = _MAX_THREADS // at_once
    wide = min(_last_power_of_2(columns // at_once, limit), _WARP)
    high = min(_last_power_of_2(rows, limit), limit // wide)
    wide = min(_last_power_of_2(columns // at_once, limit), limit // high)
    if rows < high * _MIN_VALUES and rows < _MAX_VALUES:
        return 0, 0
    values = ceil(rows / high)
    grid = ceil(columns // at_once / wide)
    target = gpu.multiprocessors * (_threads_of(gpu) // (wide * high))
    if values < _MAX_VALUES or grid > target:
        return 0, 0
    sharing = max(min(ceil(target / grid), ceil(values / _MIN_VALUES)), ceil(values / _MAX_VALUES))
    if sharing <= 1:
        return 0, 0
    return _ACCUMULATOR_BYTES * columns * sharing * wide * at_once, _SEMAPHORE_BYTES * grid


def _last_power_of_2(count: int, limit: int) -> int:
    return limit if count >= limit else 1 << max(0, count.bit_length() - 1)


def _threads_of(gpu: ShownGpu) -> int:
    """Threads that a multiprocessor holds. Source: CUDA C++ Programming Guide, Technical
    Specifications.
    """
    return {"7.5": 1024, "8.6": 1536, "8.9": 1536, "12.0": 1536}.get(gpu.capability, 2048)
