"""Sizes in bytes, and how people write them and lists of numbers."""

from collections.abc import Iterable

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def round_up(value: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def human(size: int) -> str:
    """Write a size in bytes as torch's own messages do: `14.20 GiB`, `34.00 MiB`, `512 B`."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size) >= unit:
            return f"{size / unit:.2f} {name}"
    return f"{size} B"


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number of things: "1 node", "2 nodes"; `several` where an s is not enough."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def listed(numbers: Iterable[int]) -> str:
    """Write numbers as people list them: `1, 2 and 8`."""
    *before_last, last = (f"{number:,}" for number in numbers)
    return f"{', '.join(before_last)} and {last}" if before_last else last
