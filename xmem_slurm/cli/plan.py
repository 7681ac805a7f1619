"""`xmem-slurm plan`: how a job could be trained on this site's GPUs, each way seen in a dry run."""

import json
import os
import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from xmem_slurm.cli.arguments import AsJson, Command, SiteFile, tell
from xmem_slurm.cli.wishes import Fresh, Margin, own_option, wishes_of
from xmem_slurm.errors import UsageError
from xmem_slurm.estimating import asked
from xmem_slurm.generate import templates
from xmem_slurm.planning import on_site
from xmem_slurm.report import plan as report
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files
from xmem_slurm.submission import by_plan
from xmem_slurm.submission.answer import ran_out
from xmem_slurm.submission.premises import patient_turn, premises_of


def plan(
    command: Command,
    *,
    gpus: Annotated[
        str | None, typer.Option(help="How many GPUs: 4, or a range (default: 1-8).")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="GPU options of the site, separated by commas; default: all.")
    ] = None,
    objective: Annotated[
        Literal["cost", "time", "fewest"],
        typer.Option(help="What to minimize: cost, time, or the number of GPUs."),
    ] = "cost",
    allow: Annotated[
        str | None,
        typer.Option(
            help="Only these methods, separated by commas: ddp,fsdp2; bf16 allows bf16 as well."
        ),
    ] = None,
    forbid: Annotated[str | None, typer.Option(help="Not these methods.")] = None,
    same_batch: Annotated[
        bool,
        typer.Option(
            "--keep-global-batch/--any-global-batch",
            help="Keep the number of samples per optimizer step.",
        ),
    ] = True,
    top: Annotated[int, typer.Option(min=1, help="How many ways that fit to look for.")] = 5,
    vary: Annotated[
        str | None,
        typer.Option(
            help="What is the batch of a process: batch_size=--OPTION or batch_size=VARIABLE."
        ),
    ] = None,
    site: SiteFile = None,
    budget: Annotated[
        float | None,
        own_option("xmem-budget", help="CPU seconds that all dry runs may take (180).", min=1),
    ] = None,
    margin: Margin = None,
    fresh: Fresh = False,
    write: Annotated[
        Path | None, typer.Option(help="Write the script that trains the best way, for sbatch.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how a job could be trained on this site's GPUs: ways that fit, each seen in a dry run."""
    wrong = own_files.unwritable(write) if write is not None else None
    if wrong is not None:
        raise UsageError(f"{write}: {wrong}")
    job = _as_script(asked.job_of(command, dict(os.environ)))
    # Without shares, as `by_plan` has it.
    wishes = wishes_of(job, margin=margin)._replace(site=site, fresh=fresh, whole=True)
    premises = premises_of(job, wishes, ran_out(job), tell)
    assert premises.site is not None
    common = by_plan.wanted_of(job, wishes, premises.site)
    wanted = common._replace(
        gpus=gpus,
        on=_names(on) or common.on,
        objective=objective,
        allow=_names(allow),
        forbid=_names(forbid),
        same_batch=same_batch,
        top=top,
        vary=vary,
        seconds=budget or common.seconds,  # of many dry runs: it may be more than what one may have
        can_interrupt=True,
    )
    work = "dry-running the job as written"
    with patient_turn(premises, tell, work, wanted.seconds) as shown_now:
        planned = on_site.plan(job, wanted, premises, shown_now)
    if planned.plan.was_interrupted:
        tell(report.INTERRUPTED)
    shown = json.dumps(report.objects(planned.plan, planned.gpus), indent=2) if as_json else None
    typer.echo(shown or report.text(planned.plan, planned.gpus))
    ready, of_memory = by_plan.with_host_memory(planned, wishes)
    if write is not None:
        best = ready.best
        files = ready.written(best, write)
        for path, content in files.items():
            own_files.write_for_user(path, content)
        beside = [f"; it needs {path.name} beside it" for path in files if path != write]
        sentence = f"xmem-slurm: {write} trains the first of these ways{''.join(beside)}"
        typer.echo(f"{sentence}: {ready.command(best, write)}", err=True)
        if of_memory:
            tell(of_memory)


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(filter(None, (text or "").split(",")))


def _as_script(job: Submission) -> Submission:
    """Return a job with a script: a command gets that of the template `plain`."""
    wrapped = job.command_line.wrap
    if wrapped is None:
        return job
    template = templates.find("plain", templates.folders(None))
    text = templates.render(template, templates.values(template, []), [["true"]])
    return Submission(
        ("plan.sh",), job.environ, re.sub(r"(?m)^true$", lambda _: wrapped, text).encode()
    )
