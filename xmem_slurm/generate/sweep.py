"""Which commands does a sweep run? One for each point of a grid or of a CSV file."""

import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem_slurm.errors import UsageError

Point = Mapping[str, str]
"""The value of each key."""


def grid(axes: Sequence[str]) -> list[Point]:
    """Return the points of `key=v1,v2` axes, the last one changing fastest.

    Raises:
        UsageError: an axis is not of that form, or a key stands twice.
    """
    values: dict[str, list[str]] = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        if not (key.isidentifier() and equals and text) or key in values:
            raise UsageError(f"--grid {axis}: write key=value1,value2, each key once")
        values[key] = text.split(",")
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def read_csv(path: Path) -> list[Point]:
    """Return the points of a CSV file, whose first line has the keys.

    Raises:
        UsageError: it cannot be read, has no points, or has a line with too few or too many values.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, restkey="", restval=None, strict=True)
            points = list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path}: not a CSV file: {error}") from error
    for line, point in enumerate(points, 2):
        if "" in point or None in point.values():
            raise UsageError(
                f"{path}: line {line}: {len(reader.fieldnames or [])} values are needed, one for "
                "each key"
            )
    if not points:
        raise UsageError(
            f"{path}: no points: the first line has the keys, each further line a point"
        )
    return list(points)


def label(point: Point) -> str:
    """Return what a point is called; "" for the only one of no sweep."""
    return ", ".join(f"{key}={value}" for key, value in point.items())


def commands(command: Sequence[str], points: Sequence[Point]) -> list[list[str]]:
    """Return the command of each point: every `{key}` in its words is the point's value; other
    braces stay.

    Raises:
        UsageError: a key stands nowhere in the command, so that its values would all run the same.
    """
    for key in points[0]:
        if not any(f"{{{key}}}" in word for word in command):
            raise UsageError(
                f"the sweep's key '{key}' is not in the command; write {{{key}}} where its value "
                "goes"
            )
    return [[_filled(word, point) for word in command] for point in points]


def _filled(word: str, point: Point) -> str:
    for key, value in point.items():
        word = word.replace(f"{{{key}}}", value)
    return word
