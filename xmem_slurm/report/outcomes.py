"""What a job really used, next to what was predicted; what is learned of many. Lines of text."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from xmem_slurm.outcomes.learning import LEAST_SCRIPTS, Drift, Lesson
from xmem_slurm.outcomes.on_host import HostRecord
from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.outcomes.sources import LIMITS, Accounted
from xmem_slurm.outcomes.trust import TrackRecord
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing.margins import LearnedMargin
from xmem_slurm.units import counted, human

RECORDS = "`xsbatch --xmem-record` records what a job uses"
"""What to do where nothing was recorded."""
_NEAR = (0.01, 0.05)
"""How near is told: to these shares of the estimate."""
_STATES = {
    "exit": "ran to its end",
    "oom": "ran out of GPU memory",
    "error": "failed",
    "running": "was not seen to end",
}
_IS_RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED")


def job_lines(
    outcome: JobOutcome,
    gpus: Mapping[str, Gpu],
    slurm_state: str = "",
) -> list[str]:
    """Return what is known of a job, for one screen.

    `gpus` are the site's options, or the catalogue; `slurm_state` is the job's state as Slurm has
    it, empty where that is not known.
    """
    predicted = outcome.prediction
    hours = (outcome.ended - outcome.began) / 3600
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(outcome.began))
    became = f"job {outcome.job} {_became(outcome, slurm_state)}, {hours:.1f} h from {when}"
    on_gpu = f" on {outcome.device.name}" if outcome.used_gpu else ""
    lines = [f"{became}, {_processes(outcome)}{on_gpu}"]
    if predicted is not None and predicted.required_bytes:
        how = f"({predicted.engine} engine{_promise(predicted.promise)})"
        # It may be able to take more of a GPU that has room for it than it needs to run.
        takes_more = predicted.uses_bytes > predicted.required_bytes
        up_to = f"; would use up to {human(predicted.uses_bytes)}" if takes_more else ""
        lines.append(f"estimated: {human(predicted.required_bytes)} with its margin {how}{up_to}")
    else:
        lines.append("estimated: nothing")
    if not outcome.used_gpu:
        return [*lines, _UNUSED if outcome.finished else _UNSEEN, *_host_memory(outcome)]
    return [*lines, *_used(outcome), *_host_memory(outcome), *_fits(outcome, gpus)]


_UNUSED = "used: no GPU memory, by torch's counters"
_UNSEEN = "used: not known; CUDA had started, but torch's counters had not been read yet"


def _became(outcome: JobOutcome, slurm_state: str) -> str:
    """Return what became of a job; what its processes do not say themselves, Slurm may know."""
    states = _of(outcome)
    state = next(state for state in ("oom", "error", "running", "exit") if state in states)
    if state == "running" and slurm_state in _IS_RUNNING:
        return "is running"
    if state == "running" and slurm_state:
        return f"ended without a last record (Slurm reports {slurm_state})"
    caught = ", after it had caught an error for lack of GPU memory"
    return _STATES[state] + (caught if outcome.caught_oom else "")


def _used(outcome: JobOutcome) -> list[str]:
    """Return what a job took of its GPU, and how near that is to what was predicted."""
    device, predicted = outcome.device, outcome.prediction
    used = ""
    if device.used is not None:
        used = f"{human(device.used)} of the GPU's {human(device.total)}; "
    retries = ""
    if device.retries:
        retries = f"; the allocator freed its cache to go on {device.retries} times"
    took = f"torch reserved {human(device.reserved)}, allocated {human(device.allocated)}{retries}"
    lines = [f"used: {used}{took}"]
    if predicted is not None and predicted.reserved_bytes:
        excess = device.reserved / predicted.reserved_bytes - 1
        how = f"{abs(excess):.2%} {'more' if excess > 0 else 'less'} than"
        lines.append(f"torch reserved {how if excess else 'exactly what was'} estimated")
    return lines


def _host_memory(outcome: JobOutcome) -> list[str]:
    """Return what a job took of a node's memory, beside what it asked for and what was estimated:
    where it took the most.

    The step's peak has all of its processes on that node, and files that the kernel keeps cached
    and would give up.
    """
    peaks = [
        process.host_memory for process in outcome.processes if process.host_memory is not None
    ]
    if not peaks:
        return []
    peak = max(peaks, key=lambda host_peak: max(host_peak.step or 0, host_peak.largest))
    asked_words = f" of {human(peak.asked)} requested" if peak.asked else ""
    until = ", when last heard of" if "running" in _of(outcome) else ""
    predicted = outcome.prediction
    estimated = ""
    if predicted is not None and predicted.host_bytes:
        cuda = "without CUDA's own"
        if predicted.host_cuda_bytes:
            cuda = f"and up to {human(predicted.host_cuda_bytes)} more for CUDA"
        estimated = f"; estimated {human(predicted.host_bytes)} on a node, {cuda}"
    if peak.step is None:
        used = f"used {human(peak.largest)}{asked_words}, by the largest of its processes alone"
    else:
        beside = f"cached files included; its largest process {human(peak.largest)}"
        used = f"used {human(peak.step)}{asked_words}, {beside}"
    return [f"host memory: {used}{estimated}{until}"]


def _fits(outcome: JobOutcome, gpus: Mapping[str, Gpu]) -> list[str]:
    """Return on which GPUs a job would have fitted; of one that ran out, what was too little."""
    device = outcome.device
    if outcome.ran_out:
        return [f"it needs more than the {human(outcome.limit_bytes)} that torch could have there"]
    outside = 0
    if device.used is not None and device.used > device.reserved:
        outside = device.used - device.reserved
    width, lines = max(map(len, gpus)), []
    for name, gpu in sorted(gpus.items(), key=lambda item: item[1].total_bytes):
        answer = _would(device.reserved, max(outside, gpu.context_bytes), gpu)
        lines.append(f"  {name:{width}}  {human(gpu.total_bytes):>10}  {answer}")
    return lines


def _of(outcome: JobOutcome) -> set[str]:
    return {process.state for process in outcome.processes}


def _processes(outcome: JobOutcome) -> str:
    count = len(outcome.processes)
    return "1 process" if count == 1 else f"{count} processes"


def _promise(promise: float | None) -> str:
    return "" if promise is None else f", enough with {promise:.0%}"


def _would(reserved: int, outside: int, gpu: Gpu) -> str:
    spare = gpu.total_bytes - reserved - outside
    if spare >= 0:
        return f"would have fitted; {human(spare)} to spare"
    return f"{human(-spare)} too small"


def job_document(outcome: JobOutcome) -> dict[str, Any]:
    """Return what is known of a job, as one JSON object; sizes in bytes."""
    processes = [
        {
            **process._asdict(),
            "devices": [device._asdict() for device in process.devices],
            "host_memory": None if process.host_memory is None else process.host_memory._asdict(),
            "prediction": None,
        }
        for process in outcome.processes
    ]
    predicted = outcome.prediction._asdict() if outcome.prediction is not None else None
    return {
        "schema_version": 1,
        "job": outcome.job,
        "prediction": predicted,
        "processes": processes,
    }


def accounted_lines(job: Accounted, output_gib: float | None) -> list[str]:
    """Return what other sources say of a job that no recorder was in."""
    gpus = ", ".join(f"{count} {kind or 'GPU'}" for kind, count in job.gpus.items())
    lines = [
        (
            f"job {job.job} ({job.name}): {job.state}, {job.seconds / 3600:.1f} h on {gpus}; no "
            "recorder ran in it"
        )
    ]
    if job.used_bytes is not None:
        lines.append(
            f"used: {human(job.used_bytes)} of a GPU, by {job.source} ({LIMITS[job.source]})"
        )
    if output_gib is not None:
        lines.append(f"ran out of GPU memory on a GPU of {output_gib} GiB ({LIMITS['output']})")
    if job.used_bytes is None and output_gib is None:
        lines.append("used: not known; `xsbatch --xmem-record` records it")
    return lines


def trust_lines(record: TrackRecord, days: float) -> list[str]:
    """Return how good the estimates of recorded jobs were, for one screen."""
    if not record.jobs:
        return [f"no job of yours was recorded in {days:.0f} days; {RECORDS}"]
    count = len(record.compared)
    lines = [
        (
            f"{_jobs(record.jobs)} recorded in {days:.0f} days; {count} of them can be compared "
            "with their estimates"
        )
    ]
    if count:
        share = f"{record.enough} of {count} ({record.enough / count:.0%})"
        ran_out = f"; {record.ran_out} ran out of GPU memory" if record.ran_out else ""
        lines.append(f"{share} needed no more than was estimated with its margin{ran_out}")
        near = ", ".join(f"{record.within(share)} within {share:.0%}" for share in _NEAR)
        farthest = record.farthest
        worst = ""
        if farthest:
            worst = f"; farthest off: job {farthest[0].job}, {_signed(farthest[1])} the estimate"
        lines.append(f"what torch reserved, compared with its estimate: {near}{worst}")
    cannot = [f"{_jobs(number)} cannot: {why}" for why, number in record.nothing.most_common()]
    return [*lines, *cannot, *host_lines(record.host)]


def host_lines(record: HostRecord) -> list[str]:
    """Return how near the estimates of host memory were; nothing where no job says it."""
    count, most = len(record.compared), record.farthest
    if most is None:
        return []
    enough = (
        f"{record.enough} of {_jobs(count)} took no more of a node than was estimated with CUDA"
    )
    typical = f"half took up to {record.median:.2f} times that"
    worst = f"the most {most.share:.2f} times (job {most.job})"
    return [f"host memory, cached files included: {enough}; {typical}, {worst}"]


def trust_document(record: TrackRecord, days: float) -> dict[str, Any]:
    """Return the same as one JSON object; shares are of the estimated peak of reserved memory."""
    farthest = record.farthest
    return {
        "schema_version": 1,
        "days": days,
        "jobs": record.jobs,
        "compared": len(record.compared),
        "enough": record.enough,
        "ran_out": record.ran_out,
        "within": {str(share): record.within(share) for share in _NEAR},
        "farthest": None if farthest is None else {"job": farthest[0].job, "share": farthest[1]},
        "not_compared": dict(record.nothing),
        "host": _host_document(record.host),
    }


def _host_document(record: HostRecord) -> dict[str, Any]:
    """Return the same of host memory; shares are of what was estimated, CUDA's part included."""
    return {
        "compared": len(record.compared),
        "enough": record.enough,
        "median": record.median if record.compared else None,
        "farthest": None if record.farthest is None else record.farthest._asdict(),
    }


def _jobs(number: int) -> str:
    return counted(number, "job")


def _signed(share: float) -> str:
    return f"{abs(share):.1%} {'above' if share > 0 else 'below'}"


def learned_lines(
    margins: Sequence[LearnedMargin],
    lessons: Sequence[Lesson],
    nothing: Counter[str],
    drift: Drift,
    host: HostRecord,
) -> list[str]:
    """Return what jobs taught, what they did not, what they took of the host, and whether what was
    promised holds.
    """
    scripts = len({(lesson.user, lesson.script) for lesson in lessons})
    lines = [
        f"how much was needed is known for {_jobs(len(lessons))} of {counted(scripts, 'script')}"
    ]
    lines += [f"for {_jobs(count)} it is not: {why}" for why, count in nothing.most_common()]
    for learned in margins:
        gpus = ", ".join(sorted(learned.gpus))
        doubts = ", ".join(sorted(learned.unseen)) or "no doubts"
        margin = learned.margin
        lines.append(
            f"{learned.engine}, {gpus}, {doubts}: + {margin.share:.2%} is enough for "
            f"{margin.probability:.0%}"
            f" ({margin.runs} jobs of {margin.models} scripts)"
        )
    if not margins:
        lines.append(f"no kind of job has {LEAST_SCRIPTS} scripts yet: the margins that ship apply")
    lines += host_lines(host)
    if drift.scripts:
        held_words = (
            f"{drift.enough:.0%} of the jobs of the last {drift.scripts} scripts with a promise "
            "needed no more"
        )
        lines.append(
            f"{held_words}; {drift.promised:.0%} was "
            f"promised{': that is a drift' if drift.is_one else ''}"
        )
    return lines
