"""The estimate as one HTML file that needs nothing else: charts, tables, and the JSON object inside
it.

Charts, maps and tables are drawn before the file is opened, and speak of the peaks; its script adds
a cursor, zoom, and what is alive at any other moment, as a table and as a flame graph of who asked
for it.
"""

import shlex
import time
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from xmem_slurm import __version__, resources
from xmem_slurm.report import json, terminal
from xmem_slurm.report.blocks import blocks
from xmem_slurm.report.categories import CATEGORY_NAMES
from xmem_slurm.report.chart import HEIGHT, chart, hover_columns, level
from xmem_slurm.report.largest import MOST_GROUPS, at_peak, by_own_line
from xmem_slurm.report.options import OptionOutlook, outlooks, remedy
from xmem_slurm.report.seen import seen_words
from xmem_slurm.report.segments import CELLS, MOST_SEGMENTS, ROWS, segment_map
from xmem_slurm.report.timeline import STACK, timeline
from xmem_slurm.sizing.estimate import RankEstimate
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.state import own_files
from xmem_slurm.units import human

COLUMNS = 2000
"""Columns of all charts of a page together: twice a wide screen's, so that there is something to
zoom into, in some 300 kB."""

LEAST_COLUMNS = 250
"""Columns of one chart, however many ranks there are."""

MOST_CHARTS = 8
"""Ranks with a chart, those that need the most memory first; the others have their line in the
table."""

_DAY = "%Y-%m-%d %H:%M"

MOST_PHASES = 36
"""Lines of the table that stands for the chart: twelve steps."""


def render(sizing: Sizing, templates: Path | None = None) -> str:
    """Return the page; `templates` is the site's own folder.

    Raises:
        UsageError: as `replay` does.
    """
    ranks = sorted(sizing.estimate.ranks, key=lambda rank: rank.required_bytes, reverse=True)
    drawn = ranks[:MOST_CHARTS]
    options = outlooks(sizing)
    columns = max(LEAST_COLUMNS, COLUMNS // len(drawn))
    values = {
        "version": __version__,
        "estimate": sizing.estimate,
        "command": shlex.join(sizing.estimate.largest.trace.argv),
        "sizing": sizing,
        "made": None if sizing.made is None else time.strftime(_DAY, time.localtime(sizing.made)),
        "ranks": sorted(ranks, key=lambda rank: rank.trace.rank),
        "charts": [_rank(rank, columns, options) for rank in drawn],
        "options": options,
        "remedy": remedy(sizing),
        "choice": sizing.placement.choice,
        "why": terminal.reason(sizing) if sizing.placement.choice else terminal.too_small(sizing),
        "sure": terminal.HOW_SURE[sizing.estimate.confidence],
        "promise": terminal.promise(sizing.estimate.largest),
        "seen": seen_words(sizing.estimate.largest.trace),
        "on_host": terminal.on_host(sizing.estimate, sizing.host_requested),
        "answers": terminal.ANSWERS,
        "names": CATEGORY_NAMES,
        "stack": STACK,
        "height": HEIGHT,
        "map_rows": ROWS,
        "map_cells": CELLS,
        "document": json.estimate_object(sizing),
    }
    places = resources.template_places("report", templates)
    return resources.render(places, "report.html.j2", values, filters={"human": human}, html=True)


def write(path: Path, sizing: Sizing, templates: Path | None = None) -> None:
    """Write the page to a file."""
    own_files.write_for_user(path, render(sizing, templates).encode())


def _rank(rank: RankEstimate, columns: int, options: Sequence[OptionOutlook]) -> dict[str, Any]:
    """Return what the page shows of one rank: its timeline, drawn and in words."""
    memory = timeline(rank.trace, columns)
    lines = by_own_line(rank.trace, at_peak(rank))
    groups = sorted(
        (group for line in lines for group in line.groups),
        key=attrgetter("total_bytes"),
        reverse=True,
    )
    listed = {id(group) for group in groups[:MOST_GROUPS]}
    full = segment_map(rank.trace, memory.fullest.event)
    unlisted = groups[MOST_GROUPS:]
    drawn = chart(memory, options, rank.trace.rank, rank.fits_in_bytes)
    needed = f"{human(rank.required_bytes)} needed: {human(rank.fits_in_bytes)} here"
    return {
        "estimate": rank,
        "timeline": memory,
        "chart": drawn,
        "needed": level(drawn, rank.fits_in_bytes, needed),
        "segments": full,
        "largest_segments": full.segments[:MOST_SEGMENTS],
        "phases": memory.phases[:MOST_PHASES],
        "lines": [
            (line, [(group, rank.trace.stack_of(group.numbers[0])) for group in rows])
            for line in lines
            if (rows := [group for group in line.groups if id(group) in listed])
        ],
        "has_lines": any(site.file for site in rank.trace.sites),
        "rest_count": sum(len(group.numbers) for group in unlisted),
        "rest_bytes": sum(group.total_bytes for group in unlisted),
        "data": {
            "columns": hover_columns(memory.columns),
            "names": ["reserved", *(CATEGORY_NAMES[category] for category in STACK)],
            "phases": [[phase.start, str(phase)] for phase in memory.phases],
            "peak": memory.peak.event,
            "stack": [category.value for category in STACK],
            "blocks": blocks(rank.trace, memory.block_sizes),
        },
    }
