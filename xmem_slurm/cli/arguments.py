"""What several verbs have in common: arguments that they take, and how they say what cannot wait."""

from pathlib import Path
from typing import Annotated, Any

import typer

from xmem_slurm.dryrun import Engine
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Wishes

AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""How a verb takes a command: what stands behind its first word is for that."""

Command = Annotated[list[str], typer.Argument(help="A job script or a .py file with its arguments, or -- COMMAND…")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
SiteFile = Annotated[str | None, typer.Option("--site", help="The site file; else XMEM_SITE, /etc/xmem-slurm, yours.")]
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
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh", "--xmem-fresh", envvar="XMEM_FRESH", help="Run dry even if nothing has changed since the last time."
    ),
]
EngineName = Annotated[
    Engine | None, typer.Option("--engine", "--xmem-engine", help="Stand-in CUDA libraries, or real steps on the CPU.")
]
Ranks = Annotated[
    str | None,
    typer.Option("--ranks", "--xmem-ranks", help="Ranks that are run beside the first: all, last, or numbers (0,3)."),
]
ArrayTasks = Annotated[
    str | None,
    typer.Option(
        "--array-tasks", "--xmem-array-tasks", help="Array tasks that are run, in place of those that are chosen: 1,5."
    ),
]
Policy = Annotated[
    str | None, typer.Option("--policy", "--xmem-policy", help="Which GPU that fits: cost, memory, or start.")
]
Margin = Annotated[
    float | None,
    typer.Option("--margin", "--xmem-margin", help="Percent of each GPU's memory to be left free beside the margin."),
]


def wishes_of(job: Submission, **typed: Any) -> Wishes:
    """Return what holds for a job: the options that were `typed` (None: it was not), then variables, script and file.

    What makes no sense in one of the others is told, and is as if it were not set.

    Raises:
        UsageError: an option makes no sense.
    """
    given = {name: value for name, value in typed.items() if value is not None}
    for name, value in given.items():
        word = name.replace("_", "-")
        wrong = None if value is True else settings.wrong_value(settings.BY_NAME[f"xmem-{word}"], str(value))
        if wrong is not None:
            raise UsageError(f"--{word} {value}: {wrong}")
    found, complaints = settings.effective(job)
    for line in complaints:
        tell(line)
    anywhere = {name: each for name, each in found.items() if name in settings.ANYWHERE}
    return Wishes()._replace(**{**settings.values(anywhere), **given})


def tell(line: str) -> None:
    """Say on stderr what cannot wait for the answer."""
    typer.echo(f"xmem-slurm: {line}", err=True)
