"""`xmem-slurm estimate --max-batch`: the largest batch that fits each GPU."""

import json
from collections.abc import Mapping
from functools import partial

import typer

from xmem_slurm.dryrun import admission, dispatch
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import Asked, DryRunOrder
from xmem_slurm.errors import UsageError
from xmem_slurm.plan.levers import BatchLever
from xmem_slurm.plan.max_batch import largest
from xmem_slurm.report import max_batch, terminal
from xmem_slurm.site.schema import DryRuns, Gpu
from xmem_slurm.slurm.submission import Submission


def echo(
    job: Submission, gpus: Mapping[str, Gpu], rules: DryRuns, asked: Asked, *, budget: Budget, vary: str, as_json: bool
) -> None:
    """Print the largest batch of `job` on each of these GPUs; `budget` is for each batch that is tried.

    Raises:
        UsageError: the job has several components, or nothing that could be varied as asked.
        NoEstimate: a dry run failed.
    """
    if job.request.others:
        raise UsageError("--max-batch: not for a heterogeneous job; give it the script of one component")
    order = DryRunOrder.of(from_submission(job), next(iter(gpus.values())), budget.within(rules), asked)
    lever = BatchLever.parse(vary) if vary else BatchLever()
    turn = admission.turn(rules, None, partial(typer.echo, err=True))
    with turn, terminal.progress("running the job dry with one batch after another"):
        found = dispatch.one(largest(order, lever, 0, gpus), rules)
    typer.echo(json.dumps(max_batch.objects(found), indent=2) if as_json else "\n".join(max_batch.lines(found)))
