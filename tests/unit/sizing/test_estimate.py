"""The estimate: peak, context and margin add up, doubt widens, and no estimate is better than a bad
one."""

import dataclasses
from pathlib import Path

import pytest

from tests.traces import growing_batches, trace_of
from xmem_slurm import trace, trace_file
from xmem_slurm.allocator.fit import RESOLUTION
from xmem_slurm.allocator.replay import replay
from xmem_slurm.doubts import Doubt
from xmem_slurm.errors import NoEstimate
from xmem_slurm.report import terminal
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing import estimate, nccl
from xmem_slurm.sizing.margins import Experience, LearnedMargin, Margin, RanOut, measured
from xmem_slurm.trace import Category, Noted, ScriptFailure, Trace
from xmem_slurm.units import GIB, MIB

GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
H200 = load_catalogue()["h200"]


def gpu_of(total: int, context: int = 0) -> Gpu:
    return H200.model_copy(update={"total_bytes": total, "context_bytes": context})


def changed(**fields: object) -> Trace:
    return dataclasses.replace(GPT2, **fields)  # type: ignore[arg-type]


def test_required_is_peak_and_context_and_margin() -> None:
    found = estimate.estimate([GPT2], "h200", H200)
    rank = found.largest
    assert rank.replay.peak_reserved_bytes == GPT2.recorded["reserved_bytes"] == 15_252_586_496
    assert found.required_bytes == 15_252_586_496 + H200.context_bytes + rank.margin_bytes
    (kind,) = (each for each in measured() if not each.unseen)
    assert rank.margin == kind.margin
    assert kind.margin.share <= rank.margin_bytes / 15_252_586_496 < kind.margin.share + 0.001
    assert found.confidence == "high"


def test_a_rank_that_failed_before_it_used_a_gpu_leaves_no_estimate_and_a_worker_of_one_does() -> (
    None
):
    """A data loader's worker is killed in the end, and has its rank's variables."""
    failed = ScriptFailure(
        "AcceleratorError: CUDA error: invalid device ordinal (train.py:5)", "AcceleratorError"
    )
    died = changed(
        rank=2,
        world_size=4,
        allocations=[],
        events=[],
        marks=[],
        recorded={},
        seen=None,
        failure=failed,
    )
    of_rank_2 = changed(rank=2, world_size=4)
    assert len(estimate.estimate([GPT2, of_rank_2, died], "h200", H200).ranks) == 2
    with pytest.raises(
        NoEstimate, match=r"^rank 2 of 4 stopped with AcceleratorError: CUDA error: invalid device"
    ):
        estimate.estimate([changed(world_size=4), died], "h200", H200)


def test_the_breakdown_names_the_optimizer_state() -> None:
    breakdown = estimate.estimate([GPT2], "h200", H200).largest.breakdown
    # AdamW: two moments
    assert breakdown[Category.OPT] == pytest.approx(2 * breakdown[Category.PARAM], rel=0.05)


def test_fit_is_a_replay_not_a_comparison_with_the_peak() -> None:
    """Left alone it keeps the first block in its cache; short of memory the allocator gives that
    back and goes on."""
    found = estimate.estimate(
        [dataclasses.replace(trace_of("+a:640 -a +b:800"), gpu=GPT2.gpu)], "h200", H200
    )
    rank = found.largest
    assert rank.peak_reserved_bytes == 1440 * MIB
    assert rank.fits_in_bytes < 810 * MIB
    enough = H200.context_bytes + 800 * MIB + rank.margin_bytes
    assert found.fits(gpu_of(enough, H200.context_bytes))
    assert not found.fits(gpu_of(enough - 2 * MIB, H200.context_bytes))


def test_a_bound_is_part_of_the_need_and_no_doubt() -> None:
    """A workspace that may be larger leaves a large segment in pieces; what needs a whole one then
    has not enough."""
    seen = trace_of("+w:4 -w +stays:2 +b:64 -b +c:64 -c")
    bounded = dataclasses.replace(seen, bounds={4 * MIB: 40 * MIB}, gpu=GPT2.gpu)
    plain, found = (estimate.estimate([each], "h200", H200) for each in (seen, bounded))
    assert (plain.confidence, plain.reasons) == (found.confidence, found.reasons)
    rank = found.largest
    assert rank.bound_bytes == rank.fits_in_bytes - plain.largest.fits_in_bytes > 0
    assert rank.replay == plain.largest.replay
    enough = H200.context_bytes + rank.margin_bytes + rank.fits_in_bytes
    assert found.fits(gpu_of(enough, H200.context_bytes))
    assert not found.fits(gpu_of(enough - rank.bound_bytes, H200.context_bytes))
    assert "in case cuDNN chooses larger plans" in terminal.estimate_lines(found)[0]


def test_where_batches_vary_the_need_is_what_it_fits_on_not_the_fragments_of_the_peak() -> None:
    found, least, most = growing_batches(GPT2, weights=1 * GIB, largest=300 * MIB)
    needed = estimate.estimate([found], "h200", H200)
    rank = needed.largest
    assert rank.replay.peak_reserved_bytes > 10 * most
    assert least <= rank.fits_in_bytes <= most + most // RESOLUTION
    assert rank.margin_bytes == estimate.margin_bytes(rank.margin, rank.fits_in_bytes)
    assert needed.required_bytes == rank.fits_in_bytes + H200.context_bytes + rank.margin_bytes
    assert needed.uses_up_to_bytes == rank.replay.peak_reserved_bytes + H200.context_bytes
    assert needed.uses_more
    more = 2 * rank.peak_reserved_bytes
    with_steps_left_out = dataclasses.replace(found, recorded={"reserved_bytes": more})
    assert dataclasses.replace(rank, trace=with_steps_left_out).peak_reserved_bytes == more
    fewer = {
        "requested_bytes": rank.replay.peak_requested_bytes,
        "reserved_bytes": rank.peak_reserved_bytes // 2,
    }
    other_holes = dataclasses.replace(rank, trace=dataclasses.replace(found, recorded=fewer))
    assert other_holes.peak_reserved_bytes == rank.peak_reserved_bytes // 2
    with_an_addition = dataclasses.replace(
        found, recorded=fewer | {"requested_bytes": fewer["requested_bytes"] - 1}
    )
    assert (
        dataclasses.replace(rank, trace=with_an_addition).peak_reserved_bytes
        == rank.peak_reserved_bytes
    )
    assert needed.fits(gpu_of(needed.required_bytes, H200.context_bytes))
    assert not needed.fits(
        gpu_of(least + rank.margin_bytes + H200.context_bytes - 2 * MIB, H200.context_bytes)
    )


def test_a_gpu_on_which_every_step_would_free_its_cache_is_none_that_fits() -> None:
    sizes, made = (40, 50), 24
    found = changed(
        allocations=[
            trace.Allocation(sizes[n % 2] * MIB, n % 2, Category.ACT) for n in range(made)
        ],
        events=[trace.Event(op, n) for n in range(made) for op in (0, 1, 2)],
        marks=[trace.Mark("step", n) for n in range(2, made + 1, 2)],
    )
    needed = estimate.estimate([found], "h200", H200)
    assert needed.largest.fits_in_bytes == needed.largest.replay.peak_reserved_bytes == 90 * MIB
    margin = needed.largest.margin_bytes
    assert needed.fits(gpu_of(90 * MIB + margin))
    assert replay(found, 88 * MIB).fits
    assert not needed.fits(gpu_of(88 * MIB + margin))


def test_context_and_margin_are_kept_free() -> None:
    found = estimate.estimate([GPT2], "h200", H200)
    enough = 15_252_586_496 + found.largest.margin_bytes
    assert found.fits(gpu_of(enough))
    assert not found.fits(gpu_of(enough, context=1 * GIB))


def test_a_doubt_widens_the_margin_and_is_told() -> None:
    measured_kind = H200.model_copy(update={"capability": "8.6"})
    doubtful = estimate.estimate(
        [changed(doubts=[Noted(Doubt.CUDNN_PLAN, "cudnnBackendFinalize", 3)])], "", measured_kind
    )
    assert (
        doubtful.largest.margin_bytes > estimate.estimate([GPT2], "h200", H200).largest.margin_bytes
    )
    assert doubtful.largest.margin.probability is not None
    assert doubtful.confidence == "medium"
    assert any("cuDNN" in reason for reason in doubtful.reasons)


def test_what_jobs_here_taught_goes_before_what_ships_and_says_so() -> None:
    own = Margin(0.01, 0.95, 312, 40, of="jobs of this site (2026-11-23)")
    learned = Experience([LearnedMargin("device", frozenset({H200.cuda_name}), frozenset(), own)])
    found = estimate.estimate([GPT2], "h200", H200, learned)
    assert found.largest.margin == own
    told = terminal.estimate_lines(found)[-1]
    assert "the margin is enough for 95% of 312 jobs of this site (2026-11-23)" in told
    doubtful = changed(doubts=[Noted(Doubt.ASSUMED_VALUES, "", share=0.3)])
    assert estimate.estimate([doubtful], "h200", H200, learned).largest.margin.probability is None
    assert found.confidence == "high"
    of_failures = Experience(
        [
            dataclasses.replace(each, margin=dataclasses.replace(own, probability=0.09))
            for each in learned.margins
        ]
    )
    found = estimate.estimate([GPT2], "h200", H200, of_failures)
    shipped = estimate.estimate([GPT2], "h200", H200).largest.margin
    assert (found.largest.margin.share, found.largest.margin.probability) == (shipped.share, 0.09)
    assert found.confidence == "medium"


def test_a_script_that_ran_out_is_not_sent_to_where_it_did() -> None:
    needs = estimate.estimate([GPT2], "h200", H200)
    small = gpu_of(needs.required_bytes, H200.context_bytes)
    assert needs.fits(small)
    there_was = estimate.capacity_for(small, 0)
    for ran_out in (
        RanOut("job 7 ran out", (there_was + 2 * MIB) / needs.largest.fits_in_bytes - 1, 0),
        RanOut("job 7 ran out", None, there_was + 2 * MIB),
    ):
        again = estimate.estimate([GPT2], "h200", H200, Experience(ran_out=ran_out))
        assert not again.fits(small)
        assert again.fits(
            gpu_of(
                needs.required_bytes + needs.largest.fits_in_bytes // RESOLUTION + 8 * MIB,
                H200.context_bytes,
            )
        )
        assert (again.confidence, again.reasons) == ("medium", ["job 7 ran out"])


def test_a_run_cut_off_by_the_budget_is_doubtful_and_promises_nothing() -> None:
    found = estimate.estimate([changed(state="budget")], "h200", H200)
    assert found.confidence == "medium"
    assert found.largest.margin.probability is None


def test_what_nccl_takes_here_is_kept_free_where_the_job_uses_it() -> None:
    without = H200.model_copy(update={"cuda_name": "measured by nobody"})
    measured_here = without.model_copy(update={"nccl_bytes": 400 * MIB})
    alone = estimate.estimate([GPT2], "h200", measured_here)
    ranks = changed(doubts=[Noted(Doubt.NCCL, "")])
    together = estimate.estimate([ranks], "h200", measured_here)
    assert alone.largest.outside_allocator_bytes == H200.context_bytes
    assert together.largest.outside_allocator_bytes == H200.context_bytes + 400 * MIB
    bound = estimate.estimate([ranks], "h200", without).largest
    assert (
        bound.outside_allocator_bytes
        == H200.context_bytes + nccl.taken(ranks, without)[0]
        > 600 * MIB
    )
    more = bound.outside_allocator_bytes - together.largest.outside_allocator_bytes
    assert together.largest.capacity_on(measured_here) - bound.capacity_on(without) == more > 0


def test_what_may_be_freed_later_is_room_that_the_need_has() -> None:
    """DDP's first buckets, of 100 MiB of gradients: four of whole pages, and two that may be
    small."""
    plain, ddp = (
        estimate.estimate([changed(doubts=doubts)], "h200", H200).largest
        for doubts in ([], [Noted(Doubt.DDP_BUCKETS, "DDP's first buckets", 100 * MIB)])
    )
    more = (100 + 4 * 2 + 2 * 20) * MIB
    assert (ddp.fits_in_bytes - plain.fits_in_bytes, ddp.bound_bytes) == (more, more)
    kept = ddp.margin_bytes - plain.margin_bytes
    assert plain.capacity_on(H200) - ddp.capacity_on(H200) == more + kept
    assert ddp.headroom_on(H200) == H200.total_bytes - ddp.required_bytes
    assert plain.headroom_on(H200) == H200.total_bytes - plain.required_bytes
    assert estimate.estimate([ddp.trace], "h200", H200).confidence == "high"


def test_ranks_that_were_seen_to_be_alike_are_no_reason() -> None:
    alike = Noted(Doubt.RANKS_ALIKE, "rank 3 of 4 needs no more than rank 0")
    for doubts, confidence in (([], "medium"), ([alike], "high")):
        assert (
            estimate.estimate([changed(doubts=doubts, world_size=4)], "h200", H200).confidence
            == confidence
        )


def test_where_nccl_was_measured_with_as_many_ranks_it_is_no_doubt() -> None:
    ranks = changed(doubts=[Noted(Doubt.NCCL, "")], world_size=8, torch_version="2.10.0+cu128")
    known = estimate.estimate([ranks], "h200", H200)
    assert known.largest.outside_allocator_bytes == H200.context_bytes + nccl.taken(ranks, H200)[0]
    assert not any("NCCL" in reason for reason in known.reasons)
    doubtful = estimate.estimate([dataclasses.replace(ranks, nodes=2)], "h200", H200)
    assert any("NCCL" in reason for reason in doubtful.reasons)
    assert doubtful.largest.margin.share > known.largest.margin.share


def test_the_largest_process_decides_and_launchers_do_not_count() -> None:
    empty = changed(allocations=[], events=[], marks=[], failure=None)
    assert len(estimate.estimate([empty, GPT2, GPT2], "h200", H200).ranks) == 2


@pytest.mark.parametrize(
    ("traces", "why"),
    [
        (
            [changed(marks=[], failure=trace_file.failure("FileNotFoundError: data.bin"))],
            "after 0 optimizer steps with FileNotFoundError",
        ),
        ([changed(marks=[], state="budget")], "--xmem-budget"),
        (
            [
                changed(
                    allocations=[],
                    events=[],
                    failure=trace_file.failure("torch 2.13.0+cpu is not a CUDA build"),
                )
            ],
            r"^torch 2\.13\.0\+cpu is not a CUDA build$",
        ),
        (
            [
                changed(
                    allocations=[],
                    events=[],
                    failure=trace_file.failure("FileNotFoundError: data.bin"),
                )
            ],
            "^the script stopped with FileNotFoundError: data.bin$",
        ),
        ([], "no process used GPU memory"),
    ],
)
def test_no_estimate_says_why(traces: list[Trace], why: str) -> None:
    with pytest.raises(NoEstimate, match=why):
        estimate.estimate(traces, "h200", H200)
