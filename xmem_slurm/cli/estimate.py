"""`xmem-slurm estimate`: how much GPU memory a script or a command needs, in words and in files."""

import difflib
import inspect
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from xmem_slurm.cli.arguments import (
    AsJson,
    Command,
    PerfettoFile,
    SiteFile,
    SnapshotFile,
    tell,
)
from xmem_slurm.cli.handing_out import Reports, hand_out
from xmem_slurm.cli.wishes import (
    ArrayTasks,
    EngineName,
    Fresh,
    HtmlFile,
    Margin,
    Policy,
    Ranks,
    ReportFile,
    Seconds,
    Verbose,
    wishes_of,
)
from xmem_slurm.errors import UsageError
from xmem_slurm.estimating import asked
from xmem_slurm.slurm.submission import Submission

_MOST_READ = 1 << 20
"""Bytes of a script in which an option would be named."""


def estimate(
    command: Command,
    *,
    as_json: AsJson = False,
    report_file: ReportFile = None,
    html_file: HtmlFile = None,
    snapshot_file: SnapshotFile = None,
    perfetto_file: PerfettoFile = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu", help="A GPU of the catalogue (`xmem-slurm gpus`), instead of the site's."
        ),
    ] = None,
    site: SiteFile = None,
    budget: Seconds = None,
    engine: EngineName = None,
    ranks: Ranks = None,
    array_tasks: ArrayTasks = None,
    policy: Policy = None,
    margin: Margin = None,
    verbose: Verbose = False,
    fresh: Fresh = False,
    advice: Annotated[
        bool,
        typer.Option(
            "--advice",
            help="If a GPU is too small, do up to three more dry runs: half the batch, bf16, "
            "checkpointing.",
        ),
    ] = False,
    max_batch: Annotated[
        bool,
        typer.Option(
            "--max-batch",
            help="Find the largest batch that fits each GPU, by several dry runs.",
        ),
    ] = False,
    vary: Annotated[
        str | None,
        typer.Option(
            help="With --max-batch: batch_size=--OPTION or batch_size=VARIABLE, if no DataLoader "
            "has it."
        ),
    ] = None,
) -> None:
    """Estimate the GPU memory of a job script, a .py file or a command; no Slurm needed, nothing is
    submitted.
    """
    reports = Reports(report_file, html_file, snapshot_file, perfetto_file)
    reports.check()
    if "--" not in sys.argv:
        _ask_of_ours(command)
    job = asked.job_of(command, dict(os.environ))
    wishes = wishes_of(
        job,
        budget=budget,
        engine=engine,
        ranks=ranks,
        array_tasks=array_tasks,
        policy=policy,
        margin=margin,
        verbose=verbose or None,
        site=site,
        fresh=fresh or None,
    )
    verbose = wishes.verbose
    wanted = asked.Wanted(wishes, gpu, advice)
    if max_batch or vary is not None:
        if reports.wanted or advice:
            raise UsageError(
                "--max-batch is an estimate of its own: it takes no report and no --advice"
            )
        _largest_batches(job, wanted, vary, as_json=as_json)
        return
    hand_out(asked.estimate(job, wanted, tell), reports, as_json=as_json, verbose=verbose)


def _largest_batches(
    job: Submission, wanted: asked.Wanted, vary: str | None, *, as_json: bool
) -> None:
    from xmem_slurm.estimating import by_dry_run  # noqa: PLC0415 - what is known is told without it
    from xmem_slurm.report import max_batch as batches  # noqa: PLC0415

    max_batches = by_dry_run.largest_batches(job, wanted, vary, tell)
    shown = json.dumps(batches.objects(max_batches), indent=2) if as_json else None
    typer.echo(shown or "\n".join(batches.lines(max_batches)))


def _ask_of_ours(command: Sequence[str]) -> None:
    """See that no option of ours stands behind the script by mistake, where it is the script's, and
    none is mistyped.

    Raises:
        UsageError: one is; or one does, and the files of the command, if it has any, do not have
            that word in them.
    """
    own_options = {
        name
        for annotation in inspect.get_annotations(estimate).values()
        for name in _names(annotation)
    }
    if command[0].startswith("-"):
        near = difflib.get_close_matches(command[0], own_options, n=1)
        raise UsageError(
            f"{command[0]}: no such option{f'; did you mean {near[0]}?' if near else ''}"
        )
    texts = [_beginning(Path(word)) for word in command if Path(word).is_file()]
    for word in command:
        name = word.partition("=")[0]
        if name in own_options and texts and not any(name.encode() in text for text in texts):
            raise UsageError(
                f"{name} comes after {command[0]}, so it would be passed to that: if it is meant "
                "for xmem-slurm, write"
                f" it before; if not, `xmem-slurm estimate -- {shlex.join(command)}`"
            )


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_READ)


def _names(annotation: Any) -> Iterator[str]:
    for option in getattr(annotation, "__metadata__", ()):
        yield from (
            name
            for name in (option.default, *(option.param_decls or ()))
            if str(name).startswith("--")
        )
