"""Where do the allocator history that a real GPU left and the one of a dry run first part?

The real one is torch's own memory snapshot (torch.cuda.memory._dump_snapshot), which often begins
in the middle of a run. So what counts at each allocation is its size and how much more lives than
when the snapshot began.
"""

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.ground_truth_compare import Moment, in_blocks, moments
from benchmarks.real_runs.rows import Row
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.trace import Trace

_OPERATOR = re.compile(r"at::_ops::(\w+)::call|torch::autograd::generated::(\w+)::apply")
_INSIDE_TORCH = "site-packages/torch/"


class _PlainData(pickle.Unpickler):
    """Reads what consists of dictionaries, lists, words and numbers: a snapshot needs no class, and
    runs no code.
    """

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"a memory snapshot has no {module_name}.{global_name}")


def read(snapshot: Path) -> list[Mapping[str, Any]]:
    """Return the events of a snapshot's first device that has any.

    Raises:
        pickle.UnpicklingError: it is none.
    """
    with snapshot.open("rb") as file:
        devices = _PlainData(file).load()["device_traces"]
    return next(filter(None, devices), [])


def parting(snapshot: Path, _row: Row, estimate: Estimate) -> str:
    """Say where the real history and that of the rank that needs the most first part, and in which
    operator.
    """
    return first_parting(read(snapshot), estimate.largest.trace)


def first_parting(events: Sequence[Mapping[str, Any]], dry: Trace) -> str:
    """Compare a real history with that part of a dry run which goes along with it the longest, the
    later one of two.
    """
    made = [event for event in events if event["action"] == "alloc"]
    real, planned = list(_real_moments(events)), list(moments(dry))
    best, start = 0, 0
    for begin in range(len(planned)):
        alike = _alike(real, planned, begin)
        if alike and alike >= best:
            best, start = alike, begin
    if best == len(real):
        return f"nowhere in {best} allocations"
    there = f"allocation {best} of {len(real)}: {real[best]} in {_where(made[best])}"
    folded = (
        " (a trace that leaves steps out)"
        if dry.seen is not None and dry.seen.whole_until is not None
        else ""
    )
    if start + best >= len(planned):
        return f"{there}; the dry run ends before it{folded}"
    site = dry.site_of(start + best)
    line = f" for {Path(site.file).name}:{site.line}" if site.line else ""
    return f"{there}; dry {_since(planned, start, best)}{line}{folded}"


def _alike(real: Sequence[Moment], planned: Sequence[Moment], begin: int) -> int:
    count = 0
    while (
        count < len(real)
        and begin + count < len(planned)
        and _since(planned, begin, count) == real[count]
    ):
        count += 1
    return count


def _since(planned: Sequence[Moment], begin: int, count: int) -> Moment:
    moment = planned[begin + count]
    return Moment(moment.size, moment.live - planned[begin].live)


def _real_moments(events: Sequence[Mapping[str, Any]]) -> Iterator[Moment]:
    """Yield the moments of a real history, what lives counted from the first allocation on."""
    live, first = 0, None
    for event in events:
        if event["action"] == "alloc":
            first = live if first is None else first
            yield Moment(in_blocks(event["size"]), live - first)
            live += in_blocks(event["size"])
        elif event["action"] == "free_completed":
            live -= in_blocks(event["size"])


def _where(event: Mapping[str, Any]) -> str:
    """Say which operator allocated, for which line of Python outside of torch; the frames begin
    with the innermost.
    """
    operators = [found for frame in event["frames"] if (found := _OPERATOR.search(frame["name"]))]
    lines = [
        f"{Path(frame['filename']).name}:{frame['line']}"
        for frame in event["frames"]
        if frame["filename"].endswith(".py") and _INSIDE_TORCH not in frame["filename"]
    ]
    return (
        " for ".join([*(found[1] or found[2] for found in operators[:1]), *lines[:1]])
        or "an unknown place"
    )
