"""What GPU hours went where, and where could they have gone? By the type that was asked for, had,
and would have done.

Hours are Slurm's: the time of a job times its GPUs. What a job used is known from its recorder,
else from another source (`sources`); where it is not, its hours are of those that nothing can be
said of, with the reason. The smallest option that would have done is the cheapest of the site on
which what was used fits, as the site file prices it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from xmem_slurm.outcomes.on_host import on_nodes
from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.outcomes.sources import Accounted
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.units import GIB

NOT_LISTED = "other"
"""A type that the site file does not have."""
NOT_RECORDED = "nothing recorded it, or it used no GPU with torch"
MOST_SCRIPTS = 10
_NOT_ENDED = ("PENDING", "RUNNING", "REQUEUED", "RESIZING", "SUSPENDED")
"""The states of sacct(1) of jobs that go on."""


@dataclass(frozen=True)
class SpentHours:
    """The GPU hours of one job, by name of an option: what was `asked` for, `had`, and what would
    have `done`.

    `script` tells its script from others, and `name` is what people call it. `done` is empty where
    that is not known, and `why` then says why not. `used_bytes` is of one GPU, by `source`.
    """

    job: str
    script: str
    name: str
    hours: float
    asked: str
    had: str
    done: str = ""
    why: str = ""
    used_bytes: int | None = None
    source: str = ""
    host_asked: float | None = None
    """GiB of host memory that it asked for, times the hours that it ran; None where it is not known
    what it asked for, or what it used."""
    host_used: float = 0.0
    """The same of what it used at its peak."""


@dataclass
class Waste:
    """The sums, in hours, and what they cost by the site file."""

    asked: Mapping[str, float] = field(default_factory=dict)
    had: Mapping[str, float] = field(default_factory=dict)
    done: Mapping[str, float] = field(default_factory=dict)
    unknown: Mapping[str, float] = field(default_factory=dict)
    """Hours of which it is not known, by reason."""
    scripts: Sequence[tuple[str, float, float]] = ()
    """Scripts, their hours, and how much of their cost was not needed, the most hours first."""
    jobs: int = 0
    known_jobs: int = 0
    unpriced: float = 0.0
    """Hours of these on a type that the site file does not list, or asked for on one: they are in
    no cost."""
    cost_asked: float = 0.0
    """Of the other jobs of which it is known: what they asked for..."""
    cost_had: float = 0.0
    """...had..."""
    cost_done: float = 0.0
    """...and would have done with."""
    host_jobs: int = 0
    """Of so many it is known what they asked for and used of host memory, in GiB times hours:"""
    host_asked: float = 0.0
    host_used: float = 0.0


def smallest(used_bytes: int, site: Site, gpus: Mapping[str, Gpu]) -> str:
    """Return the cheapest whole option that has so many bytes; empty where none has."""
    fitting = [
        name
        for name, option in site.option.items()
        if option.share is None and gpus[name].total_bytes >= used_bytes
    ]
    return min(
        fitting, key=lambda name: (site.option[name].cost, gpus[name].total_bytes), default=""
    )


def spent(
    accounted: Iterable[Accounted],
    outcomes: Iterable[JobOutcome],
    site: Site,
    gpus: Mapping[str, Gpu],
    replayed: Mapping[str, int] | None = None,
) -> list[SpentHours]:
    """Return what each job spent; `replayed` has bytes, by script, of those that were estimated
    again.
    """
    by_number = {process.job: outcome for outcome in outcomes for process in outcome.processes}
    spent_hours = []
    for job in accounted:
        outcome = by_number.get(job.number)
        hours = job.seconds * sum(job.gpus.values()) / 3600
        kinds = [option_of(kind, site) for kind in job.gpus]
        had = kinds[0] if len(kinds) == 1 else NOT_LISTED
        asked_option = _asked_option(outcome, site) or had
        used, source, why = _used(job, outcome, (replayed or {}).get(job.script))
        smallest_option = smallest(used, site, gpus) if used is not None else ""
        why = why or ("" if smallest_option else "no option of the site file has so much")
        spent_hours.append(
            SpentHours(
                job.job,
                job.script,
                job.name,
                hours,
                asked_option,
                had,
                smallest_option,
                why,
                used,
                source,
                *_of_host(job, outcome),
            )
        )
    return spent_hours


def to_replay(spent_hours: Sequence[SpentHours], accounted: Sequence[Accounted]) -> list[Accounted]:
    """Return the latest job of each script that ran to its end and of which nothing is known, the
    most hours first.
    """
    hours = {entry.job: entry.hours for entry in spent_hours if entry.why == NOT_RECORDED}
    latest = {job.script: job for job in accounted if job.job in hours}
    return sorted(latest.values(), key=lambda job: -hours[job.job])[:MOST_SCRIPTS]


def _used(
    job: Accounted, outcome: JobOutcome | None, replayed: int | None
) -> tuple[int | None, str, str]:
    """Return what was used of a GPU, who says so, and else why it is not known."""
    if outcome is not None and (outcome.ran_out or outcome.caught_oom):
        return None, "", "ran out of GPU memory"
    if outcome is not None and outcome.finished and job.state == "COMPLETED":
        device = outcome.device
        outside = outcome.prediction.outside_bytes if outcome.prediction is not None else 0
        return (
            max(device.used or 0, device.reserved + (0 if device.used else outside)),
            "recorder",
            "",
        )
    if job.used_bytes is not None and job.state == "COMPLETED":
        return job.used_bytes, job.source, ""
    if replayed is not None:
        return replayed, "replay", ""
    if job.state in _NOT_ENDED:
        why = "has not ended yet"
    elif outcome is not None or job.state != "COMPLETED":
        why = "did not run to its end"
    else:
        why = NOT_RECORDED
    return None, "", why


def _of_host(job: Accounted, outcome: JobOutcome | None) -> tuple[float | None, float]:
    """Return what a job asked for and used of host memory, in GiB times hours: by its control
    groups where it was recorded, else by accounting.
    """
    asked, used = on_hosts(outcome) if outcome is not None else (0, None)
    asked, used = job.host_asked_bytes or asked, used or job.host_used_bytes
    if not asked or used is None or job.state in _NOT_ENDED:
        return None, 0.0
    hours = job.seconds / 3600
    return asked / GIB * hours, used / GIB * hours


def on_hosts(outcome: JobOutcome) -> tuple[int, int | None]:
    """Return what a recorded job asked for and used of host memory on all nodes together; 0 and
    None where that is not known of one of them.
    """
    nodes = on_nodes(outcome)
    asked, used = [node.asked for node in nodes], [node.used for node in nodes]
    return sum(asked) if asked and all(asked) else 0, sum(used) if used and all(used) else None


def as_accounted(outcome: JobOutcome) -> Accounted:
    """Return a job as accounting would have it, from its records alone: its time is that of its use
    of GPUs.
    """
    granted = outcome.prediction.given if outcome.prediction is not None else ()
    parts = [entry.split(":") for entry in granted if entry.count(":") == 2]
    gpus = {
        "" if kind == "any" else kind: int(count) for _, kind, count in parts if count.isdecimal()
    }
    count = sum(len(process.devices) for process in outcome.processes)
    script = outcome.prediction.script if outcome.prediction is not None else ""
    state = "COMPLETED" if outcome.finished else "FAILED"
    seconds = int(outcome.ended - outcome.began)
    number, user = outcome.processes[0].job, str(outcome.user)
    name = f"the script of job {outcome.job}"  # no record has a name
    return Accounted(
        number, outcome.job, user, name, state, seconds, gpus or {"": count}, None, "", hash=script
    )


def option_of(kind: str, site: Site) -> str:
    """Return the option of a GRES type; `NOT_LISTED` where the type is not known or is
    several's.
    """
    named = [
        name
        for name, option in site.option.items()
        if option.share is None and kind and option.type == kind
    ]
    if len(named) == 1:
        return named[0]
    return kind if kind in site.option else NOT_LISTED


def _asked_option(outcome: JobOutcome | None, site: Site) -> str:
    entries = (
        outcome.prediction.asked if outcome is not None and outcome.prediction is not None else ()
    )
    kinds = {entry.split(":")[1] for entry in entries if entry.count(":") == 2}
    return option_of(kinds.pop(), site) if len(kinds) == 1 else ""


def summed(spent_hours: Sequence[SpentHours], site: Site) -> Waste:
    """Return the sums over jobs."""
    known_hours = [entry for entry in spent_hours if entry.done]
    priced = [entry for entry in known_hours if {entry.asked, entry.had} <= site.option.keys()]
    unpriced = [
        entry for entry in known_hours if not {entry.asked, entry.had} <= site.option.keys()
    ]

    def cost(name: str, hours: float) -> float:
        return hours * site.option[name].cost

    not_needed = defaultdict[str, float](float)
    for entry in priced:
        not_needed[entry.script] += cost(entry.had, entry.hours) - cost(entry.done, entry.hours)
    scripts = _hours((entry.script, entry.hours) for entry in spent_hours)
    names = {entry.script: entry.name for entry in spent_hours}
    listed = [(names[script], hours, not_needed[script]) for script, hours in scripts.items()]
    return Waste(
        asked=_hours((entry.asked, entry.hours) for entry in spent_hours),
        had=_hours((entry.had, entry.hours) for entry in spent_hours),
        done=_hours((entry.done, entry.hours) for entry in known_hours),
        unknown=_hours((entry.why, entry.hours) for entry in spent_hours if not entry.done),
        scripts=sorted(listed, key=lambda row: (-row[1], row[0]))[:MOST_SCRIPTS],
        jobs=len(spent_hours),
        known_jobs=len(known_hours),
        host_jobs=sum(entry.host_asked is not None for entry in spent_hours),
        host_asked=sum(entry.host_asked or 0 for entry in spent_hours),
        host_used=sum(entry.host_used for entry in spent_hours),
        unpriced=sum(entry.hours for entry in unpriced),
        cost_asked=sum(cost(entry.asked, entry.hours) for entry in priced),
        cost_had=sum(cost(entry.had, entry.hours) for entry in priced),
        cost_done=sum(cost(entry.done, entry.hours) for entry in priced),
    )


def _hours(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums = defaultdict[str, float](float)
    for name, hours in pairs:
        sums[name] += hours
    return dict(sorted(sums.items()))
