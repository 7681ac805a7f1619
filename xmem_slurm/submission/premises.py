"""What does the sizing of a job start from, and what does its answer rest on? The same for all who
have one sized, be it to submit it, to know what it needs, to plan its training or to write it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xmem_slurm import resources
from xmem_slurm.dryrun import admission, evidence, kept_runs
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import Asked
from xmem_slurm.outcomes import learned
from xmem_slurm.report import terminal
from xmem_slurm.site import loading, places
from xmem_slurm.site.schema import DryRuns, Gpu, Site
from xmem_slurm.sizing.margins import Experience, RanOut
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers
from xmem_slurm.trace import Trace

if TYPE_CHECKING:
    from xmem_slurm.submission.answer import Tell, Wishes

_QUEUE_SECONDS = 3600.0
"""Who asks for an estimate, a plan or a script waits for nothing but that, and can press Ctrl-C; a
submission goes on without it sooner."""

Lasts = tuple[Sequence[Evidence] | None, float]
"""What an answer rests on, None where that is not as it was any more; and for how many days it is
known."""


def premises_of(
    job: Submission,
    wishes: "Wishes",
    ran_out: RanOut | None,
    tell: "Tell",
    *,
    gpus: Mapping[str, Gpu] | None = None,
    origins: bool = False,
) -> Premises:
    """Return what the sizing of a job starts from, by its user's wishes; `gpus` stand in for those
    of a site.

    `ran_out` is what is known of a script that ran out of GPU memory before. With `origins` dry
    runs note which lines asked for memory.

    Raises:
        SiteError: the site file is wrong, or there is none.
    """
    site_file, site = None, None
    if gpus is None:
        site_file = places.site_file(wishes.site, job.environ)
        site = loading.load_site(site_file).ordered_by(wishes.policy).sparing(wishes.margin)
        site = site.without_shares() if wishes.whole else site
        gpus = loading.option_gpus(site, loading.load_catalogue())
    seconds = Budget().seconds if wishes.budget is None else wishes.budget
    budget = Budget(seconds=seconds, wall_seconds=wishes.wait_seconds)
    how = wishes.engine, wishes.ranks, wishes.array_tasks
    return Premises(
        site,
        gpus,
        budget.within(DryRuns() if site is None else site.dry_run),
        run_options=Asked(*how, origins=origins, fresh=wishes.fresh),
        experience=Experience(learned.margins(site, tell), ran_out),
        basis=_basis(job, site_file, site),
    )


def _basis(job: Submission, site_file: Path | None, site: Site | None) -> list[Evidence] | None:
    """Return what the answer rests on beside what Python reads, as it is now; None where that
    cannot be told.

    The site file and those that would go before it, the GPU catalogue, the template of a changed
    script (in the site's own folder of them, too), the files of learned margins, and what the batch
    script names. What Slurm writes for the job is none of it.
    """
    named = kept_runs.named_by(from_submission(job))
    if named is None:
        return None
    templates = None if site is None else site.templates
    facts = {
        *([site_file.absolute()] if site_file else []),
        *resources.tree("site-config").glob("*.toml"),
        *places.site_places(),
        *learned.files(site),
        *(place / "batch.sh.j2" for place in resources.template_places(site_folder=templates)),
    }
    return [*map(evidence.as_it_is, facts), *named]


@contextmanager
def patient_turn(
    premises: Premises,
    tell: "Tell",
    work: str,
    seconds: float | None = None,
    *,
    verbose: bool = False,
) -> Iterator[Callable[[str], None]]:
    """Wait for the turn of dry runs that somebody asked for, and show `work` while they go on; the
    rest as of `terminal.progress`.

    Raises:
        Busy: it has not come.
    """
    with (
        admission.turn(premises.rules, _QUEUE_SECONDS, tell),
        terminal.progress(work, seconds, verbose=verbose) as change,
    ):
        yield change


def lasts(traces: Sequence[Trace], basis: Sequence[Evidence] | None) -> Lasts:
    """Return what an answer from these traces rests on, and for how many days it is known; `basis`
    as of its premises, None where it is to be known by nobody who has not waited for it.
    """
    whole = basis is not None and all(trace.files and trace.is_whole for trace in traces)
    read = [file for trace in traces for file in trace.files]
    days = answers.MOST_DAYS if whole else answers.FOR_WHO_WAITS
    return evidence.lasting([*(basis or ()), *read]), days
