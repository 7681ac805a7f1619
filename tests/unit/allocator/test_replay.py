"""Replays of small traces that can be followed by hand, and of one recorded from real training."""

import dataclasses
import random
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import pytest

from tests.traces import trace_of
from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.fit import RESOLUTION, room_for_bounds, smallest_capacity
from xmem_slurm.allocator.replay import Run, replay
from xmem_slurm.allocator.snapshot import snapshot
from xmem_slurm.errors import UsageError
from xmem_slurm.trace import Category, Mark, Repeat, Trace
from xmem_slurm.trace_file import read
from xmem_slurm.units import MIB

RECORDED = Path(__file__).parents[2] / "data" / "gpt2-small.json.gz"


def test_peaks_and_what_they_are_made_of() -> None:
    result = replay(trace_of("+weights:30:PARAM +act:40 -act +tmp:12:TEMP"))
    assert (
        result.peak_allocated_bytes
        == result.peak_active_bytes
        == result.peak_requested_bytes
        == 70 * MIB
    )
    assert result.peak_reserved_bytes == 70 * MIB
    assert result.peak_inactive_split_bytes == 28 * MIB
    assert result.at_peak_allocated.event == 1
    assert result.at_peak_allocated.allocated_bytes == {
        Category.PARAM: 30 * MIB,
        Category.ACT: 40 * MIB,
    }
    assert result.segments == 2
    assert result.fits


def test_reserved_can_peak_at_another_moment_than_allocated() -> None:
    result = replay(trace_of("+a:40 -a +b:44:TEMP -b +c:40 +d:40"))
    assert (result.peak_allocated_bytes, result.peak_reserved_bytes) == (80 * MIB, 84 * MIB)
    assert result.at_peak_allocated.event == 7


def test_a_cached_segment_is_freed_and_the_request_tried_again_before_it_fails() -> None:
    trace = trace_of("+a:40 -a +b:50")
    assert (replay(trace, 90 * MIB).retries, replay(trace, 50 * MIB).retries) == (0, 1)
    assert replay(trace, 50 * MIB).fits
    assert not replay(trace, 48 * MIB).fits


def test_an_out_of_memory_says_what_failed_and_what_was_live() -> None:
    result = replay(trace_of("+weights:30:PARAM +gone:10 -gone +act:20 +big:64:TEMP"), 100 * MIB)
    assert result.oom is not None
    assert (result.oom.allocation, result.oom.event) == (3, 5)
    assert result.oom.requested_bytes == 64 * MIB
    assert result.oom.allocated_bytes == {Category.PARAM: 30 * MIB, Category.ACT: 20 * MIB}
    assert result.retries == 1


def test_a_block_used_by_another_stream_is_not_reused_before_its_free_is_done() -> None:
    assert replay(trace_of("+a:40 ~a +b:40 .a")).peak_reserved_bytes == 80 * MIB
    assert replay(trace_of("+a:40 ~a .a +b:40")).peak_reserved_bytes == 40 * MIB
    deferred = replay(trace_of("+a:40 ~a +b:40 .a +c:40"))
    assert (deferred.peak_allocated_bytes, deferred.peak_active_bytes) == (80 * MIB, 80 * MIB)
    assert replay(trace_of("+a:40 ~a +b:40")).peak_allocated_bytes == 40 * MIB


def test_short_memory_waits_for_other_streams_early() -> None:
    """The out-of-memory path synchronises, so the free is done before its recorded end, which then
    says nothing new."""
    result = replay(trace_of("+a:40 ~a +b:40 .a +c:20 -b ~c .c"), 60 * MIB)
    assert result.fits
    assert result.retries == 1
    assert result.peak_active_bytes == 80 * MIB - 20 * MIB


def test_a_request_is_as_large_as_it_may_be_where_there_is_memory_for_it() -> None:
    """And as it was seen, where there is not: torch takes cuDNN's next plan."""
    trace = dataclasses.replace(
        trace_of("+a:40 +workspace:10 -workspace +b:40"), bounds={10 * MIB: 90 * MIB}
    )
    assert replay(trace).peak_allocated_bytes == 80 * MIB
    assert replay(trace, at_most=True).peak_allocated_bytes == 130 * MIB
    assert replay(trace, 80 * MIB, at_most=True).peak_allocated_bytes == 80 * MIB
    assert room_for_bounds(trace, 80 * MIB) == 80 * MIB


def test_room_for_bounds_is_what_serves_what_larger_requests_leave_behind() -> None:
    """What stays in a piece of a workspace of 40 MiB keeps its segment, and 64 MiB need one beside
    it."""
    seen = trace_of("+w:4 -w +stays:2 +b:64 -b")
    trace = dataclasses.replace(seen, bounds={4 * MIB: 40 * MIB})
    assert replay(trace, 84 * MIB).suffices
    assert not replay(trace, 102 * MIB, at_most=True).fits
    assert 104 * MIB <= room_for_bounds(trace, 84 * MIB) <= 108 * MIB
    assert room_for_bounds(seen, 84 * MIB) == 84 * MIB


def test_empty_cache_gives_free_segments_back() -> None:
    assert replay(trace_of("+a:40 -a e +b:42")).peak_reserved_bytes == 42 * MIB
    assert replay(trace_of("+a:40 -a +b:42")).peak_reserved_bytes == 82 * MIB


def test_settings_are_those_of_the_job_unless_given() -> None:
    script = "+a:30 -a +b:32 -b +c:34"
    assert replay(trace_of(script)).peak_reserved_bytes == 96 * MIB
    expandable = "expandable_segments:True"
    assert replay(trace_of(script, expandable)).peak_reserved_bytes == 40 * MIB
    assert (
        replay(trace_of(script), settings=parse(expandable, "2.11.0")).peak_reserved_bytes
        == 40 * MIB
    )
    with pytest.raises(UsageError, match="no key"):
        replay(trace_of(script, "nonsense:1"))


def test_a_memory_fraction_is_of_all_that_the_gpu_has() -> None:
    trace = trace_of("+a:40", "per_process_memory_fraction:0.5")
    assert not replay(trace, 78 * MIB).fits
    assert replay(trace, 78 * MIB, total=80 * MIB).fits


def test_a_trace_without_allocations() -> None:
    result = replay(trace_of("e"), 0)
    assert result.fits
    assert result.peak_reserved_bytes == 0
    assert smallest_capacity(trace_of("e"), result) == 0


def test_a_recorded_training_run_gives_the_recorded_peaks() -> None:
    trace = read(RECORDED)
    result = replay(trace)
    assert trace.recorded == {
        "allocated_bytes": result.peak_allocated_bytes,
        "reserved_bytes": result.peak_reserved_bytes,
        "active_bytes": result.peak_active_bytes,
        "requested_bytes": result.peak_requested_bytes,
    }
    assert sum(result.at_peak_allocated.allocated_bytes.values()) == result.peak_allocated_bytes


@pytest.mark.parametrize(
    "settings",
    ["", "expandable_segments:True", "max_split_size_mb:128", "per_process_memory_fraction:0.7"],
)
def test_the_smallest_capacity_is_enough_and_a_little_less_is_not(settings: str) -> None:
    trace = dataclasses.replace(read(RECORDED), allocator_settings=settings)
    capacity = smallest_capacity(trace, replay(trace))
    assert capacity % (2 * MIB) == 0
    assert replay(trace, capacity).suffices
    assert not replay(trace, int(capacity * (1 - 1.1 / RESOLUTION))).suffices


def steps_of(scripts: Sequence[str], kind: str = "step") -> Trace:
    """Write a trace of these steps, one after the other; names may be used again."""
    trace, made = trace_of(" ".join(scripts)), [script.count("+") for script in scripts]
    return dataclasses.replace(
        trace, marks=[Mark(kind, allocations) for allocations in accumulate(made)]
    )


@pytest.mark.parametrize("kind", ["step", "backward"])
def test_a_capacity_on_which_every_step_frees_its_cache_is_not_enough(kind: str) -> None:
    trace = steps_of(["+a:40 -a +b:50 -b"] * 12, kind)
    on_two_streams = [
        each._replace(stream=number % 2) for number, each in enumerate(trace.allocations)
    ]
    trace = dataclasses.replace(trace, allocations=on_two_streams)
    short = replay(trace, 60 * MIB)
    assert short.fits
    assert (short.repeated_steps, short.short_steps) == (11, 11)
    assert not short.suffices
    assert smallest_capacity(trace, replay(trace)) == 90 * MIB


def test_steps_that_ask_for_what_none_did_before_may_free_the_cache() -> None:
    trace = steps_of([f"+a:{size} -a +b:{size} -b +c:{size} -c" for size in range(20, 60, 2)])
    assert replay(trace).peak_reserved_bytes == sum(range(20, 60, 2)) * MIB
    assert replay(trace, 58 * MIB).retries > 10
    assert smallest_capacity(trace, replay(trace)) == 58 * MIB


def test_a_shape_that_comes_again_finds_its_memory_in_the_cache() -> None:
    """Sorted by length, many batches in a row are of one length: only the first of them may be
    short."""
    trace = steps_of([f"+a:{size} -a" for size in range(20, 60, 2) for _ in range(3)])
    tight = replay(trace, 58 * MIB)
    assert (tight.repeated_steps, tight.short_steps) == (40, 0)
    assert tight.suffices


def test_once_in_a_while_does_not_count() -> None:
    found = replay(steps_of(["+a:40 -a"] * 3))
    assert dataclasses.replace(found, repeated_steps=10, short_steps=1).suffices
    assert not dataclasses.replace(found, repeated_steps=9, short_steps=1).suffices


def keeping_one(sizes: Sequence[int], count: int) -> Trace:
    """Write steps that each keep a block until the next one is under way; sizes in MiB."""
    g, a, b, c = sizes
    rest = [
        f"+a{k}:{a} +g{k}:{g} -g{k - 1} -a{k} +b{k}:{b} +c{k}:{c} -b{k} -c{k}"
        for k in range(1, count)
    ]
    return steps_of([f"+g0:{g} +a0:{a} -a0", *rest])


@pytest.mark.parametrize(
    "sizes", [(36, 31, 42, 17), (36, 22, 50, 16), (11, 29, 59, 33), (11, 16, 37, 18)]
)
def test_steps_that_a_trace_leaves_out_are_as_if_they_stood_there(sizes: Sequence[int]) -> None:
    whole, kept = keeping_one(sizes, 200), keeping_one(sizes, 4)
    left_out = Repeat(len(keeping_one(sizes, 3).events), len(kept.events), 196)
    unlimited, short = replay(whole), set()
    for capacity in (
        None,
        *range(unlimited.peak_allocated_bytes, unlimited.peak_reserved_bytes, 2 * MIB),
    ):
        full = replay(whole, capacity)
        repeated = replay(dataclasses.replace(kept, repeats=[left_out]), capacity)
        same = ["fits", "peak_allocated_bytes", "peak_reserved_bytes", "segments"]
        same += ["repeated_steps", "short_steps"] if full.fits else []
        assert [getattr(repeated, name) for name in same] == [getattr(full, name) for name in same]
        short.add(full.short_steps)
    assert len(short) > 2


@pytest.mark.parametrize("count", [9, 10])
def test_memory_after_steps_that_are_left_out_lies_as_the_last_of_them_leaves_it(
    count: int,
) -> None:
    """What each step keeps lies in the large segment and in one of its own by turns."""

    def trace(steps: int) -> Trace:
        keeping = [f"+h{k}:35 -h{k - 1}" for k in range(1, steps)]
        return steps_of(["+a:60 -a +h0:35", *keeping, "+z:50"])

    whole, kept = trace(count), trace(4)
    left_out = Repeat(len(trace(3).events) - 1, len(kept.events) - 1, count - 4)
    found = replay(dataclasses.replace(kept, repeats=[left_out]))
    assert found.peak_reserved_bytes == replay(whole).peak_reserved_bytes


def test_whether_a_job_lives_on_freeing_its_cache_does_not_hang_on_how_many_steps_were_kept() -> (
    None
):
    steps = ["+a:40 -a +b:50 -b"] * 3
    trace = steps_of(steps)
    on_two_streams = [
        each._replace(stream=number % 2) for number, each in enumerate(trace.allocations)
    ]
    left_out = [Repeat(len(steps_of(steps[:2]).events), len(trace.events), 97)]
    short = replay(
        dataclasses.replace(trace, allocations=on_two_streams, repeats=left_out), 60 * MIB
    )
    assert (short.repeated_steps, short.short_steps) == (99, 99)


def test_a_step_that_leaves_more_than_it_frees_is_not_repeated() -> None:
    trace = steps_of(["+a:10 +b:20 -b"] * 3)
    repeated = dataclasses.replace(trace, repeats=[Repeat(8, 12, 50)])
    assert replay(repeated) == replay(trace)


def test_the_smallest_capacity_stands_above_the_gaps_of_luck() -> None:
    """Freeing early can leave fewer fragments: this runs on 426 MiB, not on 432 to 446, and on all
    from 448."""
    dice, live, words = random.Random(55), list[int](), list[str]()
    for name in range(40):
        if live and dice.random() < 0.5:
            words.append(f"-{live.pop(dice.randrange(len(live)))}")
        else:
            words.append(f"+{name}:{dice.randrange(11, 120)}")
            live.append(name)
    trace = trace_of(" ".join(words))
    enough = [replay(trace, size * MIB).suffices for size in (426, 432, 446, 448)]
    assert enough == [True, False, False, True]
    assert smallest_capacity(trace, replay(trace)) == 448 * MIB


def test_a_snapshot_is_of_the_moment_asked_for() -> None:
    trace = trace_of("+a:40:PARAM +b:12 ~a +c:3")
    [first, second] = snapshot(Run(trace), 1)["segments"]
    assert (first["total_size"], second["total_size"]) == (40 * MIB, 12 * MIB)
    assert [block["state"] for block in snapshot(Run(trace), 2)["segments"][0]["blocks"]] == [
        "active_pending_free"
    ]
    assert [block["state"] for block in snapshot(Run(trace))["segments"][0]["blocks"]] == [
        "active_allocated",
        "inactive",
    ]
    actions = [entry["action"] for entry in snapshot(Run(trace))["device_traces"][0]]
    expected = [
        "segment_alloc",
        "alloc",
        "segment_alloc",
        "alloc",
        "free_requested",
        "segment_alloc",
        "alloc",
    ]
    assert actions == expected
    assert snapshot(Run(trace))["device_traces"][0][1]["frames"][0]["name"] == "PARAM"


GROUND_TRUTH = Path(__file__).parents[3] / "benchmarks" / "data" / "ground-truth" / "traces"


@pytest.mark.parametrize(
    "run",
    [
        # free blocks of one size: the lowest address is taken
        "resnet101_64x224_bf16_AdamW_channels_last",
        "t5-small_8x512_bf16_AdamW",  # the same, the other way about
        # whole segments are given back, and their addresses taken again
        "resnet50_64x224_fp32_AdamW_benchmark",
        "resnet50_64x224_fp32_AdamW_expandable_segments=True",
        "gpt2_8x1024_bf16_AdamW_compiled",
    ],
)
def test_a_history_of_a_gpu_gives_what_torch_reserved_there(run: str) -> None:
    history = read(GROUND_TRUTH / f"{run}.json.gz")
    assert replay(history).peak_reserved_bytes == history.recorded["reserved_bytes"]
