"""Memory counters and phases for ui.perfetto.dev and chrome://tracing, one process a rank.

The form is Chrome's trace events ("Trace Event Format", `C` counters and `X` complete events). A
dry run's seconds say nothing about those on a GPU, so one event of the allocator stands for one
microsecond.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xmem_slurm.report.categories import CATEGORY_NAMES
from xmem_slurm.report.largest import MOST_GROUPS, at_peak
from xmem_slurm.report.timeline import STACK, timeline
from xmem_slurm.sizing.estimate import RankEstimate
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.state import own_files

COLUMNS = 20_000
"""Counter values for each rank: every event of most dry runs, in some megabytes."""


def events(rank: RankEstimate) -> Iterator[dict[str, Any]]:
    """Yield the trace events of one rank."""
    memory = timeline(rank.trace, COLUMNS)
    of_rank = {"pid": rank.trace.rank, "tid": 0}
    yield {
        "ph": "M",
        "name": "process_name",
        "args": {"name": f"rank {rank.trace.rank}"},
        **of_rank,
    }
    for moment in memory.columns:
        sizes = zip(STACK, moment.allocated, strict=True)
        at = {"ph": "C", "ts": moment.event, **of_rank}
        yield {
            **at,
            "name": "allocated",
            "args": {CATEGORY_NAMES[category]: size for category, size in sizes},
        }
        yield {**at, "name": "reserved", "args": {"bytes": moment.reserved_bytes}}
    for phase in memory.phases:
        yield {
            "ph": "X",
            "name": str(phase),
            "ts": phase.start,
            "dur": phase.end - phase.start,
            **of_rank,
        }
    largest = {
        f"{number:02}": str(group) for number, group in enumerate(at_peak(rank)[:MOST_GROUPS], 1)
    }
    yield {
        "ph": "i",
        "s": "p",
        "name": "the most allocated",
        "ts": memory.peak.event,
        "args": largest,
        **of_rank,
    }


def write(path: Path, sizing: Sizing) -> None:
    """Write the events of all ranks."""
    document = {
        "traceEvents": [event for rank in sizing.estimate.ranks for event in events(rank)],
        "otherData": {"time": "one event of the allocator is one microsecond", "unit": "bytes"},
    }
    own_files.write_for_user(path, json.dumps(document, separators=(",", ":")).encode())
