"""What is sbatch given for a job, and what is its user told?

The job as it is, where it asks for no GPU; what is known of this very submission, where it was sized before (`known`);
else what sizing it says: a dry run, an estimate, a place for it, the request rewritten. Imports here are few: a job
without a GPU must not wait for pydantic or jinja2.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from xmem_slurm.cluster import client
from xmem_slurm.errors import AS_WRITTEN, NoEstimate, Refused, SlurmError, UnusedGpu, UsageError, XmemError
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.submission import Submission

if TYPE_CHECKING:
    from xmem_slurm import trace
    from xmem_slurm.site.schema import Gpu, Site
    from xmem_slurm.sizing.sizing import Sizing
    from xmem_slurm.submission.known import Answer

ENGINES = ("auto", "device", "profile")
"""How a job can be run dry (`engines`)."""

OWN_WORDS = ("off", "keep-type", "whole", "on")
"""What an #XMEM line can say; "on" is for the filter in every sbatch."""

Tell = Callable[[str], None]
"""Says at once what cannot wait for the answer."""

_UNASKED = "this job asks for no GPU, and would use one: ask for it with --gres=gpu:1"
_UNUSED = "this job asks for a GPU, and its dry run used none that torch knows of: it would start sooner without"
_FINDS_A_COPY = "the job asks Slurm for its script's path, and finds a copy: this can be changed in the script only"
_ALL_THE_SAME = "XMEM_OFF=1 submits it all the same"


class Wishes(NamedTuple):
    """What the user wants of xsbatch itself: its options, XMEM_* variables and the script's #XMEM lines."""

    off: bool = False
    dry_run: bool = False
    keep_type: bool = False
    advise: bool = False
    budget_seconds: float = 60.0
    wait_seconds: float | None = None
    """How long the dry runs may take on the wall; None as long as their budget has it."""
    queue_seconds: float | None = None
    """How long to wait for their turn; None as long as the site has it."""
    site: str | None = None
    report: str | None = None
    fresh: bool = False
    policy: str | None = None
    whole: bool = False
    engine: str | None = None
    ranks: str | None = None
    array_tasks: str | None = None


def answer(job: Submission, wishes: Wishes, tell: Tell, name: str | None = None) -> "Answer":
    """Size a job whose script is read, and change its request; as it is where sbatch will refuse it anyway.

    `name` is what the answer is kept under (`known`), if not by the wishes.

    Raises:
        Refused: the site wants no such job.
        XmemError: the job goes as it was written; the message says why.
    """
    if (job.script is None and job.command_line.wrap is None) or refusal(job) is not None:
        return job, ()
    request = job.request
    words = own_words(job) if request.asks_for_gpu else {}
    only_asked = "test-only" in request.settings and not wishes.dry_run
    if wishes.off or "off" in words or only_asked:
        return job, ()
    if not request.asks_for_gpu:
        return _unasked(job, wishes, tell, name)
    keep_type = wishes.keep_type or "keep-type" in words
    whole = wishes.whole or "whole" in words
    return _known_or_sized(job, request, wishes._replace(keep_type=keep_type, whole=whole), tell, name)


def _known_or_sized(job: Submission, request: Request, wishes: Wishes, tell: Tell, name: str | None) -> "Answer":
    """Return what is known of this submission, or size it; `name` is what it is known under, if not by the wishes.

    Of equal submissions at once one is sized, and the others wait for its answer.

    Raises:
        NoEstimate: nothing of it can be estimated.
        Busy: its turn to be run dry did not come in time.
    """
    if request.for_another_user:
        raise NoEstimate("with --uid or --gid it is another user's, and is not run dry for them")
    if request.foreign is not None:
        raise NoEstimate(f"its #{request.foreign} lines are translated by sbatch alone; say the same in #SBATCH lines")
    refused = _refused(request)
    _check_any_left(request, refused)
    from xmem_slurm.dryrun import admission  # noqa: PLC0415
    from xmem_slurm.site import places  # noqa: PLC0415
    from xmem_slurm.submission import known  # noqa: PLC0415

    name = name or known.key(job, wishes)
    kept = known.look_up(name, job) if wishes.report is None and not wishes.fresh else None
    if kept is not None:
        return kept
    began, seconds = time.time(), wishes.queue_seconds
    if seconds is None:
        tables = places.tables(wishes.site, job.environ, b"queue_seconds")
        seconds = places.seconds(tables, "dry_run", "queue_seconds", places.QUEUE_SECONDS)

    def found_meanwhile() -> "Answer | None":
        return known.look_up(name, job, began) if wishes.report is None else None

    with admission.alone(name, seconds, tell, found_meanwhile) as found:
        if found is not None:
            return found
        held = "hold" in request.settings  # such a job sbatch takes, also where no node could run it as it is
        words = None if held else client.refused(client.find_sbatch(job.environ), job.on_stdin())
        if words is None:
            return _size(job, refused, wishes, tell, name)
    if wishes.dry_run:
        raise SlurmError(f"Slurm would refuse it ({words})")
    return job, ()  # sbatch says so itself


def _unasked(job: Submission, wishes: Wishes, tell: Tell, name: str | None) -> "Answer":
    """Say of a job that asks for no GPU that it would use one, where the site wants that, and as far as it is seen.

    Raises:
        Refused: it would, and the site wants no such job.
    """
    from xmem_slurm.site import no_gpu_policy  # noqa: PLC0415

    stance = no_gpu_policy.stance(wishes.site, job.environ)
    if stance == "leave" or job.request.others or "off" in own_words(job):
        return job, ()
    asking = job.but(argv=("--gres=gpu:1", *job.argv))
    seconds = min(wishes.wait_seconds or no_gpu_policy.MOST_SECONDS, no_gpu_policy.MOST_SECONDS)
    try:
        queue = seconds if wishes.queue_seconds is None else min(wishes.queue_seconds, seconds)
        brief = wishes._replace(advise=True, wait_seconds=seconds, queue_seconds=queue)
        _, lines = _known_or_sized(asking, asking.request, brief, tell, f"{name}-asking" if name else None)
    except XmemError:
        return job, ()
    if any(line.startswith((AS_WRITTEN, _UNUSED)) for line in lines):
        return job, ()
    if stance == "refuse" and not wishes.advise:
        raise Refused(f"{_UNASKED}; {lines[0]}; {_ALL_THE_SAME}")
    return job, [_UNASKED, *lines]


def own_words(job: Submission) -> Mapping[str, int]:
    """Return the words of the script's #XMEM lines, and the line of each."""
    script = job.parsed_script
    return {word: line.line for line in (script.own if script is not None else ()) for word in line.words}


def _refused(request: Request) -> Mapping[int, str]:
    """Return why components that ask for GPUs cannot be estimated, by their number; an ordinary job is its only one."""
    reasons = {index: _why_not(request, request.components[index]) for index in request.with_gpus}
    return {index: why for index, why in reasons.items() if why is not None}


def _why_not(job: Request, component: Request) -> str | None:
    resources = {each.resource for each in component.accelerators}
    if resources - {"gpu"}:
        several = len(component.accelerators) > 1 or component.ntasks > 1 or (component.nodes or 1) > 1
        if several or job.others:
            return f"a request for {' and '.join(sorted(resources))} is changed for one process only"
        return None
    return "how many GPUs the job gets is left to the scheduler" if component.gpus_total is None else None


def _check_any_left(request: Request, refused: Mapping[int, str]) -> None:
    """Make sure that there is something to change.

    Raises:
        NoEstimate: every component that asks for GPUs is `refused`.
    """
    if len(refused) == len(request.with_gpus):
        same = len(set(refused.values())) == 1
        told = [next(iter(refused.values()))] if same else [_of(request, *each) for each in sorted(refused.items())]
        raise NoEstimate("; ".join(told))


def _of(request: Request, component: int, text: str) -> str:
    """Say of which component of a heterogeneous job something is said."""
    return f"component {component}: {text}" if request.others else text


def _size(job: Submission, refused: Mapping[int, str], wishes: Wishes, tell: Tell, name: str) -> "Answer":
    """Run dry, estimate and place each component that is not `refused`, rewrite, and keep the answer under `name`.

    Everything heavy is imported here, where a GPU job waits seconds anyway.
    """
    from xmem_slurm.cluster import start_times  # noqa: PLC0415
    from xmem_slurm.dryrun import admission  # noqa: PLC0415
    from xmem_slurm.dryrun.budget import Budget  # noqa: PLC0415
    from xmem_slurm.dryrun.order import Asked  # noqa: PLC0415
    from xmem_slurm.report import terminal  # noqa: PLC0415
    from xmem_slurm.site import loading, places  # noqa: PLC0415
    from xmem_slurm.sizing import sizing  # noqa: PLC0415
    from xmem_slurm.submission import known  # noqa: PLC0415

    request, site_file = job.request, places.site_file(wishes.site, job.environ)
    site = loading.load_site(site_file).ordered_by(wishes.policy)
    site = site.without_shares() if wishes.whole else site
    basis = _basis(job, request, site_file, site.templates)
    gpus = loading.option_gpus(site, loading.load_catalogue())
    with (
        admission.turn(site.dry_run, wishes.queue_seconds, tell),
        terminal.progress("running the job dry to see how much GPU memory it needs"),
    ):
        answers = sizing.size_components(
            job,
            [index for index in request.with_gpus if index not in refused],
            site,
            gpus,
            Budget(seconds=wishes.budget_seconds, wall_seconds=wishes.wait_seconds),
            asked=Asked(wishes.engine, wishes.ranks, wishes.array_tasks, origins=wishes.report is not None),
            starts=lambda names, component: start_times.expected(
                client.find_sbatch(job.environ), job, site, names, component
            ),
        )
    sized = {index: each for index, each in answers.items() if isinstance(each, sizing.Sizing)}
    unsized = {index: each for index, each in answers.items() if isinstance(each, NoEstimate)}
    failed = {**refused, **{index: str(error) for index, error in unsized.items()}}
    try:
        _check_any_left(request, failed)
    except NoEstimate as error:
        unused = not refused and all(isinstance(each, UnusedGpu) for each in unsized.values())
        told = _of_unused(site, wishes) if unused else None
        line = told or f"{AS_WRITTEN}: {error} [XMEM_FRESH=1 tries again]"
        read = [file for each in unsized.values() for file in each.files or ()]
        seen = basis is not None and all(each.files is not None for each in unsized.values())
        days = known.DAYS_WITHOUT_ESTIMATE if seen else known.DAYS_UNSEEN
        if any(each.busy for each in unsized.values()):
            days = known.FOR_WHO_WAITS
        known.keep(name, job, (job, [line]), [*(basis or ()), *read], days)
        if told is None:
            raise
        return job, [told]
    ready, lines = _decide(job, wishes, site, gpus, sized)
    left = [_of(request, index, f"stays as written: {why}") for index, why in sorted(failed.items())]
    lines = [*lines, *left, *_report(wishes, sized, site)]
    ranks = [rank.trace for each in sized.values() for rank in each.estimate.ranks]
    lasting = site.policy.order != "start"  # the queue is another one each time
    lasting = lasting and basis is not None and not failed and all(trace.files and trace.is_whole for trace in ranks)
    read = [file for trace in ranks for file in trace.files]
    days = known.MOST_DAYS if lasting else known.FOR_WHO_WAITS
    known.keep(name, job, (ready, lines), [*(basis or ()), *read], days)
    return ready, lines


def _of_unused(site: "Site", wishes: Wishes) -> str | None:
    """Return what is told of a job whose dry run used no GPU; None where the site has no word on such jobs.

    Raises:
        Refused: the site wants none of them.
    """
    if site.policy.unused == "refuse" and not wishes.advise:
        raise Refused(f"{_UNUSED}; {_ALL_THE_SAME}")
    return _UNUSED if site.policy.unused != "leave" else None


def _report(wishes: Wishes, sized: "Mapping[int, Sizing]", site: "Site") -> list[str]:
    """Write the report that is asked for; return the line that says why there is none."""
    from xmem_slurm.report import files  # noqa: PLC0415

    try:
        if wishes.report is not None:
            files.write(Path(wishes.report), sized, site.templates)
            return [f"report: {wishes.report}"]
    except (OSError, XmemError) as error:
        return [f"no report: {error}"]
    return []


def _basis(job: Submission, request: Request, site_file: Path, templates: Path | None) -> "list[trace.File] | None":
    """Return what the answer rests on beside what Python reads, as it is now; None where that cannot be told.

    The site file and those that would go before it, the GPU catalogue, the template of a changed script (in the site's
    own folder `templates`, too), and what the batch script names.
    """
    from xmem_slurm import resources  # noqa: PLC0415
    from xmem_slurm.rewriting import job_steps  # noqa: PLC0415
    from xmem_slurm.site import places  # noqa: PLC0415
    from xmem_slurm.slurm import script_files  # noqa: PLC0415
    from xmem_slurm.submission import known  # noqa: PLC0415

    try:
        folder = Path(request.chdir or ".").absolute()
        shell = job_steps.is_for_a_shell(job)  # a Python script says itself what it reads
        named = script_files.named_files(job_steps.text(job), folder, job.environ) if shell else set()
    except (script_files.Unknown, OSError):
        return None
    facts = {site_file.absolute(), *resources.tree("site-config").glob("*.toml"), *places.site_places()}
    facts |= {place / "batch.sh.j2" for place in resources.template_places(own=templates)}
    return [known.as_it_is(path) for path in facts | named]


def _decide(
    job: Submission, wishes: Wishes, site: "Site", gpus: "Mapping[str, Gpu]", sized: "Mapping[int, Sizing]"
) -> "Answer":
    """Change each component's request to the option that was chosen, if that is allowed.

    Components of a heterogeneous job that get the same option are changed together: one place may set it for them.

    Raises:
        UsageError: an ordinary job's request cannot be changed.
    """
    from xmem_slurm.report import terminal  # noqa: PLC0415
    from xmem_slurm.rewriting import job_steps, rewrite, sharing  # noqa: PLC0415

    request, ready = job.request, job
    itself = any(each.estimate.asks_for_script for each in sized.values()) or job_steps.looks_up_itself(job)
    lines = {index: terminal.estimate_lines(each.estimate) for index, each in sized.items()}
    together: dict[tuple[str, bool], list[int]] = {}
    for index, each in sized.items():
        lines[index] += [why for why in (each.without_kernels, each.no_share) if why]
        choice, pinned = each.placement.choice, wishes.keep_type or site.policy.keep_type
        if choice is None:
            nothing = f"stays as written: {terminal.too_small(each)}" if request.others else terminal.nothing_fits(each)
            lines[index].append(nothing)
        else:
            pinned = pinned and bool(request.components[index].gpu_types)
            allowed = site.policy.rewrite and not wishes.advise and not pinned
            together.setdefault((choice, allowed), []).append(index)
    for (choice, allowed), indexes in together.items():
        option, units = site.option[choice], sized[indexes[0]].placement.units
        granted = sharing.grant(option, gpus[choice], units, job.environ) if option.share is not None else None
        reason = "; ".join(_of(request, index, terminal.reason(sized[index])) for index in indexes)
        try:
            changed, changes = rewrite.rewrite(
                ready,
                option,
                reason,
                granted,
                indexes,
                spelled=site.dialect,
                templates=site.templates,
                in_script=not itself,
            )
        except UsageError as error:
            if allowed and not request.others:
                raise
            for index in indexes:
                lines[index].append(f"stays as written: {error}")
            continue
        ready = changed if allowed else ready
        for index in indexes:
            own = [c for c in changes if c.component == index or (c.command and index == indexes[0])]
            typed = bool(request.components[index].gpu_types)
            told = terminal.outcome(own, sized[index], typed=typed) if allowed else terminal.advice(own, sized[index])
            lines[index].append(told)
        if itself and allowed and changed.script != job.script:
            lines[indexes[-1]].append(_FINDS_A_COPY)
    return ready, [_of(request, index, line) for index, told in sorted(lines.items()) for line in told]
