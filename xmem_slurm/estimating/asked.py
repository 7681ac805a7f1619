"""What is asked for by who wants an estimate, and is it known? A script or a command in, what is
known of it out.

A known answer is on the way of somebody who waits: what runs a job dry is imported where it has to
be run.
"""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answer, answers
from xmem_slurm.submission.answer import Wishes
from xmem_slurm.submission.answers import Said

if TYPE_CHECKING:
    from xmem_slurm.sizing.sizing import Sizing

_PYTHONS = ("python", "python3")
"""Of these the first on PATH runs a Python file, as a shell's user would have it run."""


class Wanted(NamedTuple):
    """How an estimate is wanted: as its user wishes a job to be sized, and what no submission has.

    `gpu` stands in place of a site's options; `advice`: what would make it fit a smaller one.
    """

    wishes: Wishes = Wishes()
    gpu: str | None = None
    advice: bool = False


class Estimated(NamedTuple):
    """What is said of each component of a job, by its number; `left` says of the others why there
    is no estimate.

    `sized` returns what reports are made of, or raises an XmemError where that cannot be read any
    more. `templates` is the site's own folder of them.
    """

    said: Mapping[int, Said]
    left: Mapping[int, str]
    several: bool
    sized: "Callable[[], Mapping[int, Sizing]]"
    templates: Path | None = None
    known_since: float | None = None


def job_of(command: Sequence[str], environ: Mapping[str, str], folder: Path = Path()) -> Submission:
    """Take a file that begins with #! as a job script with its arguments, and anything else as a
    command to wrap.

    A Python file is run by the Python on PATH. `folder` is where the command would be run.

    Raises:
        UsageError: there is no such file or command, nothing that runs it, or sbatch would refuse
            the script.
    """
    script, path = folder / command[0], environ.get("PATH")
    if script.is_file() and script.read_bytes().startswith(b"#!"):
        job = Submission(tuple(command), environ, script.read_bytes())
        if (refused := refusal(job)) is not None:
            raise UsageError(f"{script}: sbatch would refuse it: {refused}")
        return job
    if script.suffix == ".py" and script.is_file():
        python = next((name for name in _PYTHONS if shutil.which(name, path=path)), None)
        if python is None:
            raise UsageError(
                f"{script}: no python on PATH; activate the job's, or name it: -- /PATH/TO/python "
                f"{script}"
            )
        command = (python, *command)
    elif shutil.which(command[0], path=path) is None:
        wrong = "no such script or command"
        if script.is_file():
            wrong = "does not begin with #!, nor can it be run"
        raise UsageError(f"{command[0]}: {wrong}")
    return Submission(("--wrap", shlex.join(command)), environ, None)


def estimate(job: Submission, wanted: Wanted, tell: Callable[[str], None]) -> Estimated:
    """Say what each of a job's components needs: as it is known, if nothing has changed, else by
    running it dry.

    `tell` says what cannot wait.

    Raises:
        NoEstimate: nothing is known of any component.
        UsageError: the catalogue has no such GPU.
        SiteError: the site file is wrong, or the one that was named is not there.
    """
    ran_out = answer.ran_out(job)
    key = answers.key(job, [wanted._replace(wishes=wanted.wishes.of_the_answer()), ran_out])
    last = None if wanted.wishes.fresh else answers.look_up_estimate(key, job)
    if last is not None:
        return Estimated(last.said, last.left, last.several, last.sized, last.templates, last.made)
    from xmem_slurm.estimating import by_dry_run  # noqa: PLC0415 - who is told what is known does not wait for it

    return by_dry_run.estimate(job, wanted, key, ran_out, tell)
