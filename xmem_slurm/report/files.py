"""Write the report that is asked for by its name: HTML, JSON, torch's snapshot, Perfetto; one
module each.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from xmem_slurm.errors import XmemError
from xmem_slurm.report import html, json, perfetto, snapshot
from xmem_slurm.sizing.sizing import Sizing

Writer = Callable[..., None]

WRITERS: Mapping[str, Writer] = {
    ".html": html.write, ".pickle": snapshot.write, ".trace.json": perfetto.write
}  # fmt: skip
"""The form of a report, by how its file's name ends; every other file is the JSON object."""


def write(
    path: Path,
    sized: Mapping[int, Sizing],
    templates: Path | None = None,
    writer: Writer | None = None,
) -> None:
    """Write the report that `path` asks for by its name, if not by `writer`; whole or not at all.

    `templates` is the site's own folder.

    Of several components of a heterogeneous job each has its own.

    Raises:
        OSError: a file cannot be written.
    """
    by_ending = (named for ending, named in WRITERS.items() if path.name.endswith(ending))
    writer = writer or next(by_ending, json.write)
    if writer is html.write:
        writer = partial(writer, templates=templates)
    for component, sizing in sized.items():
        writer(of_component(path, component, sized), sizing)


def failure(
    path: Path,
    sized: Mapping[int, Sizing],
    templates: Path | None = None,
    writer: Writer | None = None,
) -> str | None:
    """Write the report; return the line that says why there is none, or None: what is said already
    stands without.
    """
    try:
        write(path, sized, templates, writer)
    except OSError as error:
        return f"no report: {path}: {error.strerror}"
    except Exception as error:  # a fault of ours must not cost more than the report
        return (
            f"no report: {path}: "
            f"{error if isinstance(error, XmemError) else f'{type(error).__name__}: {error}'}"
        )
    return None


def of_component(path: Path, component: int, sized: Mapping[int, Sizing]) -> Path:
    """Return the file for one of the components that were sized: `path`, or beside it
    `component-1-NAME`.
    """
    return path if len(sized) == 1 else path.with_name(f"component-{component}-{path.name}")
