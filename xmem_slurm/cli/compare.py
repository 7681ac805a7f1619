"""`xmem-slurm compare`: what is different between two estimates, in words and in a page."""

import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from xmem_slurm.cli.arguments import AsJson, tell
from xmem_slurm.cli.explain import NO_LINES, last_of
from xmem_slurm.cli.handing_out import Reports
from xmem_slurm.cli.wishes import HtmlFile
from xmem_slurm.errors import UsageError
from xmem_slurm.report import comparison
from xmem_slurm.report import json as json_report
from xmem_slurm.state import own_files


def compare(
    before: Annotated[
        str, typer.Argument(help="A file of `estimate --json`, or a script that was estimated.")
    ],
    after: Annotated[str, typer.Argument(help="The same for what it is compared with.")],
    *,
    as_json: AsJson = False,
    html_file: HtmlFile = None,
) -> None:
    """Compare two estimates: need, peak, categories, lines and modules, and where each fits."""
    Reports(html=html_file).check()
    names, objects = (before, after), (_object_of(before), _object_of(after))
    for name, found in zip(names, objects, strict=True):
        if not any(group.file for rank in found.ranks for group in rank.largest):
            tell(f"{name}: {NO_LINES}")
    differences = comparison.compare(*objects)
    shown = differences.model_dump_json(indent=2) if as_json else None
    width = [shutil.get_terminal_size().columns] if sys.stdout.isatty() else []
    typer.echo(shown or "\n".join(comparison.lines(differences, names, *width)))
    sys.stdout.flush()
    if html_file is not None:
        try:
            own_files.write_for_user(html_file, comparison.page(differences, names).encode())
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
        except OSError as error:
            raise UsageError(f"{name}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(
                f"{name}: no estimate that can be read: {str(error).splitlines()[0]}"
            ) from error
    last = last_of(name)
    if len(last.said) != 1:
        raise UsageError(
            f"{name}: a heterogeneous job; compare what `--json` says of its components"
        )
    return json_report.Report.model_validate(next(iter(last.said.values())).document)
