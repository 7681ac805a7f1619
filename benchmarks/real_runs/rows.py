"""What does one real figure say: what ran, in which repository, on which GPU, and how much memory that took?

A CSV with these columns: source, commit, path (of the figure), command_or_config, model, batch, seq_len, precision,
parallelism, gpu, torch, metric, value_MiB, notes. All but the value are words.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from xmem_slurm.units import MIB

_NAMED_BY = ("path", "command_or_config", "model", "batch", "seq_len", "parallelism", "gpu", "torch", "metric")


class RowError(Exception):
    """A row that is not one of these data; says which line and what is wrong."""


@dataclass(frozen=True)
class Row:
    """One figure. `source` is "owner/name" of the repository; `columns` has everything, as the file has it."""

    source: str
    metric: str
    torch: str
    ground_bytes: int
    columns: Mapping[str, str]

    @property
    def key(self) -> str:
        """What tells this row from all others."""
        return " | ".join([self.source, *filter(None, (self.columns[name] for name in _NAMED_BY))])


def read(path: Path) -> list[Row]:
    """Read all rows of a file.

    Raises:
        RowError: a column is missing, or a value is no number.
    """
    return list(_rows(path))


def _rows(path: Path) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        for line, columns in enumerate(csv.DictReader(file), start=2):
            try:
                ground = round(float(columns["value_MiB"]) * MIB)
                row = Row(columns["source"].split()[0], columns["metric"], columns["torch"], ground, columns)
                assert row.key
            except (KeyError, ValueError, IndexError) as error:
                raise RowError(f"{path}: line {line}: {type(error).__name__}: {error}") from error
            yield row
