"""An estimate is handed out: printed, then drawn in the files that were asked for, which fail by a
line at most.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import typer

from xmem_slurm.cli.arguments import say, tell
from xmem_slurm.errors import UsageError
from xmem_slurm.estimating.asked import Estimated
from xmem_slurm.state import own_files


class Reports(NamedTuple):
    """Which reports are wanted, and where: one by its name, and three of a form."""

    by_name: Path | None = None
    html: Path | None = None
    snapshot: Path | None = None
    perfetto: Path | None = None

    @property
    def wanted(self) -> Sequence[tuple[Path, str]]:
        """The files, and how the name of one of that form would end; "" where its own name says
        it.
        """
        endings = ("", ".html", ".pickle", ".trace.json")
        return [
            (path, ending) for path, ending in zip(self, endings, strict=True) if path is not None
        ]

    def check(self) -> None:
        """See before a minute is spent whether they can be written.

        Raises:
            UsageError: one cannot.
        """
        for path, _ in self.wanted:
            wrong = own_files.unwritable(path)
            if wrong is not None:
                raise UsageError(f"{path}: {wrong}")


def hand_out(estimated: Estimated, reports: Reports, *, as_json: bool, verbose: bool) -> None:
    """Print what is known, then write the reports: one that fails costs one line, and an exit
    status of 1.

    Raises:
        XmemError: of what is known nothing is left that a report could be made of.
    """
    for component, why in estimated.left.items():
        tell(f"component {component}: {why}")
    if as_json:
        listed = {
            "components": [
                {"component": n, "estimate": texts.document} for n, texts in estimated.said.items()
            ]
        }
        typer.echo(
            json.dumps(listed if estimated.several else estimated.said[0].document, indent=2)
        )
    else:
        for component, texts in estimated.said.items():
            lines = texts.full if verbose else texts.brief
            which = f"component {component}: " if estimated.several else ""
            say([f"{which}{line}" for line in lines])
    sys.stdout.flush()
    if estimated.known_since is not None:
        tell(
            f"known since {when(estimated.known_since)}: nothing that the dry run read has changed"
        )
    if reports.wanted:
        _write(estimated, reports)


def _write(estimated: Estimated, reports: Reports) -> None:
    from xmem_slurm.report import files  # noqa: PLC0415 - what is only said does not wait for it

    sized = estimated.sized()
    failures = [
        files.failure(path, sized, estimated.templates, files.WRITERS.get(form))
        for path, form in reports.wanted
    ]
    for failure in filter(None, failures):
        tell(failure)
    if any(failures):
        raise typer.Exit(1)


def when(moment: float) -> str:
    """Return a time, in seconds since the epoch, as it stands in what we say."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment))
