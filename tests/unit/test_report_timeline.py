"""The timeline: however coarse its columns are, the peaks are those of the replay, and the parts add up."""

from pathlib import Path

import pytest

from xmem_slurm import trace
from xmem_slurm.allocator.replay import replay
from xmem_slurm.report.chart import HEIGHT, chart
from xmem_slurm.report.timeline import STACK, phase_at, phase_of, timeline

GPT2 = trace.read(Path(__file__).parents[1] / "data" / "gpt2-small.json.gz")
WHOLE = replay(GPT2)


@pytest.mark.parametrize("columns", [1, 7, 250, 2000, 1_000_000])
def test_the_peaks_are_exact_in_any_number_of_columns(columns: int) -> None:
    found = timeline(GPT2, columns)
    assert len(found.columns) == min(columns, len(GPT2.events))
    assert max(column.allocated_bytes for column in found.columns) == WHOLE.peak_allocated_bytes
    assert max(column.reserved_bytes for column in found.columns) == WHOLE.peak_reserved_bytes
    assert all(sum(column.allocated) == column.allocated_bytes for column in found.columns)
    peak = dict(zip(STACK, found.peak.allocated, strict=True))
    assert {category: size for category, size in peak.items() if size} == WHOLE.at_peak_allocated.allocated_bytes
    assert found.peak.event == WHOLE.at_peak_allocated.event


def test_what_lives_at_the_peak_adds_up_to_it() -> None:
    found = timeline(GPT2, 100)
    assert sum(group.total_bytes for group in found.at_peak) == WHOLE.peak_allocated_bytes
    assert [group.total_bytes for group in found.at_peak] == sorted(
        (g.total_bytes for g in found.at_peak), reverse=True
    )
    largest = found.at_peak[0]
    assert (len(largest.numbers), largest.bytes_each, str(largest.phase)) == (36, 96 << 20, "forward, step 2")
    assert {GPT2.allocations[number].category for number in largest.numbers} == {largest.category}


def test_phases_follow_one_another_without_a_gap() -> None:
    phases = timeline(GPT2, 10).phases
    assert [phase.name for phase in phases] == ["forward", "backward", "optimizer"] * 3 + ["after"]
    assert phases[0].start == 0
    assert [phase.start for phase in phases[1:]] == [phase.end for phase in phases[:-1]]
    assert phases[-1].end == len(GPT2.events)


def test_an_allocation_is_in_the_phase_of_its_event() -> None:
    phases = timeline(GPT2, 10).phases
    made = [(event, number) for event, (op, number) in enumerate(GPT2.events) if op == trace.Op.ALLOC]
    assert all(str(phase_at(phases, event)) == phase_of(GPT2, number) for event, number in made)


def test_the_drawing_is_to_scale() -> None:
    drawn = chart(timeline(GPT2, 500), [])
    lowest = min(int(part.partition("H")[0]) for part in drawn.reserved.split("V")[1:])
    assert lowest == HEIGHT - round(HEIGHT * WHOLE.peak_reserved_bytes / drawn.top_bytes)
    assert [tick.label for tick in drawn.ticks] == ["0 GiB", "5 GiB", "10 GiB", "15 GiB"]
    assert all(path.endswith(f"V{HEIGHT}H0Z") for _, path in drawn.areas)
