"""What is decided of a job whose user wants it trained the best way that fits this site's GPUs (--xmem-plan)?"""

from typing import TYPE_CHECKING

from xmem_slurm.decision import Decision, Kind
from xmem_slurm.outcomes import learned
from xmem_slurm.planning import on_site
from xmem_slurm.planning.changes import what_changes
from xmem_slurm.report import plan as report
from xmem_slurm.report import terminal
from xmem_slurm.site import places
from xmem_slurm.submission import by_sizing, known
from xmem_slurm.units import human

if TYPE_CHECKING:
    from xmem_slurm.slurm.submission import Submission
    from xmem_slurm.submission.answer import Tell, Wishes


def decide(job: "Submission", wishes: "Wishes", tell: "Tell", name: str) -> Decision:
    """Return the job as it trains the best of the ways found, and what of the training that changes; keep it as `name`.

    Raises:
        NoEstimate: it cannot be run dry, or no way fits.
        UsageError: it cannot be changed, or asks for what cannot be planned.
        SiteError: there is no site file, or it is wrong.
    """
    wanted = on_site.PlanWanted(site=wishes.site)
    with terminal.progress("running the job dry as it is", wanted.seconds, verbose=wishes.verbose) as shown:
        found = on_site.plan(job, wanted, tell, shown)
    best = found.best
    ready = found.submission(best)
    assert best.estimate is not None
    needed = human(best.estimate.required_bytes)
    changes = what_changes(found.plan.base, best.candidate)
    seen = f"seen in a dry run of it, confidence {best.estimate.confidence}"
    brief = [f"planned: {best.candidate}; {needed} of each GPU's memory needed, {seen}"]
    brief += [f"this changes {each}" for each in changes]
    brief += [best.host.lacking] if best.host is not None and best.host.lacking else []
    decision = Decision(Kind.REWRITTEN, job, ready, lines=[*brief, *report.lines(found.plan, found.gpus)], brief=brief)
    estimates = [row.estimate for row in found.plan.rows if row.estimate is not None]
    traces = [found.plan.base.trace, *(rank.trace for estimate in estimates for rank in estimate.ranks)]
    site_file = places.site_file(wishes.site, job.environ)
    basis = by_sizing.basis_of(job, site_file, found.site.templates, learned.files(found.site))
    known.keep(name, decision, *by_sizing.lasts(traces, basis))
    return decision
