"""What is decided of a job that is sized: dry runs, an estimate, a place for it, the request
rewritten; and kept.

Everything heavy is imported here, where a GPU job waits seconds anyway.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from xmem_slurm.decision import Decision, Kind, Part, Retry, stopped_by
from xmem_slurm.dryrun import dispatch, evidence
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.errors import NoEstimate, Refused, UnusedGpu, UsageError
from xmem_slurm.outcomes import prediction
from xmem_slurm.report import decided, terminal
from xmem_slurm.rewriting import job_steps, sharing
from xmem_slurm.rewriting.rewrite import Change, recorded, rewrite
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.demand import memory_per_node
from xmem_slurm.sizing.dry_runs import estimate_on
from xmem_slurm.sizing.margins import RanOut
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers, host_memory
from xmem_slurm.submission.premises import Lasts, lasts, premises_of

if TYPE_CHECKING:
    from xmem_slurm.submission.answer import Tell, Wishes

_LIKELY_TO_FAIL = "it is likely to fail"


def decide(
    job: Submission,
    not_sized: Mapping[int, str],
    wishes: "Wishes",
    *,
    tell: "Tell",
    name: str,
    ran_out: RanOut | None,
) -> Decision:
    """Size each component that is not `not_sized`, decide what becomes of it, and keep that under
    `name`; in its turn.

    `ran_out` is what is known of a script that ran out of GPU memory before.

    Raises:
        NoEstimate: there is none for any component.
        Refused: the site wants no such job.
        UsageError: an ordinary job's request cannot be changed.
    """
    is_drawn = wishes.report is not None or wishes.html is not None
    premises = premises_of(job, wishes, ran_out, tell, origins=is_drawn)
    site, gpus = premises.site, premises.gpus
    assert site is not None
    sizings = _sizings(job, not_sized, wishes, premises)
    sized = {
        index: component for index, component in sizings.items() if isinstance(component, Sizing)
    }
    errors = {
        index: component
        for index, component in sizings.items()
        if isinstance(component, NoEstimate)
    }
    unsized = {**not_sized, **{index: str(error) for index, error in errors.items()}}
    if not sized:
        unused = not not_sized and all(isinstance(error, UnusedGpu) for error in errors.values())
        if not not_sized and all(error.fails for error in errors.values()):
            unsized = {index: f"{_LIKELY_TO_FAIL}: {why}" for index, why in unsized.items()}
            if _is_refused(wishes, site):
                raise Refused(decided.refusal(decided.of_components(job.request, unsized)))
        decision = _without_estimate(job, unsized, site, unused=unused, advise=wishes.advise)
        answers.keep_decision(
            name, decision, *_lasts_without_estimate(list(errors.values()), premises.basis)
        )
        if decision.kind is Kind.NOT_ESTIMATED:
            raise NoEstimate(decision.why)
        return decision
    in_script = _in_script(job, sized)
    with_memory, raised = host_memory.raised(job, sized, wishes, site, gpus, in_script=in_script)
    sized = _asking_as(with_memory, sized)
    decision = _with_parts(with_memory, wishes, site, gpus, sized, in_script=in_script, written=job)
    decision = _with_record(decision, with_memory, site)._replace(left=unsized, raised=raised)
    too_small = [
        line
        for part in decision.parts.values()
        if (line := terminal.runs_out(part.kind, part.sizing))
    ]
    if too_small and _is_refused(wishes, site):
        answers.keep_decision(name, decision, None, sized=sized, templates=site.templates)
        raise Refused(decided.refusal(*too_small))
    dry_run = wishes.dry_run or job.only_asks
    full, brief = (
        terminal.decision_lines(decision, dry_run=dry_run, brief=is_brief)
        for is_brief in (False, True)
    )
    before = [ran_out.words] if ran_out is not None else []
    decision = decision._replace(lines=[*before, *full], brief=[*before, *brief])
    if not job.request.other_components:
        gpu = gpus[sized[0].estimate.gpu_name]
        may_ask = decision.kind in (Kind.REWRITTEN, Kind.FITS)
        retry_count = int(wishes.retry) if may_ask else 0
        retries = _larger(with_memory, premises, sized[0], retry_count, written=job)
        decision = decision._replace(
            prediction=prediction.of(sized[0].estimate, gpu), retries=retries
        )
    rests_on, days = _lasts(decision, site, premises.basis)
    answers.keep_decision(name, decision, rests_on, days, sized=sized, templates=site.templates)
    return decision


def _asking_as(job: Submission, sized: Mapping[int, Sizing]) -> dict[int, Sizing]:
    """Return them with the host memory that the job asks for now: so it is told, and kept."""
    requests = job.request.components
    return {
        index: replace(sizing, host_requested=memory_per_node(requests[index]))
        for index, sizing in sized.items()
    }


def _is_refused(wishes: "Wishes", site: Site) -> bool:
    """Whether a job that cannot run is not submitted."""
    return not wishes.advise and (wishes.strict or site.policy.cannot_run == "refuse")


def _sizings(
    job: Submission, not_sized: Mapping[int, str], wishes: "Wishes", premises: Premises
) -> Mapping[int, Sizing | NoEstimate]:
    """Run the job dry, and return what that says of each component that is sized."""
    components = [index for index in job.request.with_gpus if index not in not_sized]
    seconds = premises.budget.seconds
    with terminal.progress("dry-running the job", seconds, verbose=wishes.verbose):
        orders = sizing.size_components(job, components, premises, ask_slurm=True)
        return dispatch.one(orders, premises.rules)


def _without_estimate(
    job: Submission, reasons: Mapping[int, str], site: Site, *, unused: bool, advise: bool
) -> Decision:
    """Return what is decided of a job of which nothing was sized; `unused` where its dry run used
    no GPU.

    Raises:
        Refused: the site wants no job that asks for a GPU and uses none.
    """
    if unused and site.policy.unused == "refuse" and not advise:
        raise Refused(decided.refusal(decided.UNUSED))
    if unused and site.policy.unused != "leave":
        return Decision(Kind.UNUSED_GPU, job, job)
    return stopped_by(NoEstimate(decided.of_components(job.request, reasons)), job)


def _lasts_without_estimate(
    errors: Sequence[NoEstimate], basis: Sequence[Evidence] | None
) -> Lasts:
    """Return what it rests on that there is no estimate, and for how many days that is known."""
    read = [file for error in errors for file in error.files or ()]
    files_known = basis is not None and all(error.files is not None for error in errors)
    days = answers.DAYS_WITHOUT_ESTIMATE if files_known else answers.DAYS_UNSEEN
    days = answers.FOR_WHO_WAITS if any(error.busy for error in errors) else days
    return evidence.lasting([*(basis or ()), *read]), days


def _lasts(decision: Decision, site: Site, basis: Sequence[Evidence] | None) -> Lasts:
    """Return what a decision by size rests on, and for how many days it is known."""
    traces = [rank.trace for part in decision.parts.values() for rank in part.sizing.estimate.ranks]
    # By order of start it is not: the queue is another one each time.
    same_again = not decision.left and site.policy.order != "start"
    return lasts(traces, basis if same_again else None)


def _in_script(job: Submission, sized: Mapping[int, Sizing]) -> bool:
    """Whether the script itself may be changed: the job does not ask Slurm where it is."""
    asks_for_script = any(component.estimate.asks_for_script for component in sized.values())
    return not asks_for_script and not job_steps.looks_up_itself(job)


def _with_record(decision: Decision, with_memory: Submission, site: Site) -> Decision:
    """Have a job say in its script that its host memory alone was raised, where that is so."""
    if decision.ready != with_memory or with_memory == decision.written:
        return decision
    reason = terminal.held_on_host(decision.parts[0].sizing.estimate)
    ready = recorded(with_memory, decision.written, reason, site.templates)
    kind = Kind.REWRITTEN if decision.kind is Kind.FITS else decision.kind
    return decision._replace(kind=kind, ready=ready)


def _with_parts(
    job: Submission,
    wishes: "Wishes",
    site: Site,
    gpus: Mapping[str, Gpu],
    sized: Mapping[int, Sizing],
    *,
    in_script: bool,
    written: Submission,
) -> Decision:
    """Change each component's request to the option that was chosen, if that is allowed; `written`
    is the job as its user has it.

    Components of a heterogeneous job that get the same option are changed together: one place may
    set it for them.

    Raises:
        UsageError: an ordinary job's request cannot be changed.
    """
    keep_type = wishes.keep_type or site.policy.keep_type
    parts: dict[int, Part] = {}
    together: dict[tuple[str, bool], dict[int, Sizing]] = {}
    for index, component in sized.items():
        if component.placement.choice is None:
            parts[index] = Part(Kind.NOTHING_FITS, component)
            continue
        if component.unseen_tasks and len(component.placement.verdicts) > 1:
            parts[index] = Part(Kind.CANNOT_CHANGE, component, why=_unseen(component))
            continue
        pinned = keep_type and bool(job.request.components[index].gpu_types)
        allowed = site.policy.rewrite and not wishes.advise and not pinned
        together.setdefault((component.placement.choice, allowed), {})[index] = component
    ready = job
    for (choice, allowed), group in together.items():
        try:
            changed, changes = _rewritten(
                ready,
                choice,
                site,
                gpus,
                group,
                in_script=in_script,
                written=written if written != job else None,
            )
        except UsageError as error:
            if allowed and not job.request.other_components:
                raise
            parts |= {
                index: Part(Kind.CANNOT_CHANGE, component, why=str(error))
                for index, component in group.items()
            }
            continue
        first, last = next(iter(group)), next(reversed(group))
        copied = not in_script and allowed and changed.script != job.script
        for index, component in group.items():
            own_changes = [
                change
                for change in changes
                if change.component == index or (change.command and index == first)
            ]
            kind = Kind.REWRITTEN if allowed else Kind.ADVISED
            if changed == ready:
                kind = Kind.FITS
            parts[index] = Part(kind, component, own_changes, in_a_copy=copied and index == last)
        ready = changed if allowed else ready
    kinds = {part.kind for part in parts.values()}
    return Decision(next(kind for kind in Kind if kind in kinds), written, ready, parts)


def _unseen(component: Sizing) -> str:
    """Say why a request that leaves open which GPU it gets does so still."""
    return (
        f"{component.placement.choice} would do for the tasks that ran, and those that did not may "
        "need more"
    )


def _larger(
    job: Submission,
    premises: Premises,
    sized: Sizing,
    count: int,
    written: Submission | None = None,
) -> Sequence[Retry]:
    """Return the job on larger GPUs than the one chosen for it, each larger than the one before;
    `written` is it as its user has it, where it is changed already.

    Each has the prediction for its own GPU, not that for the one chosen: on another kind of GPU
    the job needs another amount, and its outcome would be held against the wrong figure.
    """
    placement, retries = sized.placement, list[Retry]()
    site, gpus = premises.site, premises.gpus
    assert site is not None
    size = max(
        (gpus[v.name].total_bytes for v in placement.verdicts if v.name == placement.choice),
        default=None,
    )
    whole = (v for v in placement.verdicts if v.share is None and v.fits is not False)
    for verdict in sorted(whole, key=lambda v: (v.gpu.total_bytes, site.option[v.name].cost)):
        if size is None or verdict.gpu.total_bytes <= size or len(retries) == count:
            continue
        size, reason = verdict.gpu.total_bytes, f"in case {placement.choice} is too small"
        option = site.option[verdict.name]
        estimate = estimate_on(verdict.name, sized.estimate, gpus, premises.experience)
        predicted = None if estimate is None else prediction.of(estimate, gpus[verdict.name])
        with suppress(UsageError):
            ready, _ = rewrite(
                job,
                option,
                reason,
                spelled=site.dialect,
                templates=site.templates,
                written=written if written != job else None,
            )
            retries.append(Retry(ready, predicted))
    return retries


def _rewritten(
    job: Submission,
    choice: str,
    site: Site,
    gpus: Mapping[str, Gpu],
    group: Mapping[int, Sizing],
    *,
    in_script: bool,
    written: Submission | None,
) -> tuple[Submission, Sequence[Change]]:
    """Return the job with a group of its components asking for the GPU option that was chosen for
    all of them; `written` as of `rewrite`.
    """
    option, units = site.option[choice], next(iter(group.values())).placement.units
    granted = None
    if option.share is not None:
        granted = sharing.grant(option, gpus[choice], units, job.environ)
    reasons = (
        decided.of_component(job.request, index, terminal.reason(component))
        for index, component in group.items()
    )
    return rewrite(
        job,
        option,
        "; ".join(reasons),
        granted,
        list(group),
        spelled=site.dialect,
        templates=site.templates,
        in_script=in_script,
        written=written,
    )
