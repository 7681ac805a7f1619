"""Run a job dry that nobody submits, for a site or for one GPU: what does it need, and what is its
largest batch?
"""

from collections.abc import Callable, Mapping, Sequence

from xmem_slurm.cluster import guess
from xmem_slurm.dryrun import dispatch
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.errors import NoEstimate, SiteError, UsageError
from xmem_slurm.estimating.asked import Estimated, Wanted
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.max_batch import MaxBatch, largest
from xmem_slurm.site import loading, places
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.margins import RanOut
from xmem_slurm.sizing.premises import Premises, spared
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answer, answers
from xmem_slurm.submission.premises import lasts, patient_turn, premises_of

WITHOUT_SITE = "a100-sxm4-80gb"
"""The GPU of an estimate where there is no site and none is named: every torch from 2.4 to 2.15 has
kernels for it."""


def estimate(
    job: Submission, wanted: Wanted, key: str, ran_out: RanOut | None, tell: Callable[[str], None]
) -> Estimated:
    """Run a job dry, say what each of its components needs, and keep that under `key`.

    Raises:
        NoEstimate: nothing is known of any component.
        UsageError: the catalogue has no such GPU.
        SiteError: the site file is wrong, or the one that was named is not there.
    """
    premises = _premises(job, wanted, ran_out, tell, origins=True)
    results = _results(job, wanted, premises, tell)
    sized = {
        component: result for component, result in results.items() if isinstance(result, Sizing)
    }
    errors = {
        component: result for component, result in results.items() if isinstance(result, NoEstimate)
    }
    if not sized:
        raise next(iter(errors.values()))
    unsized = {component: str(error) for component, error in errors.items()}
    several = bool(job.request.other_components)
    templates = None if premises.site is None else premises.site.templates
    files = _lasting(premises, sized) if not unsized else None
    texts = answers.keep_estimate(key, job, sized, unsized, rests_on=files, templates=templates)
    return Estimated(texts, unsized, several, lambda: sized, templates)


def largest_batches(
    job: Submission, wanted: Wanted, vary: str | None, tell: Callable[[str], None]
) -> Sequence[MaxBatch]:
    """Find the largest batch of a job that fits each GPU; `vary` names what its batch is, where no
    DataLoader has it.

    `wanted.wishes.budget` is for each batch that is tried. Shares of GPUs are not tried.

    Raises:
        NoEstimate: a dry run failed, or nothing of the job is its batch.
        UsageError: the job has several components, or not what `vary` names; and as `estimate`
        does.
        SiteError: as `estimate` does.
    """
    if job.request.other_components:
        raise UsageError(
            "--max-batch: not for a heterogeneous job; give it the script of one component"
        )
    lever = BatchLever.parse(vary) if vary is not None else BatchLever()
    whole = wanted._replace(wishes=wanted.wishes._replace(whole=True))
    premises = _premises(job, whole, answer.ran_out(job), tell)
    orders = largest(premises.order(job), lever, 0, premises.shown, premises.experience)
    work = "dry-running the job with one batch after another"
    with patient_turn(premises, tell, work, verbose=wanted.wishes.verbose):
        return dispatch.one(orders, premises.rules)


def _premises(
    job: Submission,
    wanted: Wanted,
    ran_out: RanOut | None,
    tell: Callable[[str], None],
    *,
    origins: bool = False,
) -> Premises:
    """Return what an estimate starts from: at a site, or of one GPU where that is named, or where
    there is no site, which is told.

    Raises:
        UsageError: the catalogue has no such GPU.
        SiteError: the site file is wrong, or the one that was named is not there.
    """
    wishes, name = wanted.wishes, wanted.gpu
    if name is None and not _has_site(job, wishes.site):
        name = WITHOUT_SITE
        tell(
            f"no site file here, so this is for one {name}; --gpu NAME takes another "
            "(xmem-slurm gpus)"
        )
    gpus = None if name is None else spared(_named(name), wishes.margin / 100)
    try:
        return premises_of(job, wishes, ran_out, tell, gpus=gpus, origins=origins)
    except SiteError as error:
        raise SiteError(f"{error}; --gpu NAME takes a GPU of the catalogue instead") from error


def _has_site(job: Submission, named: str | None) -> bool:
    try:
        places.site_file(named, job.environ)
    except SiteError:
        return False
    return True


def _named(name: str) -> dict[str, Gpu]:
    """Return the GPU of this name, in the catalogue's words or in those of the site's options.

    Raises:
        UsageError: the catalogue has no such GPU.
    """
    catalogue = loading.load_catalogue()
    of_site = _option_gpu(name)
    name = of_site if of_site in catalogue else guess.named(name, catalogue)
    return {name: catalogue[name]}


def _option_gpu(name: str) -> str | None:
    """Return the GPU of the site's option of this name, which is what xsbatch calls it; None where
    there is none.
    """
    try:
        option = loading.load_site(places.site_file(None)).option.get(name)
    except SiteError:
        return None
    return None if option is None else option.gpu


def _results(
    job: Submission, wanted: Wanted, premises: Premises, tell: Callable[[str], None]
) -> Mapping[int, Sizing | NoEstimate]:
    """Run a job dry for a site, or for the one GPU that is wanted."""
    components = job.request.with_gpus or range(len(job.request.components))
    orders = sizing.size_components(job, components, premises)
    work, seconds = "dry-running the job", premises.budget.seconds
    with patient_turn(premises, tell, work, seconds, verbose=wanted.wishes.verbose):
        results = dispatch.one(orders, premises.rules)
    if not wanted.advice:
        return results

    def advised(component: int, result: Sizing | NoEstimate) -> Sizing | NoEstimate:
        if isinstance(result, NoEstimate):
            return result
        return dispatch.one(sizing.advised(result, job, component, premises), premises.rules)

    work = "running it dry again with one change at a time"
    with patient_turn(premises, tell, work, verbose=wanted.wishes.verbose):
        return {component: advised(component, result) for component, result in results.items()}


def _lasting(premises: Premises, sized: Mapping[int, Sizing]) -> Sequence[Evidence] | None:
    """Return what an estimate rests on, as it is; None where that cannot be told, or another run
    may see more.
    """
    estimates = [component_sizing.estimate for component_sizing in sized.values()]
    traces = [rank.trace for estimate in estimates for rank in estimate.ranks]
    rests_on, days = lasts(traces, premises.basis)
    return rests_on if days else None
