"""What did recorded jobs take of their nodes' memory, beside what was estimated for them?

Taken is the peak of a step's control group, with files that the kernel keeps cached for it and
would give up: it is at least what the job needed. So a job that took no more than was estimated had
enough with that, and one that took more may have had so, too. For that no margin is learned of it.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xmem_slurm.outcomes.records import HostPeak, JobOutcome


class OnNode(NamedTuple):
    """What a job asked for and used of one node, in bytes; 0 where that is not known."""

    asked: int
    used: int


class HostLesson(NamedTuple):
    """What a job took of the node of which it took the most, as a share of what was estimated."""

    job: str
    share: float


@dataclass(frozen=True)
class HostRecord:
    """What jobs say of the estimates of host memory that were made of them."""

    compared: Sequence[HostLesson]

    @property
    def enough(self) -> int:
        """How many took no more than was estimated, what CUDA may take included."""
        return sum(lesson.share <= 1 for lesson in self.compared)

    @property
    def median(self) -> float:
        """The share that half of them took no more than; 0 where there are none."""
        return statistics.median_low(lesson.share for lesson in self.compared or [_NONE])

    @property
    def farthest(self) -> HostLesson | None:
        """The job that took the most of what was estimated for it."""
        return max(self.compared, key=lambda lesson: lesson.share, default=None)


_NONE = HostLesson("", 0.0)


def on_nodes(outcome: JobOutcome) -> list[OnNode]:
    """Return what a recorded job asked for and used of each node on which that was recorded.

    A process knows the control group of its own step alone: of several steps the largest counts.
    """
    by_host = defaultdict[str, list[HostPeak]](list)
    for process in outcome.processes:
        if process.host_memory is not None:
            by_host[process.host].append(process.host_memory)
    return [
        OnNode(max(peak.asked or 0 for peak in peaks), max(peak.step or 0 for peak in peaks))
        for peaks in by_host.values()
    ]


def record(outcomes: Iterable[JobOutcome]) -> HostRecord:
    """Return what jobs say; of one that did not run to its end, only that it took too much."""
    compared = []
    for outcome in outcomes:
        predicted = outcome.prediction
        used = max((node.used for node in on_nodes(outcome)), default=0)
        # what earlier versions predicted is without CUDA's part
        if predicted is None or not predicted.host_bytes or not predicted.host_cuda_bytes:
            continue
        share = used / (predicted.host_bytes + predicted.host_cuda_bytes)
        if used and (outcome.finished or share > 1):
            compared.append(HostLesson(outcome.job, share))
    return HostRecord(compared)
