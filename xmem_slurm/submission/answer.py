"""What is sbatch given for a job, and why?

The job as it is, where it asks for no GPU; what is known of this very submission, where it was
sized before (`answers`); else what sizing it says (`by_sizing`). Imports here are few: a job
without a GPU must not wait for pydantic or jinja2.
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xmem_slurm.cluster import client
from xmem_slurm.decision import Decision, Kind, left_alone, stopped_by
from xmem_slurm.errors import NoEstimate, Refused, UsageError, XmemError
from xmem_slurm.report import decided
from xmem_slurm.slurm import services
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files, silent

if TYPE_CHECKING:
    from xmem_slurm.sizing.margins import RanOut

OWN_WORDS = ("off", "keep-type", "whole", "on")
"""What an #XMEM line can say; "on" is for the filter in every sbatch."""

_ABSOLUTE = re.compile(rb"(?<![\w.$}/*-])/[\w.@+,=/-]+")
"""A path in a script that needs nothing of its variables."""
_MOST_SEARCHED = 1 << 16
_VARIABLE = re.compile(rb"\$\{?([A-Za-z_]\w*)")
_FOLDERS = ("HOME", "TMPDIR", "TEMP", "TMP")
"""Variables that name a folder which is used in any case: the last three by Python's tempfile."""

Tell = Callable[[str], None]
"""Says at once what cannot wait for the answer."""

_WOULD_USE_A_GPU = (Kind.ADVISED, Kind.FITS, Kind.CANNOT_CHANGE)
"""What a job that asks for none would be told if it asked for one."""


class Wishes(NamedTuple):
    """What the user wants of xsbatch itself: its options, XMEM_* variables and the script's #XMEM
    lines.
    """

    off: bool = False
    dry_run: bool = False
    keep_type: bool = False
    raise_mem: bool | None = None
    """Whether --mem may be raised to what the job was seen to hold; None as the site has it."""
    plan: bool = False
    """Whether it may be trained another way, the best that fits (`by_plan`)."""
    advise: bool = False
    budget: float | None = None
    """CPU seconds that the dry runs may take; None as many as a sizing has, or a plan."""
    wait_seconds: float | None = None
    """How long the dry runs may take on the wall; None as long as their budget has it."""
    queue_seconds: float | None = None
    """How long to wait for their turn; None as long as the site has it."""
    site: str | None = None
    report: str | None = None
    html: str | None = None
    fresh: bool = False
    verbose: bool = False
    hold: bool = False
    """Whether it is submitted held where it could not be sized."""
    strict: bool = False
    """Whether it is not submitted where its dry run shows that it cannot run."""
    margin: float = 0.0
    """Percent of each GPU's memory to be left free, beside the estimate's own margin."""
    policy: str | None = None
    whole: bool = False
    engine: str | None = None
    ranks: str | None = None
    array_tasks: str | None = None
    record: bool | None = None
    """Whether what the job uses is recorded; None as the site has it."""
    summary: bool = False
    retry: float = 0
    """On how many larger GPUs it is tried if it runs out of memory."""
    given: Sequence[str] = ()
    """What of these an option or a variable said, by the option's name: no script and no file goes
    before it."""

    def of_the_answer(self) -> "Wishes":
        """Return those that can change what is answered: what an answer is kept under."""
        return self._replace(
            fresh=False,
            verbose=False,
            hold=False,
            report=None,
            html=None,
            record=None,
            summary=False,
            given=(),
        )


def answer(job: Submission, wishes: Wishes, tell: Tell, name: str | None = None) -> Decision:
    """Decide what sbatch is given for a job whose script is read; it is left alone where sbatch
    will refuse it anyway.

    `name` is what the decision is kept under (`answers`), if not by the wishes.

    Raises:
        Refused: the site wants no such job.
        XmemError: the job goes as it was written; the message says why.
    """
    if (job.script is None and job.command_line.wrap is None) or refusal(job) is not None:
        return left_alone(job)
    request = job.request
    words = own_words(job) if request.asks_for_gpu else {}
    if wishes.off or "off" in words:
        return left_alone(job)
    if not request.asks_for_gpu:
        return _unasked(job, wishes, tell, name)
    keep_type = wishes.keep_type or "keep-type" in words
    whole = wishes.whole or "whole" in words
    try:
        return _known_or_sized(job, wishes._replace(keep_type=keep_type, whole=whole), tell, name)
    except (NoEstimate, Refused, UsageError) as error:
        from xmem_slurm.submission import answers  # noqa: PLC0415

        answers.keep_unanswered(stopped_by(error, job))
        raise


def _known_or_sized(job: Submission, wishes: Wishes, tell: Tell, name: str | None) -> Decision:
    """Return what is known of this submission, or find it; `name` is what it is known under, if not
    by the wishes.

    Of equal submissions at once one is sized, and the others wait for its answer.

    Raises:
        NoEstimate: nothing of it can be estimated.
        Busy: its turn to be run dry did not come in time.
    """
    not_sized = _not_sized(job)
    from xmem_slurm.submission import answers  # noqa: PLC0415

    sized_by = wishes.of_the_answer()
    before = ran_out(job)
    if before is not None:
        name = answers.key(job, [name or sized_by, before])
    name = name or answers.key(job, sized_by)
    # A report is drawn from traces that say which lines asked for memory; a known answer may have
    # others.
    drawn = wishes.report is not None or wishes.html is not None
    kept = answers.look_up(name, job) if not wishes.fresh else None
    if kept is not None and not drawn:
        return kept
    try:
        return _sized(job, not_sized, wishes, tell, name=name, before=before)
    except (Refused, UsageError):
        raise
    except XmemError as error:
        if kept is None:
            raise
        tell(f"no report, but the job is submitted by what is known of it: {error}")
        return kept


def _sized(
    job: Submission,
    not_sized: Mapping[int, str],
    wishes: Wishes,
    tell: Tell,
    *,
    name: str,
    before: "RanOut | None",
) -> Decision:
    """Find what is not known, in its turn, or wait for who is finding it.

    Raises:
        SilentPlace: a file system that a dry run needs does not answer.
    """
    from xmem_slurm.dryrun import admission  # noqa: PLC0415
    from xmem_slurm.site import places  # noqa: PLC0415
    from xmem_slurm.submission import answers  # noqa: PLC0415

    silent.require_answers(_places(job))
    rules = places.dry_run_rules(places.tables(wishes.site, job.environ, b"dry_run"))
    seconds = rules.queue_seconds if wishes.queue_seconds is None else wishes.queue_seconds
    began, until = time.time(), time.monotonic() + seconds

    def made_meanwhile() -> Decision | None:
        drawn = wishes.report is not None or wishes.html is not None
        return None if drawn else answers.look_up(name, job, began)

    with admission.alone(name, seconds, tell, made_meanwhile) as decision:
        if decision is not None:
            return decision
        # A held job sbatch takes, also where no node could run it as it is; who only looks is told
        # what can be said.
        unasked = wishes.dry_run or "hold" in job.request.settings
        if unasked or client.refused(client.find_sbatch(job.environ), job) is None:
            # Before anything that takes CPU time.
            with admission.turn(rules, until - time.monotonic(), tell):
                if wishes.plan:
                    from xmem_slurm.submission import by_plan  # noqa: PLC0415

                    return by_plan.decide(job, wishes, tell=tell, name=name, ran_out=before)
                from xmem_slurm.submission import by_sizing  # noqa: PLC0415

                return by_sizing.decide(
                    job, not_sized, wishes, tell=tell, name=name, ran_out=before
                )
    return left_alone(job)  # sbatch says so itself


def _places(job: Submission) -> list[str | Path]:
    """Return what is touched to run a job dry: folders, and paths that its script has."""
    script = (job.command_line.wrap or "").encode() if job.script is None else job.script
    text = script[:_MOST_SEARCHED]
    named = _ABSOLUTE.findall(text)
    values = [job.environ.get(name.decode(), "") for name in _VARIABLE.findall(text)]
    folders = job.environ.get("PATH", "").split(os.pathsep)
    folders += [job.environ.get(name, "") for name in _FOLDERS]
    folders += [value for value in values if value.startswith("/") and os.pathsep not in value]
    with suppress(OSError):  # it is gone
        folders.append(os.getcwd())  # noqa: PTH109 - as text
    return [own_files.data_folder(""), *filter(None, folders), *map(os.fsdecode, named)]


def ran_out(job: Submission) -> "RanOut | None":
    """Return what is known of a script that ran out of GPU memory before, where anything is
    recorded.
    """
    if not own_files.record_folder("outcomes").is_dir():
        return None
    from xmem_slurm.outcomes import history  # noqa: PLC0415

    return history.ran_out(job)


def _unasked(job: Submission, wishes: Wishes, tell: Tell, name: str | None) -> Decision:
    """Say of a job that asks for no GPU that it would use one, where the site wants that, and as
    far as it is seen.

    Raises:
        Refused: it would, and the site wants no such job.
    """
    from xmem_slurm.site import places  # noqa: PLC0415

    stance = places.unasked(wishes.site, job.environ)
    if stance == "leave" or job.request.other_components or "off" in own_words(job):
        return left_alone(job)
    asking = job.but(argv=("--gres=gpu:1", *job.argv))
    seconds = min(wishes.wait_seconds or places.UNASKED_SECONDS, places.UNASKED_SECONDS)
    try:
        queue = seconds if wishes.queue_seconds is None else min(wishes.queue_seconds, seconds)
        # Whether it would use a GPU is told: there is no time for how it could be trained.
        brief = wishes._replace(plan=False, advise=True, wait_seconds=seconds, queue_seconds=queue)
        decision = _known_or_sized(asking, brief, tell, f"{name}-asking" if name else None)
    except XmemError:
        return left_alone(job)
    if decision.kind not in _WOULD_USE_A_GPU:
        return left_alone(job)
    if stance == "refuse" and not wishes.advise:
        raise Refused(decided.refusal(decided.UNASKED, decision.brief[0]))
    return Decision(
        Kind.UNASKED_GPU,
        job,
        job,
        lines=decided.lines(decision, verbose=True),
        brief=decided.lines(decision),
    )


def own_words(job: Submission) -> Mapping[str, int]:
    """Return the words of the script's #XMEM lines, and the line of each."""
    script = job.parsed_script
    return {
        word: line.line
        for line in (script.own_lines if script is not None else ())
        for word in line.words
    }


def _not_sized(job: Submission) -> Mapping[int, str]:
    """Return why components that ask for GPUs are not sized, by their number; an ordinary job is
    its only one.

    Raises:
        NoEstimate: there is none that could be.
    """
    request = job.request
    if request.for_another_user:
        raise NoEstimate("with --uid or --gid it is another user's, and is not dry-run for them")
    if request.foreign is not None:
        raise NoEstimate(
            f"its #{request.foreign} lines are translated by sbatch alone; say the same in #SBATCH "
            "lines"
        )
    waits = services.service(job.command_line.wrap or (job.script or b"").decode(errors="replace"))
    if waits is not None:
        raise NoEstimate(
            f"{waits} waits for work that others give it: what that needs is not known here"
        )
    reasons = {index: _why_not(request, request.components[index]) for index in request.with_gpus}
    not_sized = {index: why for index, why in reasons.items() if why is not None}
    if len(not_sized) == len(reasons):
        raise NoEstimate(decided.of_components(request, not_sized))
    return not_sized


def _why_not(job: Request, component: Request) -> str | None:
    """Return why a component that asks for GPUs is not sized, or None."""
    resources = {accelerator.resource for accelerator in component.accelerators}
    if resources - {"gpu"}:
        several = (
            len(component.accelerators) > 1 or component.ntasks > 1 or (component.nodes or 1) > 1
        )
        if several or job.other_components:
            return (
                f"a request for {' and '.join(sorted(resources))} is changed for one process only"
            )
        return None
    if component.gpus_total is None:
        return "how many GPUs the job gets is left to the scheduler"
    return None
