"""The timeline: however coarse its columns are, the peaks are those of the replay, and the parts
add up."""

import dataclasses
from pathlib import Path

import pytest

from xmem_slurm import trace, trace_file
from xmem_slurm.allocator.replay import replay
from xmem_slurm.report.chart import HEIGHT, chart, level
from xmem_slurm.report.timeline import STACK, phase_of, timeline

GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
WHOLE = replay(GPT2)


@pytest.mark.parametrize("columns", [1, 7, 250, 2000, 1_000_000])
def test_the_peaks_are_exact_in_any_number_of_columns(columns: int) -> None:
    found = timeline(GPT2, columns)
    assert len(found.columns) == min(columns, len(GPT2.events))
    assert max(column.allocated_bytes for column in found.columns) == WHOLE.peak_allocated_bytes
    assert max(column.reserved_bytes for column in found.columns) == WHOLE.peak_reserved_bytes
    assert all(sum(column.allocated) == column.allocated_bytes for column in found.columns)
    peak = dict(zip(STACK, found.peak.allocated, strict=True))
    assert {
        category: size for category, size in peak.items() if size
    } == WHOLE.at_peak_allocated.allocated_bytes
    assert found.peak.event == WHOLE.at_peak_allocated.event


def test_phases_follow_one_another_without_a_gap() -> None:
    phases = timeline(GPT2, 10).phases
    assert [phase.name for phase in phases] == ["forward", "backward", "optimizer"] * 3 + ["after"]
    assert phases[0].start == 0
    assert [phase.start for phase in phases[1:]] == [phase.end for phase in phases[:-1]]
    assert phases[-1].end == len(GPT2.events)


def test_a_step_whose_optimizer_allocates_nothing_is_a_step() -> None:
    assert [step for step, _ in chart(timeline(GPT2, 500), []).steps] == [1, 2, 3]
    quiet = [mark for mark in GPT2.marks if mark.kind == "step"]
    without = dataclasses.replace(
        GPT2,
        marks=[mark._replace(kind=kind) for mark in quiet for kind in ("backward_end", "step")],
    )
    assert [phase.name for phase in timeline(without, 10).phases] == ["backward"] * 3 + ["after"]
    assert timeline(without, 10).steps == timeline(GPT2, 10).steps


def test_a_trace_that_was_cut_is_drawn_to_its_end() -> None:
    late = trace.Mark("step", len(GPT2.allocations) + 3)
    drawn = timeline(dataclasses.replace(GPT2, marks=[*GPT2.marks, late]), 10)
    assert drawn.steps[-1] <= len(GPT2.events)
    assert drawn.phases[-1].end == len(GPT2.events)


def test_an_allocation_is_in_the_phase_of_its_event() -> None:
    phases = timeline(GPT2, 10).phases
    made = [
        (event, number) for event, (op, number) in enumerate(GPT2.events) if op == trace.Op.ALLOC
    ]
    of = {event: str(phase) for phase in phases for event in range(phase.start, phase.end)}
    assert all(of[event] == phase_of(GPT2, number) for event, number in made)


def test_what_is_needed_is_within_the_drawing_where_it_is_more_than_was_reserved() -> None:
    needed = 2 * WHOLE.peak_reserved_bytes
    drawn = chart(timeline(GPT2, 500), [], needed_bytes=needed)
    assert 0 < level(drawn, needed, "").y < HEIGHT / 2


def test_the_drawing_is_to_scale() -> None:
    drawn = chart(timeline(GPT2, 500), [])
    lowest = min(int(part.partition("H")[0]) for part in drawn.reserved.split("V")[1:])
    assert lowest == HEIGHT - round(HEIGHT * WHOLE.peak_reserved_bytes / drawn.top_bytes)
    assert [tick.label for tick in drawn.ticks] == ["0 GiB", "5 GiB", "10 GiB", "15 GiB"]
    assert all(path.endswith(f"V{HEIGHT}H0Z") for _, path in drawn.areas)
