"""Which numbers have the tasks of an array (sbatch(1), --array), and which of them stand for
all?
"""

import re
from collections.abc import Sequence

MOST_SPREAD = 64
"""Numbers that are returned in the order in which they stand for all: nobody looks at more
tasks."""
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")


def ranges(array: str) -> list[range]:
    """Return the numbers of an array such as "0-15:4,20%2"; none where sbatch has its own words for
    it.
    """
    numbers = []
    for part in array.partition("%")[0].split(","):
        bounds = _RANGE.fullmatch(part)
        if bounds is None:
            return []
        start, last, step = bounds.groups()
        numbers.append(range(int(start), int(last or start) + 1, int(step or 1) or 1))
    return numbers if all(numbers) else []


def spread(numbers: Sequence[range]) -> list[int]:
    """Return numbers in the order in which they stand for all: first, last, middle, quarters, and
    so on.
    """
    count = sum(map(len, numbers))
    if not count:
        return []
    places = dict.fromkeys([0, count - 1])
    parts = 2
    while len(places) < min(count, MOST_SPREAD):
        places |= dict.fromkeys(part * (count - 1) // parts for part in range(1, parts, 2))
        parts *= 2
    return list(dict.fromkeys(_at(numbers, place) for place in [*places][:MOST_SPREAD]))


def _at(numbers: Sequence[range], place: int) -> int:
    for part in numbers:
        if place < len(part):
            return part[place]
        place -= len(part)
    raise AssertionError("no such place")
