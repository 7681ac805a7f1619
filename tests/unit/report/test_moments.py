"""What a page shows of any moment: blocks add up, their callers lead to the script, the map of
segments is whole."""

import dataclasses
import re
from pathlib import Path

import pytest

from tests.traces import trace_of
from xmem_slurm import resources, trace_file
from xmem_slurm.report import blocks as page
from xmem_slurm.report.chart import chart
from xmem_slurm.report.options import outlooks
from xmem_slurm.report.segments import CELLS, FREE, ROWS, segment_map
from xmem_slurm.report.timeline import timeline
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.trace import NOWHERE, Origin
from xmem_slurm.units import MIB

GPUS = option_gpus(load_site(resources.tree("site-config") / "example.toml"), load_catalogue())
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")


def test_the_blocks_alive_at_any_moment_are_what_is_allocated_then() -> None:
    run = timeline(GPT2, 50)
    table = page.blocks(GPT2, run.block_sizes)
    rows = list(zip(table["start"], table["end"], table["bytes"], strict=True))
    for moment in [*run.columns, run.peak]:
        assert (
            sum(size for start, end, size in rows if start <= moment.event < end)
            == moment.allocated_bytes
        )


def test_only_the_largest_blocks_are_in_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_BLOCKS", 2)
    sizes = [512, 4 * MIB, 2 * MIB]
    table = page.blocks(trace_of("+a:0.0001 +b:4 +c:2 -b"), sizes)
    assert (table["start"], table["end"], table["bytes"]) == ([1, 2], [3, 5], sizes[1:])


def test_a_block_leads_to_who_called_its_line() -> None:
    sites = [
        NOWHERE,
        Origin("/x/train.py", 9, "main", ""),
        Origin("/x/net.py", 3, "forward", "h.0"),
    ]
    found = dataclasses.replace(
        trace_of("+a:1 +b:1"), sites=sites, callers=[0, 0, 1], made_at=[2, 0]
    )
    table = page.blocks(found, [MIB, MIB])
    first, unknown = table["site"]
    assert table["sites"][first][:3] == ["forward (net.py:3)", "/x/net.py", "h.0"]
    assert table["sites"][table["sites"][first][3]][0] == "main (train.py:9)"
    assert (unknown, table["sites"][0][3:]) == (0, [0, 0])
    assert [row[4] for row in table["sites"][1:]] == [1, 1]


def test_the_map_of_segments_holds_what_torch_reserved() -> None:
    run = timeline(GPT2, 10)
    found = segment_map(GPT2, run.fullest.event)
    assert found.reserved_bytes == run.peak_reserved_bytes
    assert found.reserved_bytes - found.free_bytes == run.fullest.allocated_bytes
    assert 0 <= found.whole_free_bytes <= found.free_bytes
    widths = {kind: sum(map(int, re.findall(r"h(\d+)", path))) for kind, path in found.areas}
    assert sum(widths.values()) == ROWS * CELLS
    assert abs(widths[FREE] / (ROWS * CELLS) - found.free_bytes / found.reserved_bytes) < 0.01


def test_free_memory_between_blocks_is_told_from_segments_that_are_free() -> None:
    found = segment_map(trace_of("+a:12 +b:12 +c:30 -a -c"), 6)
    assert {
        (each.total_bytes, each.free_bytes, each.largest_free_bytes, each.blocks)
        for each in found.segments
    } == {
        (30 * MIB, 30 * MIB, 30 * MIB, 0),
        (12 * MIB, 0, 0, 1),
        (12 * MIB, 12 * MIB, 12 * MIB, 0),
    }
    assert (found.free_bytes, found.whole_free_bytes) == (42 * MIB, 42 * MIB)
    split = segment_map(trace_of("+a:4 +b:4 -a"), 3)
    assert (split.free_bytes, split.whole_free_bytes, len(split.segments)) == (16 * MIB, 0, 1)


def test_the_chart_has_a_mark_where_an_option_is_full() -> None:
    small = GPUS["l4"].model_copy(update={"total_bytes": 4 << 30})
    verdicts = [Verdict("small", small, False), Verdict("l4", GPUS["l4"], True)]
    options = outlooks(Sizing(estimate([GPT2], "l4", GPUS["l4"]), Placement(verdicts, "l4"), 1.0))
    run = timeline(GPT2, 500)
    (mark,) = chart(run, options).failing
    column = run.columns[int(mark.x)]
    assert mark.names == "small"
    assert options[0].failure is not None
    assert options[0].failure.allocated_bytes <= column.allocated_bytes < 4 << 30
    assert chart(run, options, rank=1).failing == []
