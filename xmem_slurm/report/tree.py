"""What is alive at the peak as a tree: the user's own lines, and what each asked for, itself or
through libraries.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from xmem_slurm.report.largest import Group, at_peak, by_own_stack, called
from xmem_slurm.sizing.estimate import RankEstimate
from xmem_slurm.trace import Origin
from xmem_slurm.units import human

LEAST_SHARE = 0.01
"""Of the peak: what is less stands together."""

_INDENT = "  "


@dataclass(slots=True)
class _Branch:
    """A line of the user's own: what it asked for, and the lines that it called."""

    groups: list[Group] = field(default_factory=list)
    calls: dict[Origin, "_Branch"] = field(default_factory=dict)

    @property
    def total_bytes(self) -> int:
        """What it holds, with all that it called."""
        called = sum(node.total_bytes for node in self.calls.values())
        return called + sum(group.total_bytes for group in self.groups)

    @property
    def blocks(self) -> int:
        """How many blocks that is."""
        called = sum(node.blocks for node in self.calls.values())
        return called + sum(len(group.numbers) for group in self.groups)


def tree_lines(rank: RankEstimate) -> list[str]:
    """Return the tree of one rank, the script's own lines outermost, the largest first at each
    level.
    """
    root = _Branch()
    for stack, group in by_own_stack(rank.trace, at_peak(rank)):
        node = root
        for site in stack:
            node = node.calls.setdefault(site, _Branch())
        node.groups.append(group)
    processes = rank.trace.world_size
    which = f", rank {rank.trace.rank} of {processes}" if processes > 1 else ""
    whole = root.total_bytes
    return [_line(0, whole, whole, f"alive at the peak{which}"), *_below(root, 1, whole)]


def _below(node: _Branch, depth: int, whole: int) -> Iterator[str]:
    """Yield the lines of what a node called and asked for; what is small of it in one line."""
    parts: list[tuple[int, int, str, _Branch]] = [
        *(
            (branch.total_bytes, branch.blocks, called(site), branch)
            for site, branch in node.calls.items()
        ),
        *(
            (group.total_bytes, len(group.numbers), _asked_for(group), _Branch())
            for group in node.groups
        ),
    ]
    parts.sort(key=lambda part: part[0], reverse=True)
    threshold = LEAST_SHARE * whole
    for size, _, words, inside in parts:
        if size >= threshold:
            yield _line(depth, size, whole, words)
            yield from _below(inside, depth + 1, whole)
    small = [(size, blocks) for size, blocks, _, _ in parts if size < threshold]
    if small:
        blocks = sum(blocks for _, blocks in small)
        yield _line(
            depth,
            sum(size for size, _ in small),
            whole,
            f"{blocks:,} smaller block{'' if blocks == 1 else 's'}",
        )


def _line(depth: int, size: int, whole: int, words: str) -> str:
    return f"{_INDENT * depth}{human(size)} {size / (whole or 1):.1%}  {words}"


def _asked_for(group: Group) -> str:
    return f"{group.description}: {group.blocks}" if len(group.numbers) > 1 else group.description
