"""Which ranks are run dry beside rank 0, and what is said of those that are not."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from xmem_slurm import trace, trace_file
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import ranks
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult, SharedBudget, drive
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder, RunRanks
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate

GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
FIRST = replace(GPT2, rank=0, world_size=4)
STAGE = replace(FIRST, peers=[0, 1, 2, 3])
JOB = Job(b"#!/bin/sh\n", (), Path("/"), {})
H200 = load_catalogue()["h200"]
ORDER = DryRunOrder(JOB, H200, Budget())


@pytest.mark.parametrize(
    ("wish", "peers", "chosen"),
    [
        ("", [], None),
        ("", [0, 1, 2, 3], "0,1,2,3/4"),
        ("", [3], "0,3/4"),
        ("last", [], "0,3/4"),
        ("all", [], "0,1,2,3/4"),
        ("2,7", [], "0,2/4"),
        ("2", [3], "0,2,3/4"),
        ("0", [], None),
        ("nonsense", [], None),
    ],
)
def test_what_is_run_beside_rank_0(wish: str, peers: list[int], chosen: str | None) -> None:
    order = DryRunOrder.of(replace(JOB, environ={"XMEM_RANKS": wish}), H200, Budget())
    found = ranks.with_others(order, [replace(FIRST, peers=peers)])
    assert (found and found.environ["XMEM_RUN_RANKS"]) == chosen


def test_what_was_decided_stands_and_components_have_their_own_first_ranks() -> None:
    assert ranks.with_others(replace(ORDER, run_ranks=RunRanks((0, 3), 4)), [STAGE]) is None
    assert ranks.with_others(replace(ORDER, job=replace(JOB, gpus=(1, 1))), [STAGE]) is None


def test_of_many_ranks_the_first_the_last_and_some_between() -> None:
    assert ranks.sample([5, 3]) == [0, 3, 5]
    found = ranks.sample(range(64))
    assert (found[0], found[-1], len(found)) == (0, 63, ranks.MOST)
    assert {b - a for a, b in itertools.pairwise(found)} == {9}


class Elsewhere:
    """Stands for what runs orders: gives these traces for rank 0, then those for all that are asked
    for."""

    def __init__(self, *results: list[trace.Trace]) -> None:
        self.results, self.asked = list(results), []

    def __call__(self, order: DryRunOrder) -> DryRunResult:
        self.asked.append(order.environ.get("XMEM_RUN_RANKS"))
        return DryRunResult(self.results.pop(0))


def run(dry_runs: Elsewhere, job: Job = JOB) -> list[trace.Trace]:
    return list(
        drive(ranks.run(DryRunOrder(job, H200, Budget()), SharedBudget(Budget())), dry_runs)
    )


def test_the_largest_stage_decides() -> None:
    large = replace(
        STAGE, rank=3, allocations=[a._replace(size=a.size * 2) for a in STAGE.allocations]
    )
    dry_runs = Elsewhere([STAGE], [STAGE, replace(STAGE, rank=1), replace(STAGE, rank=2), large])
    found = estimate(run(dry_runs), "h200", H200)
    assert dry_runs.asked == [None, "0,1,2,3/4"]
    assert found.largest.trace.rank == 3
    assert not any("ranks" in reason for reason in found.reasons)


def test_a_sample_is_said_and_doubted() -> None:
    few = [
        replace(STAGE, rank=rank, world_size=16, peers=range(16))
        for rank in ranks.sample(range(16))
    ]
    found = estimate(run(Elsewhere(few[:1], few)), "h200", H200)
    assert (
        "of 16 ranks 0, 2, 4, 6, 8, 10, 12, 15 were run; the largest stands for all"
        in found.reasons
    )
    assert any(
        reason.startswith("ranks 1, 3, 5, 7, 9, 11, 13, 14 of 16 may need more")
        for reason in found.reasons
    )


def test_a_stage_alone_is_no_answer() -> None:
    traces = run(Elsewhere([STAGE]), replace(JOB, gpus=(4, 4)))
    with pytest.raises(
        NoEstimate, match="only rank 0 was run, and ranks 1, 2, 3 of 4 are not like it"
    ):
        estimate(traces, "h200", H200)


def test_a_rank_that_fails_is_no_answer_whatever_the_others_say() -> None:
    dead = replace(STAGE, rank=3, failure=trace_file.failure("ValueError: no"), marks=[])
    with pytest.raises(NoEstimate, match="0 optimizer steps with ValueError"):
        estimate(run(Elsewhere([STAGE], [STAGE, dead])), "h200", H200)


END = replace(FIRST, seen=trace.Seen(FIRST.steps, end=True))
LAST = replace(END, rank=3)
MORE = replace(LAST, allocations=[each._replace(size=2 * each.size) for each in LAST.allocations])
CUT = replace(LAST, doubts=[trace.Noted(Doubt.NOT_REACHED, "the script's own end")])


def compare(
    dry_runs: Elsewhere, took: float = 10.0, order: DryRunOrder = ORDER
) -> list[trace.Trace]:
    budget = SharedBudget(Budget(seconds=30))
    return list(drive(ranks.compared(order, [END], budget, Spent(took)), dry_runs))


@pytest.mark.parametrize(
    ("last", "confidence", "ran"),
    [
        (LAST, "high", [0]),
        (MORE, "medium", [0, 3]),
        (CUT, "medium", [0]),
        (replace(LAST, seen=None), "medium", [0]),
    ],
    ids=["as much", "more", "cut short", "no end"],
)
def test_the_last_rank_shows_whether_the_first_stands_for_all(
    last: trace.Trace, confidence: str, ran: list[int]
) -> None:
    dry_runs = Elsewhere([END, last])
    found = compare(dry_runs)
    assert (dry_runs.asked, [each.rank for each in found]) == (["0,3/4"], ran)
    assert estimate(found, "h200", H200).confidence == confidence


def test_ranks_are_compared_once_and_where_there_is_time() -> None:
    assert compare(Elsewhere(), took=10.1) == [END]
    alike = ranks.on_another_gpu(ORDER, compare(Elsewhere([END, LAST])))
    assert estimate(compare(Elsewhere(), order=alike), "h200", H200).confidence == "high"
    unlike = ranks.on_another_gpu(ORDER, [END, MORE])
    assert unlike.environ["XMEM_RUN_RANKS"] == "0,3/4"
    assert ranks.on_another_gpu(ORDER, [END]) == ORDER


VARIED = replace(END, doubts=[trace.Noted(Doubt.OTHER_BATCHES, "the largest of 500", share=0.3)])
DIFFERENT = [replace(VARIED, rank=rank) for rank in range(3)] + [
    replace(MORE, doubts=VARIED.doubts)
]


def test_where_batches_differ_all_ranks_are_run() -> None:
    dry_runs, budget = Elsewhere(DIFFERENT), SharedBudget(Budget(seconds=50))
    found = ranks.whole(list(drive(ranks.compared(ORDER, [VARIED], budget, Spent(10.0)), dry_runs)))
    assert dry_runs.asked == ["0,1,2,3/4"]
    estimated = estimate(found, "h200", H200)
    assert (estimated.largest.trace.rank, estimated.confidence) == (3, "high")


@pytest.mark.parametrize(
    ("world", "took", "ran", "seen"),
    [(4, 10.1, None, None), (9, 10.0, "0,8/9", VARIED.seen), (4, 10.0, "0,1,2,3/4", None)],
    ids=["no time", "many ranks", "cut short"],
)
def test_where_not_all_of_them_were_another_may_have_a_larger_batch(
    world: int, took: float, ran: str | None, seen: trace.Seen | None
) -> None:
    first = replace(VARIED, world_size=world)
    others = range(1, world) if world == 4 else [world - 1]
    dry_runs = Elsewhere([replace(first, rank=rank, seen=seen) for rank in (0, *others)])
    budget = SharedBudget(Budget(seconds=50))
    found = ranks.whole(list(drive(ranks.compared(ORDER, [first], budget, Spent(took)), dry_runs)))
    assert dry_runs.asked == ([] if ran is None else [ran])
    estimated = estimate(found, "h200", H200)
    assert any(
        reason.startswith("batches differ in size, and another rank's may be")
        for reason in estimated.reasons
    )
    assert estimated.largest.margin.share >= 0.3
