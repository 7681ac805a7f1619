"""What several verbs have in common: arguments that they take, and how they say what cannot
wait.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
"""How a verb takes a command: what stands behind its first word is for that."""

Command = Annotated[
    list[str], typer.Argument(help="A job script or a .py file with its arguments, or -- COMMAND…")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
SiteFile = Annotated[
    str | None,
    typer.Option(
        "--site", help="Site file; default: $XMEM_SITE, /etc/xmem-slurm/site.toml, or your own."
    ),
]
SnapshotFile = Annotated[
    Path | None,
    typer.Option("--snapshot", help="Write torch's memory snapshot, for pytorch.org/memory_viz."),
]
PerfettoFile = Annotated[
    Path | None, typer.Option("--perfetto", help="Write memory counters, for ui.perfetto.dev.")
]


def say(lines: Sequence[str]) -> None:
    """Print sentences on stdout, in lines that fit there."""
    from xmem_slurm.report import columns  # noqa: PLC0415 - as below

    typer.echo("\n".join(columns.broken(lines, columns.width(1))))


def tell(line: str) -> None:
    """Say on stderr what cannot wait for the answer."""
    from xmem_slurm.report import columns  # noqa: PLC0415 - most verbs have nothing to say

    most = columns.width(2) - len("xmem-slurm: ")
    typer.echo("\n".join(f"xmem-slurm: {part}" for part in columns.broken([line], most)), err=True)
