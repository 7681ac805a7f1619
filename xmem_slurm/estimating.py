"""Estimate a job that nobody submits: a script or a command in, what is known of it out. No Slurm is needed."""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.cluster import guess
from xmem_slurm.dryrun import admission, dispatch
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import Orders
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import Asked, DryRunOrder
from xmem_slurm.errors import NoEstimate, SiteError, UsageError
from xmem_slurm.outcomes import history, learned
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.max_batch import MaxBatch, largest
from xmem_slurm.report import terminal
from xmem_slurm.site import loading, places
from xmem_slurm.site.schema import DryRuns, Gpu, Site
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.margins import Experience
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import by_sizing, known, last_estimates
from xmem_slurm.trace import File

_PYTHONS = ("python", "python3")
"""Of these the first on PATH runs a Python file, as a shell's user would have it run."""


WITHOUT_SITE = "a100-sxm4-80gb"
"""The GPU of an estimate where there is no site and none is named: every torch from 2.4 to 2.15 has kernels for it."""


class Wanted(NamedTuple):
    """How an estimate is wanted. `gpu` stands in place of a site's options, which are in the order of `policy`.

    `budget` is in CPU seconds, `margin` in percent of each GPU's memory.
    """

    gpu: str | None = None
    site: str | None = None
    budget: float = 60.0
    engine: str | None = None
    ranks: str | None = None
    margin: float = 0.0
    policy: str | None = None
    advice: bool = False
    verbose: bool = False
    fresh: bool = False
    """Whether what is known of it already is no answer."""


class Estimated(NamedTuple):
    """What is known of each component of a job, by its number; `left` says of the others why there is no estimate.

    `templates` is the site's own folder of them.
    """

    sized: Mapping[int, Sizing]
    left: Mapping[int, str]
    several: bool
    templates: Path | None = None
    known_since: float | None = None


def job_of(command: Sequence[str], environ: Mapping[str, str], folder: Path = Path()) -> Submission:
    """Take a file that begins with #! as a job script with its arguments, and anything else as a command to wrap.

    A Python file is run by the Python on PATH. `folder` is where the command would be run.

    Raises:
        UsageError: there is no such file or command, or nothing that runs it.
    """
    script, path = folder / command[0], environ.get("PATH")
    if script.is_file() and script.read_bytes().startswith(b"#!"):
        return Submission(tuple(command), environ, script.read_bytes())
    if script.suffix == ".py" and script.is_file():
        python = next((name for name in _PYTHONS if shutil.which(name, path=path)), None)
        if python is None:
            raise UsageError(
                f"{script}: no python on PATH; activate the job's, or name it: -- /PATH/TO/python {script}"
            )
        command = (python, *command)
    elif shutil.which(command[0], path=path) is None:
        wrong = "does not begin with #!, nor can it be run" if script.is_file() else "no such script or command"
        raise UsageError(f"{command[0]}: {wrong}")
    return Submission(("--wrap", shlex.join(command)), environ, None)


def estimate(job: Submission, wanted: Wanted, tell: Callable[[str], None]) -> Estimated:
    """Say what each of a job's components needs: as it is known, if nothing has changed, else by running it dry.

    `tell` says what cannot wait.

    Raises:
        NoEstimate: nothing is known of any component.
        UsageError: the catalogue has no such GPU.
        SiteError: the site file is wrong, or the one that was named is not there.
    """
    ran_out = history.ran_out(job)
    key = known.key(job, [wanted._replace(verbose=False, fresh=False), ran_out and ran_out.words])
    last = None if wanted.fresh else last_estimates.find(job.argv)
    if last is not None and last.key == key and last.files is not None and known.unchanged(last.files):
        return Estimated(last.sized, last.left, last.several, known_since=last.made)
    where, wanted = _where(wanted, tell)
    answers = _answers(job, wanted, where, Experience(learned.margins(where), ran_out), tell)
    sized = {component: each for component, each in answers.items() if isinstance(each, Sizing)}
    errors = {component: each for component, each in answers.items() if isinstance(each, NoEstimate)}
    if not sized:
        raise next(iter(errors.values()))
    left = {component: str(error) for component, error in errors.items()}
    found = Estimated(sized, left, bool(job.request.others), where.templates if where is not None else None)
    rests_on = _lasting(job, wanted, where, found)
    last_estimates.keep(job.argv, sized, left, several=found.several, key=key, files=rests_on)
    return found


def largest_batches(
    job: Submission, wanted: Wanted, vary: str | None, tell: Callable[[str], None]
) -> Sequence[MaxBatch]:
    """Find the largest batch of a job that fits each GPU; `vary` names what its batch is, where no DataLoader has it.

    `wanted.budget` is for each batch that is tried. Shares of GPUs are not tried.

    Raises:
        NoEstimate: a dry run failed, or nothing of the job is its batch.
        UsageError: the job has several components, or not what `vary` names; and as `estimate` does.
        SiteError: as `estimate` does.
    """
    if job.request.others:
        raise UsageError("--max-batch: not for a heterogeneous job; give it the script of one component")
    lever = BatchLever.parse(vary) if vary is not None else BatchLever()
    where, wanted = _where(wanted, tell)
    rules = where.dry_run if where is not None else DryRuns()
    gpus = sizing.spared(_gpus(wanted, where.without_shares()), where) if where is not None else _gpus(wanted, None)
    budget, asked = Budget(seconds=wanted.budget).within(rules), Asked(wanted.engine, wanted.ranks)
    order = DryRunOrder.of(from_submission(job), next(iter(gpus.values())), budget, asked)
    with admission.turn(rules, None, tell), terminal.progress("running the job dry with one batch after another"):
        return dispatch.one(largest(order, lever, 0, gpus), rules)


def _where(wanted: Wanted, tell: Callable[[str], None]) -> tuple[Site | None, Wanted]:
    """Return the site that an estimate is for, and what is wanted; or no site, and one GPU named."""
    where = _site(wanted.site, tell) if wanted.gpu is None else None
    if where is None:
        return None, wanted._replace(gpu=wanted.gpu or WITHOUT_SITE)
    return where.ordered_by(wanted.policy).sparing(wanted.margin), wanted


def _gpus(wanted: Wanted, where: Site | None) -> dict[str, Gpu]:
    """Return the GPUs that an estimate is for."""
    catalogue = loading.load_catalogue()
    if where is not None:
        return loading.option_gpus(where, catalogue)
    name = guess.named(wanted.gpu or "", catalogue)
    total = int(catalogue[name].total_bytes * (1 - wanted.margin / 100))
    return {name: catalogue[name].model_copy(update={"total_bytes": total})}


def _answers(
    job: Submission, wanted: Wanted, where: Site | None, experience: Experience, tell: Callable[[str], None]
) -> Mapping[int, Sizing | NoEstimate]:
    """Run a job dry for a site, or for the one GPU that is wanted."""
    allowance, asked = Budget(seconds=wanted.budget), Asked(wanted.engine, wanted.ranks, origins=True)
    rules = where.dry_run if where is not None else DryRuns()
    components = job.request.with_gpus or range(len(job.request.components))
    gpus = _gpus(wanted, where)
    if where is not None:
        orders = sizing.size_components(job, components, where, gpus, allowance, asked=asked, experience=experience)
    else:
        ((name, gpu),) = gpus.items()
        orders = sizing.on_one(job, components, name, gpu, allowance.within(rules), asked=asked, experience=experience)
    seconds = allowance.within(rules).seconds
    with admission.turn(rules, None, tell), terminal.progress("running the job dry", seconds, verbose=wanted.verbose):
        answers = dispatch.one(orders, rules)
    if not wanted.advice:
        return answers

    def advice(sized: Sizing, component: int) -> Orders[Sizing]:
        budget = allowance.within(rules)
        return sizing.advised(sized, job, component, budget, asked=asked, experience=experience)

    with admission.turn(rules, None, tell), terminal.progress("running it dry again with one change at a time"):
        return {
            number: dispatch.one(advice(each, number), rules) if isinstance(each, Sizing) else each
            for number, each in answers.items()
        }


def _lasting(job: Submission, wanted: Wanted, where: Site | None, found: Estimated) -> Sequence[File] | None:
    """Return what an estimate rests on, as it is; None where that cannot be told, or another run may see more."""
    site_file = places.site_file(wanted.site) if wanted.gpu is None else None
    basis = by_sizing.basis_of(job, site_file, found.templates, learned.files(where))
    traces = [rank.trace for each in found.sized.values() for rank in each.estimate.ranks]
    if basis is None or found.left or not all(trace.files and trace.is_whole for trace in traces):
        return None
    return known.lasting([*basis, *(file for trace in traces for file in trace.files)])


def _site(named: str | None, tell: Callable[[str], None]) -> Site | None:
    """Return the site; None where there is none, and that is told.

    Raises:
        SiteError: it is wrong, or the one that was named is not there.
    """
    try:
        path = places.site_file(named)
    except SiteError:
        tell(f"no site file here, so this is as on one {WITHOUT_SITE}; --gpu NAME takes another (xmem-slurm gpus)")
        return None
    try:
        return loading.load_site(path)
    except SiteError as error:
        raise SiteError(f"{error}; --gpu NAME takes a GPU of the catalogue in its place") from error
