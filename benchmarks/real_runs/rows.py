"""What does one real figure say: what ran, in which repository, on which GPU, and how much memory
that took?

A CSV with these columns: source, commit, path (of the figure), command_or_config, model, batch,
seq_len, precision, parallelism, gpu, torch, metric, value_MiB, notes. All but the value are words.
A column reproducible_here, where there is one, begins with "no" where the row cannot be run by
others.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from xmem_slurm.units import MIB

_NAMED_BY = (
    "path",
    "command_or_config",
    "model",
    "batch",
    "seq_len",
    "parallelism",
    "gpu",
    "torch",
    "metric",
)
_ESSENTIAL = ("source", "commit", *_NAMED_BY, "value_MiB")


class RowError(Exception):
    """A file, or a line of it, that is none of these data; says which and what is wrong."""


@dataclass(frozen=True)
class Row:
    """One figure. `source` is "owner/name" of the repository; `columns` has everything, as the file
    has it.

    `key` tells this row from all others of its file. `commit` is the last that its cell names,
    which is the code's; "" where it names none.
    """

    key: str
    source: str
    metric: str
    torch: str
    commit: str
    ground_bytes: int
    columns: Mapping[str, str]

    @property
    def not_reproducible(self) -> str:
        """Why the data say that others cannot run it; "" where they do not say that."""
        said = self.columns.get("reproducible_here") or ""
        return said if re.match(r"no\b", said) else ""


def read(path: Path) -> tuple[list[Row], list[RowError]]:
    """Read the rows of a file, and what is wrong with each line that is none.

    Raises:
        RowError: there is no such file, or a column is missing.
    """
    rows, refused, seen = [], [], Counter[str]()
    for line, columns in _lines(path):
        try:
            row = _row(columns)
        except ValueError as error:
            refused.append(RowError(f"{path}: line {line}: {error}"))
            continue
        seen[row.key] += 1
        rows.append(row if seen[row.key] == 1 else replace(row, key=f"{row.key} | {seen[row.key]}"))
    return rows, refused


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restval="")
            missing = [name for name in _ESSENTIAL if name not in (reader.fieldnames or ())]
            if missing:
                raise RowError(f"{path}: no column {', '.join(missing)}")
            for columns in reader:
                yield reader.line_num, columns
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RowError(f"{path}: {error}") from error


def _row(columns: Mapping[str, str]) -> Row:
    """Return the row of a line.

    Raises:
        ValueError: it names no repository, or no size.
    """
    source, *_ = columns["source"].split() or [""]
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise ValueError(f"source {columns['source']!r} is no owner/name")
    try:
        ground = round(float(columns["value_MiB"]) * MIB)
    except (ValueError, OverflowError):
        ground = 0
    if ground <= 0:
        raise ValueError(f"value_MiB {columns['value_MiB']!r} is no size")
    commit = (["", *re.findall(r"\b[0-9a-f]{7,40}\b", columns["commit"])])[-1]
    cells = [source, *(columns[name] for name in _NAMED_BY), commit and f"@{commit[:10]}"]
    return Row(
        " | ".join(filter(None, cells)),
        source,
        columns["metric"],
        columns["torch"],
        commit,
        ground,
        columns,
    )
