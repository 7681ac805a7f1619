"""What people and programs read: one module per output."""

from pathlib import Path

from xmem_slurm.report import html, json, perfetto, snapshot
from xmem_slurm.sizing import Sizing

WRITERS = {".pickle": snapshot.write, ".trace.json": perfetto.write}
"""The form of a report, by how its file's name ends, beside .html; every other file is the JSON object."""


def write(path: Path, sizing: Sizing, templates: Path | None = None) -> None:
    """Write the report that `path` asks for by its name, whole or not at all; `templates` is the site's own folder.

    Raises:
        OSError: the file cannot be written.
    """
    if path.name.endswith(".html"):
        html.write(path, sizing, templates)
        return
    writer = next((writer for ending, writer in WRITERS.items() if path.name.endswith(ending)), json.write)
    writer(path, sizing)
