"""Run a job dry that nobody submits, for a site or for one GPU: what does it need, and what is its
largest batch?
"""

from collections.abc import Callable, Mapping, Sequence

from xmem_slurm.cluster import guess
from xmem_slurm.dryrun import admission, dispatch, evidence
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, SiteError, UsageError
from xmem_slurm.estimating.asked import Estimated, Wanted
from xmem_slurm.outcomes import history, learned
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.max_batch import MaxBatch, largest
from xmem_slurm.report import terminal
from xmem_slurm.site import loading, places
from xmem_slurm.site.schema import DryRuns, Gpu, Site
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.margins import Experience, RanOut
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers, by_sizing

QUEUE_SECONDS = 3600.0
"""Who asks for an estimate waits for nothing but that, and can press Ctrl-C; a submission goes on
without it sooner."""

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
    where, wanted = _where(wanted, tell)
    results = _results(job, wanted, where, Experience(learned.margins(where, tell), ran_out), tell)
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
    templates = where.templates if where is not None else None
    files = _lasting(job, wanted, where, sized) if not unsized else None
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
    where, wanted = _where(wanted, tell)
    rules = where.dry_run if where is not None else DryRuns()
    if where is not None:
        gpus = sizing.spared(_gpus(wanted, where.without_shares()), where)
    else:
        gpus = _gpus(wanted, None)
    budget = Budget(seconds=wanted.wishes.budget).within(rules)
    gpu, run_options = next(iter(gpus.values())), by_sizing.asked_of(wanted.wishes)
    order = DryRunOrder.of(from_submission(job), gpu, budget, run_options)
    work = "dry-running the job with one batch after another"
    with (
        admission.turn(rules, QUEUE_SECONDS, tell),
        terminal.progress(work, verbose=wanted.wishes.verbose),
    ):
        experience = Experience(learned.margins(where, tell), history.ran_out(job))
        return dispatch.one(largest(order, lever, 0, gpus, experience), rules)


def _where(wanted: Wanted, tell: Callable[[str], None]) -> tuple[Site | None, Wanted]:
    """Return the site that an estimate is for, and what is wanted; or no site, and one GPU
    named.
    """
    where = _site(wanted.wishes.site, tell) if wanted.gpu is None else None
    if where is None:
        return None, wanted._replace(gpu=wanted.gpu or WITHOUT_SITE)
    return where.ordered_by(wanted.wishes.policy).sparing(wanted.wishes.margin), wanted


def _gpus(wanted: Wanted, where: Site | None) -> dict[str, Gpu]:
    """Return the GPUs that an estimate is for."""
    catalogue = loading.load_catalogue()
    if where is not None:
        return loading.option_gpus(where, catalogue)
    wanted_name = wanted.gpu or ""
    of_site = _option_gpu(wanted_name)
    name = of_site if of_site in catalogue else guess.named(wanted_name, catalogue)
    total = int(catalogue[name].total_bytes * (1 - wanted.wishes.margin / 100))
    return {name: catalogue[name].model_copy(update={"total_bytes": total})}


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
    job: Submission,
    wanted: Wanted,
    where: Site | None,
    experience: Experience,
    tell: Callable[[str], None],
) -> Mapping[int, Sizing | NoEstimate]:
    """Run a job dry for a site, or for the one GPU that is wanted."""
    allowance = Budget(seconds=wanted.wishes.budget)
    run_options = by_sizing.asked_of(wanted.wishes, origins=True)
    rules = where.dry_run if where is not None else DryRuns()
    components = job.request.with_gpus or range(len(job.request.components))
    gpus = _gpus(wanted, where)
    if where is not None:
        orders = sizing.size_components(
            job, components, where, gpus, allowance, run_options=run_options, experience=experience
        )
    else:
        ((name, gpu),) = gpus.items()
        orders = sizing.on_one(
            job,
            components,
            name,
            gpu,
            allowance.within(rules),
            run_options=run_options,
            experience=experience,
        )
    seconds = allowance.within(rules).seconds
    turn = admission.turn(rules, QUEUE_SECONDS, tell)
    with turn, terminal.progress("dry-running the job", seconds, verbose=wanted.wishes.verbose):
        results = dispatch.one(orders, rules)
    if not wanted.advice:
        return results

    def advised(component: int, result: Sizing | NoEstimate) -> Sizing | NoEstimate:
        if isinstance(result, NoEstimate):
            return result
        budget = allowance.within(rules)
        orders = sizing.advised(
            result, job, component, budget, run_options=run_options, experience=experience
        )
        return dispatch.one(orders, rules)

    work = "running it dry again with one change at a time"
    with (
        admission.turn(rules, QUEUE_SECONDS, tell),
        terminal.progress(work, verbose=wanted.wishes.verbose),
    ):
        return {component: advised(component, result) for component, result in results.items()}


def _lasting(
    job: Submission, wanted: Wanted, where: Site | None, sized: Mapping[int, Sizing]
) -> Sequence[Evidence] | None:
    """Return what an estimate rests on, as it is; None where that cannot be told, or another run
    may see more.
    """
    site_file = places.site_file(wanted.wishes.site) if wanted.gpu is None else None
    basis = by_sizing.basis_of(
        job, site_file, where.templates if where is not None else None, learned.files(where)
    )
    traces = [
        rank.trace
        for component_sizing in sized.values()
        for rank in component_sizing.estimate.ranks
    ]
    if basis is None or not all(trace.files and trace.is_whole for trace in traces):
        return None
    return evidence.lasting([*basis, *(file for trace in traces for file in trace.files)])


def _site(named: str | None, tell: Callable[[str], None]) -> Site | None:
    """Return the site; None where there is none, and that is told.

    Raises:
        SiteError: it is wrong, or the one that was named is not there.
    """
    try:
        path = places.site_file(named)
    except SiteError:
        tell(
            f"no site file here, so this is for one {WITHOUT_SITE}; --gpu NAME takes another "
            "(xmem-slurm gpus)"
        )
        return None
    try:
        return loading.load_site(path)
    except SiteError as error:
        raise SiteError(f"{error}; --gpu NAME takes a GPU of the catalogue instead") from error
