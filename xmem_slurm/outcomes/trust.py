"""How far can one trust the estimates of one's own jobs? By what those that were recorded really
used.

A job counts where it says how much it needed (`learning.lesson`): it was estimated for the kind of
GPU that it had, and ran to its end or out of GPU memory.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from xmem_slurm.outcomes import on_host
from xmem_slurm.outcomes.learning import Lesson, lesson
from xmem_slurm.outcomes.on_host import HostRecord
from xmem_slurm.outcomes.records import JobOutcome


@dataclass(frozen=True)
class TrackRecord:
    """How many jobs were recorded, and what those that can be compared say; of the others, why they
    say nothing.
    """

    jobs: int
    compared: Sequence[tuple[JobOutcome, Lesson]]
    nothing: Counter[str]
    host: HostRecord

    @property
    def enough(self) -> int:
        """How many needed no more than was estimated, its margin included."""
        return sum(
            not job_lesson.censored and job_lesson.shortfall <= job_lesson.margin
            for _, job_lesson in self.compared
        )

    @property
    def ran_out(self) -> int:
        """How many ran out of GPU memory."""
        return sum(job_lesson.censored for _, job_lesson in self.compared)

    def within(self, share: float) -> int:
        """How many reserved what was estimated, to this share of it."""
        return sum(
            not job_lesson.censored and abs(job_lesson.shortfall) <= share
            for _, job_lesson in self.compared
        )

    @property
    def farthest(self) -> tuple[JobOutcome, float] | None:
        """The job that reserved the most beyond its estimate, or was the least below it, and that
        share.
        """
        by_share = [
            (job_lesson.shortfall, outcome)
            for outcome, job_lesson in self.compared
            if not job_lesson.censored
        ]
        share, outcome = max(by_share, key=lambda pair: pair[0], default=(0.0, None))
        return None if outcome is None else (outcome, share)


def track_record(outcomes: Iterable[JobOutcome]) -> TrackRecord:
    """Return what jobs say of the estimates that were made of them."""
    recorded, compared = list(outcomes), list[tuple[JobOutcome, Lesson]]()
    nothing = Counter[str]()
    for outcome in recorded:
        answer = lesson(outcome)
        if isinstance(answer, str):
            nothing[answer] += 1
        else:
            compared.append((outcome, answer))
    return TrackRecord(len(recorded), compared, nothing, on_host.record(recorded))
