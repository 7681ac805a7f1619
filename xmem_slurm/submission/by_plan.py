"""What is decided of a job whose user wants it trained the best way that fits this site's GPUs
(--xmem-plan)?
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from xmem_slurm.decision import Decision, Kind
from xmem_slurm.errors import UsageError
from xmem_slurm.planning import on_site
from xmem_slurm.planning.changes import what_changes
from xmem_slurm.planning.on_site import Planned
from xmem_slurm.report import plan as report
from xmem_slurm.report import terminal
from xmem_slurm.site.schema import Site
from xmem_slurm.sizing.demand import memory_per_node
from xmem_slurm.submission import answers, host_memory
from xmem_slurm.submission.premises import lasts, premises_of
from xmem_slurm.units import human

if TYPE_CHECKING:
    from xmem_slurm.sizing.margins import RanOut
    from xmem_slurm.slurm.submission import Submission
    from xmem_slurm.submission.answer import Tell, Wishes


def decide(
    job: "Submission", wishes: "Wishes", *, tell: "Tell", name: str, ran_out: "RanOut | None"
) -> Decision:
    """Return the job as it trains the best of the ways found, and what of the training that
    changes; keep it as `name`, in its turn. `ran_out` as of `by_sizing.decide`.

    Raises:
        NoEstimate: it cannot be run dry, or no way fits.
        UsageError: it cannot be changed, or asks for what cannot be planned.
        SiteError: there is no site file, or it is wrong.
    """
    premises = premises_of(job, wishes._replace(whole=True), ran_out, tell)
    site = premises.site
    assert site is not None
    wanted = wanted_of(job, wishes, site)
    with terminal.progress(
        "dry-running the job as written", wanted.seconds, verbose=wishes.verbose
    ) as shown:
        planned = on_site.plan(job, wanted, premises, shown)
    planned, of_memory = with_host_memory(planned, wishes)
    best = planned.best
    ready = planned.submission(best)
    assert best.estimate is not None
    needed = human(best.estimate.required_bytes)
    changes = what_changes(planned.plan.base, best.candidate)
    seen_words = f"seen in a dry run of it, confidence {best.estimate.confidence}"
    allowed = _may_change(site, wishes)
    verb = "planned" if allowed else "could be planned (nothing is changed at this site)"
    brief = [f"{verb}: {best.candidate}; {needed} of each GPU's memory needed, {seen_words}"]
    brief += [f"this {'changes' if allowed else 'would change'} {change}" for change in changes]
    brief += [of_memory] if of_memory else []
    brief += ["no report is drawn of a plan"] if wishes.report or wishes.html else []
    kind, submitted = (Kind.REWRITTEN, ready) if allowed else (Kind.ADVISED, job)
    full = [*brief, *report.lines(planned.plan, planned.gpus)]
    brief += report.of_array(planned.plan)
    decision = Decision(kind, job, submitted, lines=full, brief=brief)
    estimates = [row.estimate for row in planned.plan.rows if row.estimate is not None]
    traces = [
        planned.plan.base.trace,
        *(rank.trace for estimate in estimates for rank in estimate.ranks),
    ]
    answers.keep_decision(name, decision, *lasts(traces, premises.basis))
    return decision


def _may_change(site: Site, wishes: "Wishes") -> bool:
    return site.policy.rewrite and not wishes.advise


def with_host_memory(planned: Planned, wishes: "Wishes") -> tuple[Planned, str]:
    """Return the plan whose best way asks for as much host memory as it was seen to hold, where
    that is let, and what is to be said of it; "" where the way asks for enough.

    Raises:
        NoEstimate: no way fits.
    """
    best = planned.best
    assert best.job is not None
    assert best.host is not None
    assert best.estimate is not None
    job, raised = host_memory.raised_on(
        *(best.job, best.host, wishes, planned.site, planned.gpus), option=best.candidate.option
    )
    words = best.host.lacking
    if _may_change(planned.site, wishes):
        words = terminal.lacks_host_memory(best.estimate, job.request, raised) or words
    host = best.host._replace(requested=memory_per_node(job.request))
    rows = [replace(row, job=job, host=host) if row is best else row for row in planned.plan.rows]
    return replace(planned, plan=replace(planned.plan, rows=rows)), words


def wanted_of(job: "Submission", wishes: "Wishes", site: Site) -> on_site.PlanWanted:
    """Return how a plan is wanted by who says nothing of it but what every dry run is told; the
    site is that of its premises, which has no shares.

    Raises:
        UsageError: the type is to be kept, and the site has no option of it.
    """
    wanted = on_site.PlanWanted(on=_pinned(job, wishes, site))
    return wanted if wishes.budget is None else wanted._replace(seconds=wishes.budget)


def _pinned(job: "Submission", wishes: "Wishes", site: Site) -> list[str]:
    """Return the options of the type that the job is to keep; none where it may get any.

    Raises:
        UsageError: the site has no option of that type.
    """
    types = job.request.gpu_types
    if not types or not (wishes.keep_type or site.policy.keep_type):
        return []
    options = [name for name, option in site.option.items() if option.type in types]
    if not options:
        raise UsageError(
            f"the type {', '.join(sorted(types))} must be kept, and site {site.name} names no "
            "such GPU"
        )
    return options
