"""How many jobs, seconds and GPUs were decided of so far? Counted from the site's record (`audit`),
each line once.

A count outlives its lines: they are moved aside and removed, and Prometheus wants counters that
never fall. So it is kept beside them, with how far each user's lines are counted. Users write
these: whatever they put there, a kind of GPU is one of the site's own names, so that nobody can
make series of their own.
"""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xmem_slurm.report import audit
from xmem_slurm.state import own_files

NAME = "totals.json"
"""The file in the record's folder; only what is ours is taken for it."""
OTHER = "other"
"""The kind of what the site file has no name for."""
MOST_SECONDS = 86_400
"""A line that says more is not believed..."""
MOST_DIGITS = 5
"""...nor one with a longer number of GPUs."""
MOST_BYTES = 64 << 20


@dataclass
class Totals:
    """Jobs and seconds by outcome, GPUs by the kind that was asked for and is; `read` is how far,
    as `audit` has it.
    """

    jobs: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(audit.OUTCOMES, 0.0))
    gpus: Counter[tuple[str, str]] = field(default_factory=Counter)
    read: dict[str, tuple[int, int]] = field(default_factory=dict)

    def count(self, decision: audit.RecordedLine, types: Collection[str]) -> None:
        """Add a decision; `types` are the site's kinds of GPU."""
        if decision.outcome not in audit.OUTCOMES or not 0 <= decision.seconds <= MOST_SECONDS:
            return
        self.jobs[decision.outcome] += 1
        self.seconds[decision.outcome] += decision.seconds
        for before, after in zip(decision.before, decision.after, strict=False):
            self.gpus[_kind(before, types), _kind(after, types)] += _count(after)


def count(folder: Path, types: Collection[str]) -> tuple[Totals, OSError | None]:
    """Count what is new in a record's folder; return all that was counted, and why that could not
    be kept, if so.

    Raises:
        OSError: the folder cannot be read.
    """
    path = folder / NAME
    totals = _kept(path)
    for decision in audit.decisions(folder, totals.read):
        totals.count(decision, types)
    content = {**vars(totals), "gpus": [[*kinds, number] for kinds, number in totals.gpus.items()]}
    try:
        own_files.write(path, json.dumps(content).encode())
    except OSError as error:
        return totals, error
    return totals, None


def _kept(path: Path) -> Totals:
    try:
        content: dict[str, Any] = json.loads(own_files.read(path, MOST_BYTES))
        return Totals(
            Counter({name: int(content["jobs"].get(name, 0)) for name in audit.OUTCOMES}),
            {name: float(content["seconds"].get(name, 0)) for name in audit.OUTCOMES},
            Counter({(before, after): number for before, after, number in content["gpus"]}),
            {user: (inode, at) for user, (inode, at) in content["read"].items()},
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Totals()


def _kind(entry: str, types: Collection[str]) -> str:
    """Return the kind of an entry such as "gpu:h200:4"; a share is one of its resource."""
    resource, _, kind_and_count = entry.partition(":")
    if resource in {"shard", "mps"}:
        return resource
    kind = kind_and_count.rpartition(":")[0]
    return kind if kind in types else OTHER


def _count(entry: str) -> int:
    number = entry.rpartition(":")[2]
    return (
        int(number) if number.isascii() and number.isdecimal() and len(number) <= MOST_DIGITS else 0
    )
