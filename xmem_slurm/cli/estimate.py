"""`xmem-slurm estimate`: how much GPU memory a script or a command needs, in words and in files."""

import difflib
import inspect
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from xmem_slurm import estimating
from xmem_slurm.cli.outcomes import explain_job
from xmem_slurm.cli.site import SiteFile
from xmem_slurm.dryrun import Engine
from xmem_slurm.errors import UsageError
from xmem_slurm.estimating import Estimated
from xmem_slurm.report import comparison, files, html, perfetto, snapshot, terminal
from xmem_slurm.report import json as json_report
from xmem_slurm.report import max_batch as batches
from xmem_slurm.report.largest import at_peak
from xmem_slurm.report.options import outlooks, remedy
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files
from xmem_slurm.submission import last_estimates, settings
from xmem_slurm.submission.answer import Wishes

Verbose = Annotated[
    bool, typer.Option("--verbose", "--xmem-verbose", help="Say what the memory is for, and why it is how sure.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        "--xmem-report",
        help="Write a report: .html, .pickle (torch's snapshot), .trace.json (Perfetto), else JSON.",
    ),
]
HtmlFile = Annotated[Path | None, typer.Option("--html", "--xmem-html", help="Write charts and tables, one HTML file.")]
SnapshotFile = Annotated[
    Path | None, typer.Option("--snapshot", help="Write torch's memory snapshot, for pytorch.org/memory_viz.")
]
PerfettoFile = Annotated[Path | None, typer.Option("--perfetto", help="Write memory counters, for ui.perfetto.dev.")]


_MOST_READ = 1 << 20
"""Bytes of a script in which an option would be named."""


_JOB = re.compile(r"\d+(_\d+)?")


def estimate(
    command: Annotated[list[str], typer.Argument(help="A job script or a .py file with its arguments, or -- COMMAND…")],
    *,
    as_json: AsJson = False,
    report_file: ReportFile = None,
    html_file: HtmlFile = None,
    snapshot_file: SnapshotFile = None,
    perfetto_file: PerfettoFile = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="A GPU of the catalogue (`xmem-slurm gpus`), in place of a site's.")
    ] = None,
    site: SiteFile = None,
    budget: Annotated[
        float | None, typer.Option("--budget", "--xmem-budget", help="CPU seconds that the dry runs may take (60).")
    ] = None,
    engine: Annotated[
        Engine | None,
        typer.Option("--engine", "--xmem-engine", help="Stand-in CUDA libraries, or real steps on the CPU."),
    ] = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks", "--xmem-ranks", help="Ranks that are run beside the first: all, last, or numbers (0,3)."
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin", "--xmem-margin", help="Percent of each GPU's memory to be left free beside the margin."
        ),
    ] = None,
    verbose: Verbose = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", "--xmem-fresh", help="Run dry even if nothing has changed since the last time.")
    ] = False,
    advice: Annotated[
        bool,
        typer.Option(
            "--advice", help="Where a GPU is too small, up to three more dry runs: half the batch, bf16, checkpointing."
        ),
    ] = False,
    max_batch: Annotated[
        bool, typer.Option("--max-batch", help="Find the largest batch that fits each GPU, by several dry runs on it.")
    ] = False,
    vary: Annotated[
        str | None,
        typer.Option(help="With --max-batch: batch_size=--OPTION or batch_size=VARIABLE, if no DataLoader has it."),
    ] = None,
) -> None:
    """Estimate the GPU memory of a job script, a .py file or a command; no Slurm needed, nothing is submitted."""
    reports = _Reports(report_file, html_file, snapshot_file, perfetto_file)
    reports.check()
    if "--" not in sys.argv:
        _ask_of_ours(command)
    job = estimating.job_of(command, dict(os.environ))
    typed = {"budget": budget, "engine": engine, "ranks": ranks, "margin": margin, "verbose": verbose or None}
    wishes = _wishes(job, {name: value for name, value in typed.items() if value is not None})
    verbose, order = wishes.verbose, wishes.policy
    wanted = estimating.Wanted(
        gpu, site, wishes.budget, wishes.engine, wishes.ranks, wishes.margin, order, advice, verbose, fresh
    )
    if max_batch or vary is not None:
        if reports.wanted or advice:
            raise UsageError("--max-batch is an estimate of its own: it goes with no report and not with --advice")
        found = estimating.largest_batches(job, wanted, vary, partial(typer.echo, err=True))
        typer.echo(json.dumps(batches.objects(found), indent=2) if as_json else "\n".join(batches.lines(found)))
        return
    _hand_out(
        estimating.estimate(job, wanted, partial(typer.echo, err=True)), reports, as_json=as_json, verbose=verbose
    )


def _wishes(job: Submission, typed: Mapping[str, Any]) -> Wishes:
    """Return what holds for a job, and tell what makes no sense.

    Raises:
        UsageError: that is an option.
    """
    for name, value in typed.items():
        option = settings.BY_NAME[f"xmem-{name}"]
        wrong = None if value is True else settings.wrong_value(option, str(value))
        if wrong is not None:
            raise UsageError(f"--{name} {value}: {wrong}")
    found, complaints = settings.effective(job)
    typer.echo("".join(f"xmem-slurm: {line}\n" for line in complaints), err=True, nl=False)
    given = {name: each for name, each in found.items() if name in settings.ANYWHERE}
    return Wishes()._replace(**{**settings.values(given), **typed})


def explain(
    script: Annotated[
        str | None, typer.Argument(help="One of its files, or a job's number; else the last estimate of all.")
    ] = None,
    *,
    as_json: AsJson = False,
    report_file: ReportFile = None,
    html_file: HtmlFile = None,
    snapshot_file: SnapshotFile = None,
    perfetto_file: PerfettoFile = None,
) -> None:
    """Show the last estimate again, with all that is known of it, in any form; of a job, what it really used."""
    reports = _Reports(report_file, html_file, snapshot_file, perfetto_file)
    reports.check()
    if script is not None and _JOB.fullmatch(script) and not Path(script).exists():
        if not explain_job(script, as_json=as_json):
            raise UsageError(
                f"job {script}: nothing is known of it here; `xsbatch --xmem-record` records what jobs use"
            )
        return
    last = _last(script)
    typed = last.command[1] if last.command[0] == "--wrap" else shlex.join(last.command)
    typer.echo(f"xmem-slurm: {typed}, in {last.folder}, {_when(last.made)}", err=True)
    _hand_out(Estimated(last.sized, last.left, last.several), reports, as_json=as_json, verbose=True)


def compare(
    before: Annotated[str, typer.Argument(help="A file of `estimate --json`, or a script that was estimated.")],
    after: Annotated[str, typer.Argument(help="The same of what it is compared with.")],
    *,
    as_json: AsJson = False,
    html_file: HtmlFile = None,
) -> None:
    """Compare two estimates: need and peak, what for, which lines and modules, and where each fits."""
    _Reports(None, html_file, None, None).check()
    found = comparison.compare(_object_of(before), _object_of(after))
    names = before, after
    typer.echo(found.model_dump_json(indent=2) if as_json else "\n".join(comparison.lines(found, names)))
    sys.stdout.flush()
    if html_file is not None:
        try:
            own_files.write_for_user(html_file, comparison.page(found, names).encode())
        except OSError as error:
            raise UsageError(f"{html_file}: cannot be written: {error.strerror}") from error


def _object_of(name: str) -> json_report.Report:
    """Return the object of `estimate --json` that a file has, or that is kept of a script.

    Raises:
        UsageError: there is none, or of several components.
    """
    path = Path(name)
    if path.suffix == ".json":
        try:
            return json_report.Report.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(f"{name}: no estimate that can be read: {str(error).splitlines()[0]}") from error
    last = _last(name)
    if len(last.sized) != 1:
        raise UsageError(f"{name}: a heterogeneous job; compare what `--json` says of its components")
    return json_report.Report.model_validate(json_report.estimate_object(next(iter(last.sized.values()))))


def _last(script: str | None) -> last_estimates.KeptSizing:
    last = next((each for each in last_estimates.newest() if script is None or each.is_of(script)), None)
    if last is None:
        which = f" of {script}" if script is not None else ""
        raise UsageError(f"no estimate{which} is kept; `xmem-slurm estimate {script or 'SCRIPT'}` makes one")
    return last


def _when(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))


def _ask_of_ours(command: Sequence[str]) -> None:
    """See that no option of ours stands behind the script by mistake, where it is the script's, and none is mistyped.

    Raises:
        UsageError: one is; or one does, and the files of the command, if it has any, do not have that word in them.
    """
    own = {name for each in inspect.get_annotations(estimate).values() for name in _names(each)}
    if command[0].startswith("-"):
        near = difflib.get_close_matches(command[0], own, n=1)
        raise UsageError(f"{command[0]}: no such option{f'; did you mean {near[0]}?' if near else ''}")
    texts = [_beginning(Path(word)) for word in command if Path(word).is_file()]
    for word in command:
        name = word.partition("=")[0]
        if name in own and texts and not any(name.encode() in text for text in texts):
            raise UsageError(
                f"{name} stands behind {command[0]}, which would get it: if it is for xmem-slurm, write it before that;"
                f" if not, `xmem-slurm estimate -- {shlex.join(command)}`"
            )


def _beginning(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_READ)


def _names(annotation: Any) -> Iterator[str]:
    for each in getattr(annotation, "__metadata__", ()):
        yield from (name for name in (each.default, *(each.param_decls or ())) if str(name).startswith("--"))


class _Reports(NamedTuple):
    """Which reports are wanted, and where."""

    by_name: Path | None
    html: Path | None
    snapshot: Path | None
    perfetto: Path | None

    @property
    def wanted(self) -> Sequence[tuple[Path, files.Writer | None]]:
        """The files, and what writes each; None where its name says so."""
        writers = (None, html.write, snapshot.write, perfetto.write)
        return [(path, writer) for path, writer in zip(self, writers, strict=True) if path is not None]

    def check(self) -> None:
        """See before a minute is spent whether they can be written.

        Raises:
            UsageError: one cannot.
        """
        for path, _ in self.wanted:
            wrong = own_files.unwritable(path)
            if wrong is not None:
                raise UsageError(f"{path}: {wrong}")


def _hand_out(found: Estimated, reports: _Reports, *, as_json: bool, verbose: bool) -> None:
    """Print what is known, then write the reports: one that fails costs one line, and an exit status of 1."""
    for component, why in found.left.items():
        typer.echo(f"xmem-slurm: component {component}: {why}", err=True)
    if as_json:
        objects = {component: json_report.estimate_object(each) for component, each in found.sized.items()}
        listed = {"components": [{"component": number, "estimate": each} for number, each in objects.items()]}
        typer.echo(json.dumps(listed if found.several else objects[0], indent=2))
    else:
        for component, each in found.sized.items():
            lines = _lines(each, verbose=verbose)
            typer.echo("\n".join(f"component {component}: {line}" if found.several else line for line in lines))
    sys.stdout.flush()
    if found.known_since is not None:
        typer.echo(
            f"xmem-slurm: known since {_when(found.known_since)}: nothing that the dry run read has changed", err=True
        )
    failures = [files.failure(path, found.sized, found.templates, writer) for path, writer in reports.wanted]
    for failure in filter(None, failures):
        typer.echo(f"xmem-slurm: {failure}", err=True)
    if any(failures):
        raise typer.Exit(1)


def _lines(sized: Sizing, *, verbose: bool) -> list[str]:
    """Say what is needed, with `verbose` what for, and where it fits."""
    options = terminal.option_lines(outlooks(sized), remedy(sized), sized.advice)
    if not verbose:
        return [terminal.brief_line(sized.estimate), *options]
    return [*terminal.estimate_lines(sized.estimate, at_peak(sized.estimate.largest)), *options]
