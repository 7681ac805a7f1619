"""The Analyzer (xMem, section 3.2): which blocks of memory were there, whose were they, and how
long did they live?

It pairs the profiler's allocations and frees to blocks, and gives each block the operator that made
it, the module and the phase it was made in, what it is for, and whether it would lie on the GPU.
What the pairing must stand:

- An address is used again and again: a block ends at its free, or at the next allocation of its
  address where torch did not report the free.
- A block that is freed after the recording ended has no end.
- A block from before the recording began has no allocation: it lies on the host, for the recording
  began when the job first used the GPU.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from xmem_slurm.profile.recording import Memory, Operator, Recording, aten
from xmem_slurm.trace import Category

TO_DEVICE, ON_DEVICE, TO_HOST = "xmem::to_device", "xmem::on_device", "xmem::to_host"
BACKWARD, STEP, MODULE, TAG = "xmem::backward", "Optimizer.step#", "nn.Module: ", "xmem::tag:"

_MAY_MIX = aten(
    """
    copy_ _to_copy to clone set_ set_data _has_compatible_shallow_copy_type index index_put
    index_put_ _index_put_impl_ item _local_scalar_dense
    """
)
"""Operators that take tensors of the host and of a GPU together; all others refuse to, but for
single numbers."""


class StepPhase(StrEnum):
    """What a step was doing."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    SCRIPT = "script"
    """Outside of every module: the batch, the loss, metrics."""


@dataclass(frozen=True, slots=True)
class CpuBlock:
    """One allocation's life. `size` in bytes; `born` and `freed` are places among the recording's
    rows.

    A place need not be whole: what the Orchestrator adds stands between two rows. `operator` is the
    row of the operator that made the block, -1 for none; `module` is its name within the model, ""
    outside of every module.
    """

    size: int
    born: float
    freed: float | None
    operator: int = -1
    phase: StepPhase = StepPhase.SCRIPT
    module: str = ""
    category: Category = Category.TEMP
    on_device: bool = True


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the Analyzer found: all blocks, in the order of their allocation, and where the phases
    lie.
    """

    recording: Recording
    blocks: Sequence[CpuBlock]
    backwards: Sequence[tuple[int, int]]
    """First and last row of each backward pass."""
    steps: Sequence[int]
    """The last row of each optimizer step."""

    def operators(self, *names: str) -> Iterator[tuple[int, Operator]]:
        """Yield each operator of one of these names, with its row."""
        wanted = frozenset(names)
        for number, row in enumerate(self.recording.rows):
            if isinstance(row, Operator) and row.name in wanted:
                yield number, row

    def above(self, number: int) -> Iterator[tuple[int, Operator]]:
        """Yield an operator and all that it was called from, innermost first."""
        return self.recording.above(number)

    def phase_of(self, number: int) -> StepPhase:
        """Return the phase in which the operator at row `number` ran."""
        return _whereabouts(self.recording, number)[0]


def analyze(recording: Recording) -> Analysis:
    """Pair, attribute and sort what `recording` holds."""
    blocks = _pair(recording.rows)
    on_device = _on_device(recording, blocks)
    tagged = _tagged(recording, blocks)
    operators = [
        (number, row) for number, row in enumerate(recording.rows) if isinstance(row, Operator)
    ]
    backwards = [(number, row.last) for number, row in operators if row.name == BACKWARD]
    steps = [row.last for _, row in operators if row.name.startswith(STEP)]
    for index, block in enumerate(blocks):
        phase, module = _whereabouts(recording, block.operator)
        placed = replace(block, phase=phase, module=module, on_device=on_device[index])
        blocks[index] = replace(placed, category=tagged.get(index) or _by_life(placed, backwards))
    return Analysis(recording, blocks, backwards, steps)


def _pair(rows: Sequence[Operator | Memory]) -> list[CpuBlock]:
    """Return the blocks with size, life and operator, in the order of their allocation."""
    blocks: list[CpuBlock] = []
    live: dict[int, int] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Memory):
            continue
        open_one = live.pop(row.address, None)
        if open_one is not None:
            blocks[open_one] = replace(blocks[open_one], freed=number)
        if row.size > 0:
            live[row.address] = len(blocks)
            blocks.append(CpuBlock(row.size, number, None, row.parent))
    return blocks


def _whereabouts(recording: Recording, operator: int) -> tuple[StepPhase, str]:
    """Return the phase and the module in which an operator ran."""
    module = ""
    for _, row in recording.above(operator):
        if row.name.startswith(STEP):
            return StepPhase.OPTIMIZER, ""
        if row.name == BACKWARD:
            return StepPhase.BACKWARD, module
        if row.name.startswith(MODULE):
            module = module or row.name.removeprefix(MODULE)
    return (StepPhase.FORWARD, module) if module else (StepPhase.SCRIPT, "")


def _by_life(block: CpuBlock, backwards: Sequence[tuple[int, int]]) -> Category:
    """Say what a block without a tag is, from when it was made and freed; as `trace.read` does."""
    if block.freed is None:
        return Category.OTH
    index = bisect_right(backwards, block.born, key=lambda span: span[0])
    if (
        block.phase in (StepPhase.FORWARD, StepPhase.SCRIPT)
        and index < len(backwards)
        and block.freed > backwards[index][0]
    ):
        return Category.ACT
    return Category.TEMP


def _tagged(recording: Recording, blocks: Sequence[CpuBlock]) -> dict[int, Category]:
    """Resolve the tags; the first one of a block stands: a gradient that becomes a state was made
    as a gradient.
    """
    categories: dict[int, Category] = {}
    live: dict[int, int] = {}
    index_by_birth = {block.born: index for index, block in enumerate(blocks)}
    for number, row in enumerate(recording.rows):
        if isinstance(row, Memory):
            live.pop(row.address, None)
            if number in index_by_birth:
                live[row.address] = index_by_birth[number]
        elif row.name.startswith(TAG):
            tag = recording.tags[int(row.name.removeprefix(TAG))]
            for address in tag.addresses:
                if address in live:
                    categories.setdefault(live[address], Category(tag.category))
    return categories


def _on_device(recording: Recording, blocks: Sequence[CpuBlock]) -> list[bool]:
    """Decide for each block whether it would lie on the GPU.

    A copy to the GPU and a tensor created there are known by the redirection's scopes. What an
    operator makes lies where its inputs lie. A tensor that was made out of nothing lies on the GPU
    if it is later used together with one that does, for torch refuses to mix them; that may change
    what was decided for others, so it is repeated.
    """
    used_with_gpu: set[int] = set()
    while True:
        decided, used_together = _decide(recording, blocks, used_with_gpu)
        if used_together <= used_with_gpu:
            return decided
        used_with_gpu |= used_together


def _decide(
    recording: Recording, blocks: Sequence[CpuBlock], used_with_gpu: set[int]
) -> tuple[list[bool], set[int]]:
    """Say of each allocation whether it would lie on the GPU, and which of the others were used
    with one that does.
    """
    decided = [False] * len(blocks)
    used_together: set[int] = set()
    live: dict[int, int] = {}
    with_gpu: dict[int, bool] = {}
    index_by_birth = {block.born: index for index, block in enumerate(blocks)}
    for number, row in enumerate(recording.rows):
        if isinstance(row, Memory):
            live.pop(row.address, None)
            if number in index_by_birth:
                index = live[row.address] = index_by_birth[number]
                decided[index] = index in used_with_gpu or _made_on_device(
                    recording, row.parent, with_gpu
                )
            continue
        inputs = [(live[tensor.address], tensor) for tensor in row.inputs if tensor.address in live]
        if row.inputs:
            with_gpu[number] = any(decided[index] for index, _ in inputs)
        if with_gpu.get(number) and row.name not in _MAY_MIX:
            used_together |= {
                index for index, tensor in inputs if tensor.shape and not decided[index]
            }
    return decided, used_together


def _made_on_device(recording: Recording, operator: int, with_gpu: dict[int, bool]) -> bool:
    """Follow the calls outwards to the first one that says where its result lies."""
    for number, row in recording.above(operator):
        if row.name in (TO_DEVICE, ON_DEVICE):
            return True
        if row.name == TO_HOST:
            return False
        if number in with_gpu and not _inside_move(recording, number):
            return with_gpu[number]
    return False


def _inside_move(recording: Recording, operator: int) -> bool:
    return any(row.name in (TO_DEVICE, ON_DEVICE, TO_HOST) for _, row in recording.above(operator))
