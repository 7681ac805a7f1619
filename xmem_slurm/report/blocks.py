"""Which blocks are there when, and who asked for them? A table in which a page looks up any moment
of a run.
"""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from xmem_slurm.report.timeline import STACK
from xmem_slurm.trace import Op, Trace

MOST_BLOCKS = 20_000
"""The largest are in the table; the others are small, and their sum is told."""


def blocks(trace: Trace, block_sizes: Sequence[int]) -> dict[str, Any]:
    """Return columns for each of the largest blocks, in the order in which they are made, and what
    they refer to.

    `start` and `end` are the event that makes it and the one that frees it, `bytes` its size,
    `category` its place in STACK, `site` its place in `sites`: [label, title, module, its caller's
    place, 1 if it is a line of the user's own]; place 0 is where nothing is known.
    """
    lives = _lives(trace)
    largest = sorted(lives, key=block_sizes.__getitem__, reverse=True)[:MOST_BLOCKS]
    sites = _Sites(trace)
    rows = [
        [
            *lives[number],
            block_sizes[number],
            STACK.index(trace.allocations[number].category),
            sites.place(number),
        ]
        for number in sorted(largest)
    ]
    names = ("start", "end", "bytes", "category", "site")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    return {**columns, "sites": sites.rows}


def _lives(trace: Trace) -> dict[int, list[int]]:
    """Return for each allocation the event that made it and the one at which it is given back, or
    the last.
    """
    lives: dict[int, list[int]] = {}
    for event, (op, number) in enumerate(trace.events):
        if op == Op.ALLOC:
            lives[number] = [event, len(trace.events)]
        elif op == Op.FREE_REQUESTED:
            lives[number][1] = event
    return lives


class _Sites:
    """The sites that blocks on the page refer to, and those that called them."""

    def __init__(self, trace: Trace) -> None:
        self.trace, self.rows = trace, [["", "", "", 0, 0]]
        self._places = {0: 0}

    def place(self, allocation: int) -> int:
        """Return the place of an allocation's site."""
        return self._of(self.trace.made_at[allocation]) if self.trace.made_at else 0

    def _of(self, number: int) -> int:
        if number not in self._places:
            caller = self._of(self.trace.callers[number] if self.trace.callers else 0)
            site = self.trace.sites[number]
            where = f" ({PurePath(site.file).name}:{site.line})" if site.file else ""
            self._places[number] = len(self.rows)
            self.rows.append(
                [
                    f"{site.function or 'backward'}{where}",
                    site.file,
                    site.module,
                    caller,
                    int(site.is_own),
                ]
            )
        return self._places[number]
