"""Did this very script run out of GPU memory before, and how much does it need at least?

By the outcomes of jobs with the same script and arguments (`records.key_of_run`). An OOM counts as
long as no later job of the script ran to its end in what was too little, and came as far; a later
one that took more says how much it is.
"""

from collections.abc import Sequence

from xmem_slurm.outcomes import records
from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.sizing.margins import RanOut
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.units import MIB, human

_MORE = 2 * MIB
"""Beyond what was too little: the least that torch's allocator asks the driver for."""


def _too_little(outcome: JobOutcome) -> int:
    """Return what is too little: what there was, and no less than there was thought to be on such a
    GPU.

    More than was thought may lie on it beside the allocator, and does so the next time, too.
    """
    outside = outcome.prediction.outside_bytes if outcome.prediction is not None else 0
    return max(outcome.limit_bytes, outcome.device.total - outside if outside else 0)


def ran_out(job: Submission) -> RanOut | None:
    """Return what is known of the script of a job that ran out; None where it did not, or nothing
    is kept of it.
    """
    try:
        place = records.folder()
        if not place.is_dir():
            return None
        key = records.key_of_run(job, place)
        return of_script(
            [
                outcome
                for outcome in records.outcomes(place, wanted=key.encode())
                if _run(outcome) == key
            ]
        )
    except OSError:
        return None


def of_script(outcomes: Sequence[JobOutcome]) -> RanOut | None:
    """Return what the outcomes of one script say, the latest last."""
    counts: JobOutcome | None = None
    later: list[JobOutcome] = []
    for outcome in outcomes:
        if outcome.ran_out:
            if counts is None or _too_little(outcome) >= _too_little(counts):
                counts, later = outcome, []
        elif counts is not None and outcome.finished and _came_as_far(outcome, counts):
            if outcome.device.reserved <= _too_little(counts):
                counts, later = None, []
            else:
                later.append(outcome)
    if counts is None:
        return None
    at = f"{_name_of_gpu(counts)} at {human(counts.limit_bytes)}"
    words = f"job {counts.job} ran out of memory on {at}"
    shares = [_lacked(counts, _too_little(counts) + _MORE, of_peak=False)]
    for outcome in later:
        # A retry on another kind of GPU has no prediction of its own. What it took is held against
        # that of the job that ran out: kinds differ by less than what would be forgotten else.
        predicted = outcome if _is_predicted(outcome) else counts
        shares.append(_lacked(predicted, outcome.device.reserved, of_peak=True))
    known_shares = [share for share in shares if share is not None]
    needed_bytes = max(
        [_too_little(counts) + _MORE, *(outcome.device.reserved for outcome in later)]
    )
    return RanOut(words, max(known_shares) if shares[0] is not None else None, needed_bytes)


def _came_as_far(later: JobOutcome, counts: JobOutcome) -> bool:
    """Whether a job took what was predicted of it, or what the one that ran out had by then.

    One that took less may have ended before its peak, in a way that no recorder sees (`raise
    SystemExit(1)`).
    """
    predicted = later.prediction.reserved_bytes if later.prediction is not None else 0
    return later.device.reserved >= min(counts.device.reserved, predicted or counts.device.reserved)


def _is_predicted(outcome: JobOutcome) -> bool:
    return outcome.prediction is not None and outcome.prediction.reserved_bytes > 0


def _lacked(outcome: JobOutcome, needed_bytes: int, *, of_peak: bool) -> float | None:
    predicted = outcome.prediction
    if predicted is None:
        return None
    base = predicted.reserved_bytes if of_peak else predicted.fits_in_bytes
    return needed_bytes / base - 1 if base else None


def _name_of_gpu(outcome: JobOutcome) -> str:
    """Return what the GPU is called where the job asked for it, else its own name."""
    granted = outcome.prediction.given if outcome.prediction is not None else ()
    kinds = [
        entry.split(":")[1] for entry in granted if entry.count(":") == 2 and ":any:" not in entry
    ]
    return kinds[0] if kinds else outcome.device.name


def _run(outcome: JobOutcome) -> str:
    return outcome.prediction.run if outcome.prediction is not None else ""
