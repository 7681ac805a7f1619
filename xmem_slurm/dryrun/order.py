"""What is to be run dry, and how? The order that goes from sizing to the sandbox, on this machine
or another.

How a user wants it is asked by options, and by variables in the job's environment
(docs/reference.md): XMEM_ENGINE, XMEM_RANKS, XMEM_ARRAY_TASKS. They are read here and nowhere else;
and what the probe and the stand-ins for launchers do in a dry run they are told by variables that
are written here and nowhere else:

    XMEM_ENGINE     "device", "profile", or "auto" (`probe/_xmem/start.py`)
    XMEM_RUN_RANKS  the ranks that are run at once, and of how many: "0,3/4"; without it the first
                    alone
    XMEM_SHAPES     "least": where shapes follow from values that are not known, nothing is selected
    XMEM_NUMBERS    "turns": losses and scores, which are not known, are by turns better and worse,
                    and not zero
    XMEM_END_SEEN   "1": another run of the job has come to the script's own end (course/epochs)
    XMEM_CLOCK      "leaps": times that the script waits for come (process/times)
    XMEM_SITES      how it says which lines of the script asked for each allocation: "hook" or
                    "frames" (record/sites)
    XMEM_ADVICE     the change to the job that is tried
    XMEM_BATCH      with the change "batch": so many samples, in place of half of them
    XMEM_BRIEF      "1": it ends soon after its steps repeat themselves (course/course)
    XMEM_MOST       it is over once its steps repeat themselves and have allocated more bytes; a
                    brief one once a step has
    XMEM_STARTS     "1": each rank ends at its first collective (ranks/first)

Beside these, PYTHONOPTIMIZE has its scripts run without their assertions (`engines`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from xmem_slurm.dryrun import Engine
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.site.schema import Gpu
from xmem_slurm.trace import Trace

Shapes = Literal["most", "least"]
Numbers = Literal["zeros", "still", "turns"]
Clock = Literal["real", "leaps"]
Origins = Literal["none", "hook", "frames"]
Change = Literal["batch", "checkpointing", "bf16"]
WantedRanks = Literal["all", "last"] | Sequence[int]
"""The ranks that are run beside the first, of however many there are."""

_FOR_THE_PROBE = tuple(
    f"XMEM_{name}"
    for name in (
        "ENGINE",
        "RUN_RANKS",
        "SHAPES",
        "NUMBERS",
        "END_SEEN",
        "CLOCK",
        "SITES",
        "ADVICE",
        "BATCH",
        "BRIEF",
        "MOST",
        "STARTS",
    )
)


class Asked(NamedTuple):
    """How a user asks by options for a job to be run dry; what is empty is left to the job's own
    environment.

    `origins`: a report is wanted that says which line of the script asked for memory.
    """

    engine: str | None = None
    ranks: str | None = None
    array_tasks: str | None = None
    origins: bool = False
    fresh: bool = False
    """Whether what an earlier dry run found (`kept_runs`) is no answer."""


class RunRanks(NamedTuple):
    """The ranks that are run at once, of so many."""

    ranks: Sequence[int]
    world: int

    def __str__(self) -> str:
        """As the probe reads it."""
        return f"{','.join(map(str, self.ranks))}/{self.world}"


@dataclass(frozen=True, slots=True)
class DryRunOrder:
    """A job to be run dry with `gpu` as the GPU that it finds, within `budget`, and how."""

    job: Job
    gpu: Gpu
    budget: Budget
    engine: Engine = "auto"
    wanted_ranks: WantedRanks = ()
    run_ranks: RunRanks | None = None
    """What was decided of the ranks; None as long as only the first is in question."""
    array_tasks: Sequence[int] = ()
    """Which tasks of an array are wanted; none: its ends."""
    shapes: Shapes = "most"
    numbers: Numbers = "zeros"
    end_seen: bool = False
    """Whether another run of the job, with other numbers, has come to the script's own end."""
    clock: Clock = "real"
    origins: Origins = "none"
    assertions: bool = True
    change: Change | None = None
    batch: int | None = None
    """With the change "batch": the samples of each."""
    brief: bool = False
    """Whether it is over as soon as training repeats itself: what else the script does was seen in
    another run."""
    most_bytes: int | None = None
    """So many bytes fit the GPU: a run that repeats itself, and has allocated more, is over, as
    what else the script does is of no interest for it; a brief one is over after a step."""
    starts: bool = False
    """Whether it is over as soon as its ranks have come to their first collective."""
    fresh: bool = False
    """Whether it is made even if it is known what it finds."""
    ranks_alike: bool = False
    """Whether it was seen, on another kind of GPU, that the first stands for all."""

    @classmethod
    def of(cls, job: Job, gpu: Gpu, budget: Budget, run_options: Asked = Asked()) -> "DryRunOrder":  # noqa: B008 - frozen
        """Return the order of a user; what makes no sense is as if it were not said."""
        engine = run_options.engine or job.environ.get("XMEM_ENGINE", "")
        ranks = run_options.ranks or job.environ.get("XMEM_RANKS", "")
        tasks = run_options.array_tasks or job.environ.get("XMEM_ARRAY_TASKS", "")
        return cls(
            job,
            gpu,
            budget,
            engine=_engine(engine),
            wanted_ranks=_wanted_ranks(ranks),
            array_tasks=_numbers(tasks),
            origins="hook" if run_options.origins else "none",
            fresh=run_options.fresh,
        )

    def is_exceeded(self, traces: Sequence[Trace]) -> bool:
        """Whether one of its processes allocated more than `most_bytes`."""
        peaks = [trace.recorded.get("allocated_bytes", 0) for trace in traces]
        return self.most_bytes is not None and max(peaks, default=0) > self.most_bytes

    @property
    def environ(self) -> dict[str, str]:
        """The job's environment, with what the probe and the stand-ins for launchers are told."""
        variables = {
            "XMEM_ENGINE": self.engine,
            "XMEM_RUN_RANKS": str(self.run_ranks) if self.run_ranks is not None else None,
            "XMEM_SHAPES": self.shapes,
            "XMEM_NUMBERS": self.numbers if self.numbers != "zeros" else None,
            "XMEM_END_SEEN": "1" if self.end_seen else None,
            "XMEM_CLOCK": self.clock if self.clock != "real" else None,
            "XMEM_SITES": self.origins if self.origins != "none" else None,
            "XMEM_ADVICE": self.change,
            "XMEM_BATCH": str(self.batch) if self.batch is not None else None,
            "XMEM_BRIEF": "1" if self.brief else None,
            "XMEM_MOST": str(self.most_bytes) if self.most_bytes is not None else None,
            "XMEM_STARTS": "1" if self.starts else None,
            "PYTHONOPTIMIZE": None if self.assertions else "1",
        }
        job_variables = {
            name: value for name, value in self.job.environ.items() if name not in _FOR_THE_PROBE
        }
        return job_variables | {
            name: value for name, value in variables.items() if value is not None
        }


def _engine(text: str) -> Engine:
    if text == "device":
        return "device"
    return "profile" if text == "profile" else "auto"


def _wanted_ranks(text: str) -> WantedRanks:
    if text == "all":
        return "all"
    return "last" if text == "last" else _numbers(text)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.isdecimal())
