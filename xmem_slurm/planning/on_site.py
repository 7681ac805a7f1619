"""Which ways of training a job fit this site's GPUs, and what is submitted for one of them?"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.dryrun import dispatch
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.planning.changes import files_for, what_changes
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.methods import METHODS, Method
from xmem_slurm.planning.search import Objective, Row, Search, Ways
from xmem_slurm.planning.space import Space
from xmem_slurm.rewriting.rewrite import recorded, rewrite
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files
from xmem_slurm.units import counted

MOST_GPUS = 8
"""So many are looked at where nobody says, and the job asks for no more."""
BF16 = "bf16"
"""What --allow takes beside methods: a job that computes in something else may compute in that."""
A_DRY_RUN_SECONDS = 60.0
"""Of CPU time, the most that one of them may take..."""
A_DRY_RUN_SHARE = 1 / 3
"""...unless this share of a larger budget is more, so that a larger budget helps a way that needs
longer. Of the default budget of 180 seconds both are the same."""


class PlanWanted(NamedTuple):
    """How a plan is wanted. `gpus` is a range ("1-8") or a number; `on` names options of the site,
    empty: all.

    `allow` and `forbid` name methods; `seconds` are of CPU time, for all dry runs together.
    """

    gpus: str | None = None
    on: Sequence[str] = ()
    objective: Objective = "cost"
    allow: Sequence[str] = ()
    forbid: Sequence[str] = ()
    same_batch: bool = True
    top: int = 5
    vary: str | None = None
    seconds: float = 180.0
    can_interrupt: bool = False
    """Whether Ctrl-C ends the search with the best so far, where something was found that fits."""


@dataclass(frozen=True)
class Planned:
    """A plan, and the site that it is for."""

    plan: Ways
    site: Site
    gpus: Mapping[str, Gpu]

    @property
    def best(self) -> Row:
        """The first of the ways that fit.

        Raises:
            NoEstimate: none was found.
        """
        if not self.plan.verified:
            failed = sum(row.status == "failed" for row in self.plan.rows)
            without = ""
            if failed:
                without = f"; of {failed} of them it is not known, as their dry runs gave no answer"
            tried = counted(self.plan.dry_runs, "dry run")
            raise NoEstimate(f"none of the ways that were considered fits ({tried}){without}")
        return self.plan.verified[0]

    def submission(self, row: Row) -> Submission:
        """Return the job as it is submitted to train that way: it asks for that kind of GPU, and
        says why in a comment.

        Raises:
            UsageError: it cannot ask for that here.
        """
        assert row.job is not None
        why = "; ".join([f"planned: {row.candidate}", *what_changes(self.plan.base, row.candidate)])
        option = self.site.option[row.candidate.option]
        site, written = self.site, self.plan.base.job
        edited, _ = rewrite(
            row.job, option, why, spelled=site.dialect, templates=site.templates, written=written
        )
        if edited.script == row.job.script:  # it asks for that kind already, or not in its script
            return recorded(edited, written, why, site.templates)
        return edited

    def written(self, row: Row, path: Path) -> Mapping[Path, bytes]:
        """Return what is written for a way: its script at `path`, and beside it the files that it
        needs.
        """
        script = self.submission(row).script
        assert script is not None
        files = dict[Path, bytes]()
        for original, content in files_for(self.plan.base, row.candidate).items():
            beside = path.absolute().with_name(f"{path.stem}.deepspeed{original.suffix}")
            files[beside], script = content, script.replace(bytes(original), bytes(beside))
        return {**files, path: script}

    def command(self, row: Row, path: Path) -> str:
        """Return the command that submits what is written at `path`, with the job's own arguments.

        What the command line or the environment says otherwise for this way is in it.
        """
        submission, before = self.submission(row), self.plan.base.job.environ
        line, environ = submission.command_line, submission.environ
        options = submission.argv[: line.script_index]
        changed = [name for name, text in environ.items() if before.get(name) != text]
        unset = [f"-u {name}" for name in before if name not in environ]
        words = [
            *(["env", *unset] if unset else []),
            *(f"{name}={shlex.quote(environ[name])}" for name in changed),
            shlex.join(["sbatch", *options, str(path), *line.script_arguments]),
        ]
        return " ".join(words)


def plan(
    job: Submission, wanted: PlanWanted, premises: Premises, shown: Callable[[str], None]
) -> Planned:
    """Find the best ways of training a job on the site's GPUs that fit, in its turn; `shown` is
    what is going on.

    Raises:
        NoEstimate: the job as it is written cannot be run dry.
        UsageError: what is wanted makes no sense, or the job has several components or no script.
    """
    if job.request.other_components or job.script is None:
        kind = (
            "a heterogeneous job" if job.request.other_components else "a command without a script"
        )
        raise UsageError(f"{kind} is not planned for: give it the script of one component")
    site, gpus = premises.site, premises.shown
    assert site is not None
    unknown = [name for name in wanted.on if name not in gpus]
    if unknown:
        raise UsageError(f"--on {unknown[0]}: site {site.name} has {', '.join(gpus)}")
    space = Space(
        site,
        gpus,
        _counts(wanted.gpus, job),
        _methods(wanted),
        wanted.same_batch,
        wanted.on,
        BF16 in wanted.allow,
    )
    seconds = min(wanted.seconds, max(A_DRY_RUN_SECONDS, A_DRY_RUN_SHARE * wanted.seconds))
    budget = replace(premises.budget, seconds=seconds).within(premises.rules)
    vary = BatchLever.parse(wanted.vary) if wanted.vary is not None else None
    order = replace(premises.order(job), budget=budget)
    search = Search(
        *(order, job, space, wanted.objective, wanted.top, wanted.seconds, vary, shown),
        put=_put,
        experience=premises.experience,
        can_interrupt=wanted.can_interrupt,
    )
    ways = search.plan(dispatch.some_at_once(premises.rules))
    if wanted.gpus is not None:
        ways = replace(ways, of_another_batch=space.of_another_batch(ways.base))
    return Planned(ways, site, gpus)


def _put(path: Path, content: bytes) -> None:
    """Write a file that a way of training needs: it stays, as whoever submits that way needs it
    when the job starts.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        own_files.make(path.parent)
        own_files.write(path, content)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _methods(wanted: PlanWanted) -> list[Method]:
    """Return the methods that are allowed.

    Raises:
        UsageError: there is no such method, or none is left.
    """
    allowed = [name for name in wanted.allow if name != BF16]
    unknown = [name for name in (*allowed, *wanted.forbid) if name not in METHODS]
    if unknown:
        raise UsageError(
            f"{unknown[0]}: no such method; there are {', '.join(METHODS)}; and --allow {BF16}"
        )
    names = [name for name in METHODS if name in (allowed or METHODS) and name not in wanted.forbid]
    if not names:
        raise UsageError("--allow and --forbid leave no method")
    return [METHODS[name] for name in names]


def _counts(text: str | None, job: Submission) -> list[int]:
    """Return the numbers of GPUs that are looked at: powers of two, the ends of the range, and the
    job's own number.

    Raises:
        UsageError: it is no range of numbers.
    """
    job_gpus = job.request.gpus_total or 1
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text or f"1-{max(job_gpus, MOST_GPUS)}")
    minimum, maximum = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if not 1 <= minimum <= maximum:
        raise UsageError(f"--gpus {text}: not of the form 4 or 1-8")
    powers = [
        1 << power for power in range(maximum.bit_length()) if minimum <= 1 << power <= maximum
    ]
    return sorted(
        {*powers, minimum, maximum, *([job_gpus] if minimum <= job_gpus <= maximum else [])}
    )
