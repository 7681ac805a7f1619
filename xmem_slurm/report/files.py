"""Write the report that is asked for by its name: HTML, JSON, torch's snapshot, Perfetto; one module each."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from xmem_slurm.errors import XmemError
from xmem_slurm.report import html, json, perfetto, snapshot
from xmem_slurm.sizing.sizing import Sizing

WRITERS: Mapping[str, Callable[..., None]] = {
    ".html": html.write, ".pickle": snapshot.write, ".trace.json": perfetto.write
}  # fmt: skip
"""The form of a report, by how its file's name ends; every other file is the JSON object."""


def write(path: Path, sized: Mapping[int, Sizing], templates: Path | None = None) -> None:
    """Write the report that `path` asks for by its name, whole or not at all; `templates` is the site's own folder.

    Of several components of a heterogeneous job each has its own.

    Raises:
        OSError: a file cannot be written.
    """
    writer = next((each for ending, each in WRITERS.items() if path.name.endswith(ending)), json.write)
    if writer is html.write:
        writer = partial(writer, templates=templates)
    for component, sizing in sized.items():
        writer(of_component(path, component, sized), sizing)


def written(path: Path, sized: Mapping[int, Sizing], templates: Path | None) -> str:
    """Write the report, and return the line that says where it is, or why there is none."""
    try:
        write(path, sized, templates)
    except (OSError, XmemError) as error:
        return f"no report: {error}"
    return f"report: {path}"


def of_component(path: Path, component: int, sized: Mapping[int, Sizing]) -> Path:
    """Return the file for one of the components that were sized: `path`, or beside it `component-1-NAME`."""
    return path if len(sized) == 1 else path.with_name(f"component-{component}-{path.name}")
