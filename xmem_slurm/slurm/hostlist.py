"""Which hosts does a Slurm host list name? `a[1-2,07],b1` names a1, a2, a07 and b1.

Source: scontrol(1), `show hostnames`; numbers keep the width that they are written with, and
brackets multiply.
"""

import itertools
import re
from collections.abc import Iterator

from xmem_slurm.errors import UsageError

MOST_HOSTS = 65536
"""Slurm's own bound on a list (MAX_RANGE in src/common/hostlist.c)."""

_PART = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9,-]+\])+")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand(text: str) -> tuple[str, ...]:
    """Return the names, in order.

    Raises:
        UsageError: this is no host list, or names more hosts than Slurm takes; the message quotes
            it.
    """
    names = tuple(itertools.islice(_names(text), MOST_HOSTS + 1))
    if len(names) > MOST_HOSTS:
        raise UsageError(f"{text!r} names more than {MOST_HOSTS} hosts")
    return names


def _names(text: str) -> Iterator[str]:
    for part in re.split(r",(?![^\[]*\])", text):
        if not _PART.fullmatch(part):
            raise UsageError(
                f"{text!r} is no host list: write names with numbers in brackets, such as "
                "a[1-4,7],b1"
            )
        pieces = re.findall(r"[^\[\]]+|\[[^\]]*\]", part)
        for combination in itertools.product(
            *(_numbers(p[1:-1], text) if p[0] == "[" else [p] for p in pieces)
        ):
            yield "".join(combination)


def _numbers(ranges: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        ends = _RANGE.fullmatch(part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends is not None else (1, 0)
        if ends is None or last < first or last - first >= MOST_HOSTS:
            raise UsageError(f"{text!r} is no host list: [{part}] is no range of numbers")
        numbers += [str(number).zfill(len(ends[1])) for number in range(first, last + 1)]
    return numbers
