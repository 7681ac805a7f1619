"""What is alive when the most is allocated, and where was it asked for? What is alike stands
together.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import PurePath

from xmem_slurm.allocator.replay import Run
from xmem_slurm.report.categories import CATEGORY_NAMES
from xmem_slurm.report.timeline import phase_of
from xmem_slurm.sizing.estimate import RankEstimate
from xmem_slurm.trace import NOWHERE, Category, Op, Origin, Trace
from xmem_slurm.units import human

MOST_GROUPS = 16
"""Groups that a report lists; what is left is small."""


@dataclass(frozen=True, slots=True)
class Group:
    """Allocations of one size, category, phase and line, in modules that differ in their numbers at
    most.

    `bytes_each` is the block that each has; `numbers` are their places in the trace, in order.
    Where there are several modules, a `*` in the site's stands for the number in which they differ.
    """

    bytes_each: int
    category: Category
    phase: str
    site: Origin
    numbers: Sequence[int]

    @property
    def total_bytes(self) -> int:
        """What they hold together."""
        return self.bytes_each * len(self.numbers)

    @property
    def line(self) -> str:
        """The line of the script, without the file's folder; empty where it is not known."""
        return f"{PurePath(self.site.file).name}:{self.site.line}" if self.site.file else ""

    @property
    def blocks(self) -> str:
        """How many, of what size."""
        times = f"{len(self.numbers)} x " if len(self.numbers) > 1 else ""
        return f"{times}{human(self.bytes_each)}"

    @property
    def description(self) -> str:
        """What they are, and where they were asked for."""
        where = ", ".join(filter(None, [self.site.module, self.line]))
        when = " in backward" if self.phase.startswith("backward") else ""
        return f"{CATEGORY_NAMES[self.category]}{when}{f' ({where})' if where else ''}"

    def __str__(self) -> str:
        return f"{self.blocks} {self.description}"


@dataclass(frozen=True, slots=True)
class UserLine:
    """What one line of the user's own files asked for, itself or through libraries; NOWHERE where
    there is none.
    """

    site: Origin
    groups: Sequence[Group]

    @property
    def total_bytes(self) -> int:
        """What they hold together."""
        return sum(group.total_bytes for group in self.groups)

    def __str__(self) -> str:
        if not self.site.file:
            return "no line outside of libraries"
        return called(self.site)


def called(site: Origin) -> str:
    """Write a line as a stack has it: its function, and where it is."""
    return f"{site.function} ({PurePath(site.file).name}:{site.line})"


def by_own_line(trace: Trace, groups: Sequence[Group]) -> list[UserLine]:
    """Return groups by the innermost line outside of libraries that they come from, the largest
    first.

    A group of several such lines is a group of each.
    """
    by_line: dict[Origin, list[Group]] = {}
    for stack, group in by_own_stack(trace, groups):
        by_line.setdefault(stack[-1] if stack else NOWHERE, []).append(group)
    lines = [UserLine(line, its_groups) for line, its_groups in by_line.items()]
    return sorted(lines, key=attrgetter("total_bytes"), reverse=True)


def by_own_stack(
    trace: Trace, groups: Sequence[Group]
) -> Iterator[tuple[tuple[Origin, ...], Group]]:
    """Yield the lines outside of libraries that led to a group, the outermost first, and the group.

    A group that several ways led to is a group of each.
    """
    for group in groups:
        ways: dict[tuple[Origin, ...], list[int]] = {}
        for number in group.numbers:
            stack = trace.stack_of(number)
            way = tuple(site._replace(module="") for site in reversed(stack) if site.is_own)
            ways.setdefault(way, []).append(number)
        for way, numbers in ways.items():
            yield way, replace(group, numbers=numbers)


def at_peak(rank: RankEstimate) -> list[Group]:
    """Return what is alive when the most is allocated, without a limit of memory, the largest
    first.
    """
    trace, last = rank.trace, rank.replay.at_peak_allocated.event
    run = Run(trace)
    run.to_event(last)
    alive: dict[int, None] = {}
    for op, number in trace.events[: last + 1]:
        if op == Op.ALLOC:
            alive[number] = None
        elif op == Op.FREE_REQUESTED:
            alive.pop(number, None)
    alike: dict[tuple[int, Category, str, Origin], list[int]] = {}
    for number in alive:
        site = trace.site_of(number)
        kind = run.block_sizes[number], trace.allocations[number].category, phase_of(trace, number)
        alike.setdefault((*kind, site._replace(module=_pattern(site.module))), []).append(number)
    groups = [
        Group(
            size, category, phase, _shared([trace.site_of(number) for number in numbers]), numbers
        )
        for (size, category, phase, _), numbers in alike.items()
    ]
    return sorted(groups, key=attrgetter("total_bytes"), reverse=True)


def _pattern(module: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)


def _shared(sites: Sequence[Origin]) -> Origin:
    """Return the site of all: its module has a `*` where theirs differ."""
    paths = [site.module.split(".") for site in sites]
    module = ".".join(
        part if all(path[at] == part for path in paths) else "*" for at, part in enumerate(paths[0])
    )
    return sites[0]._replace(module=module)
