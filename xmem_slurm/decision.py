"""What was decided of a job, what is sbatch given for it, and why? Data: `report` makes the words.

Those of sizes are made as they are decided, and are kept with the answer. Made of the sizes anew,
they would have whoever is told what is known wait for all that sizing and its words import, three
times as many modules as a known answer does, and for the traces, by which a report says where a job
would fail. Of a plan and of an earlier job's OOM nothing else is kept.

Read on the way of jobs that must not wait, so it imports little.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from xmem_slurm.errors import NoEstimate, Refused, XmemError
from xmem_slurm.slurm.submission import Submission

if TYPE_CHECKING:
    from xmem_slurm.outcomes.prediction import Prediction
    from xmem_slurm.rewriting.rewrite import Change
    from xmem_slurm.sizing.sizing import Sizing


class Kind(StrEnum):
    """What was decided. Of the components of a heterogeneous job the first of these counts that one
    of them has.
    """

    REWRITTEN = "rewritten"
    ADVISED = "advised"
    """It was sized and would be changed, if that were allowed."""
    FITS = "fits"
    """It asks for the right GPU already."""
    CANNOT_CHANGE = "cannot change"
    """It was sized, and its request cannot be changed without changing something else."""
    NOTHING_FITS = "nothing fits"
    LEFT_ALONE = "left alone"
    """Nobody wants it looked at: it asks for no GPU, is off, or sbatch will refuse it."""
    UNUSED_GPU = "unused GPU"
    """It asks for a GPU, and its dry run used none."""
    UNASKED_GPU = "unasked GPU"
    """It asks for no GPU, and would use one."""
    NOT_ESTIMATED = "not estimated"
    LATE = "late"
    """It goes as it was written while its dry run goes on."""
    FAILED = "failed"
    """An error that is no fact about the job kept us from an answer."""
    REFUSED = "refused"
    """The site wants no such job."""


class Part(NamedTuple):
    """What was decided of one component that was sized.

    `why` says why it cannot be changed. `in_a_copy`: the job asks Slurm for its script's path, and
    that was changed in the script all the same.
    """

    kind: Kind
    sizing: "Sizing"
    changes: "Sequence[Change]" = ()
    why: str = ""
    in_a_copy: bool = False


class RaisedMemory(NamedTuple):
    """What became of an ordinary job's request for host memory, which is less than it was seen to
    hold: the `change`, or `why_not`; neither where nobody lets it be raised.
    """

    change: "Change | None" = None
    why_not: str = ""


class Retry(NamedTuple):
    """The same job on a larger GPU, and what is predicted of it there.

    `prediction` is None where no dry run was made for that kind of GPU.
    """

    ready: Submission
    prediction: "Prediction | None" = None


class Decision(NamedTuple):
    """What was decided of the job that was `written`, and what sbatch is given: `ready`.

    It was sized from its `parts`, by component, which are empty where nothing was sized now: at the
    time `known_since` it was, where that is not None. Components that are `left` go as written;
    why, by their number. `why` and `error`, the name of an error's class, are of a job that goes as
    written or is refused. `lines` is what `report` made of the sizes as they were decided, `brief`
    the same in short. `prediction` is of an ordinary job that was sized; `retries` are the same job
    on larger GPUs, the smallest first, where they are wanted. `raised` is of host memory, None
    where the job asks for enough, or its request cannot be raised.
    """

    kind: Kind
    written: Submission
    ready: Submission
    parts: Mapping[int, Part] = {}
    left: Mapping[int, str] = {}
    why: str = ""
    error: str = ""
    lines: Sequence[str] = ()
    known_since: float | None = None
    brief: Sequence[str] = ()
    prediction: "Prediction | None" = None
    retries: Sequence[Retry] = ()
    raised: RaisedMemory | None = None

    def noting(self, line: str) -> "Decision":
        """Return the same with a line more."""
        return self._replace(lines=[*self.lines, line], brief=[*self.brief, line])


def left_alone(job: Submission) -> Decision:
    """Return the decision that a job goes as it was written, with no word about it."""
    return Decision(Kind.LEFT_ALONE, job, job)


def stopped_by(error: Exception, job: Submission) -> Decision:
    """Return the decision on a job for which an error kept us from another one."""
    kind = Kind.FAILED
    if isinstance(error, NoEstimate | Refused):
        kind = Kind.REFUSED if isinstance(error, Refused) else Kind.NOT_ESTIMATED
    name = type(error).__name__
    why = str(error) if isinstance(error, XmemError) else f"{name}: {error}"
    if isinstance(error, MemoryError):
        why = "there is no memory for it (`ulimit -v` shows how much it may have)"
    return Decision(kind, job, job, why=why, error="" if kind is Kind.REFUSED else name)
