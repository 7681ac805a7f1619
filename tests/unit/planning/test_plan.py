"""A plan finds ways that fit, advises nothing that was not run dry, and rules out what would not
have fitted."""

import json
import math
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.traces import trace_of
from tests.unit.dryrun.test_kept_runs import as_read
from xmem_slurm import __version__
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import dispatch
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.dispatch import InTurn
from xmem_slurm.dryrun.exchange import DryRunResult, Orders, T, drive
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import Asked, DryRunOrder
from xmem_slurm.errors import NoEstimate, UnusedGpu, UsageError
from xmem_slurm.planning import deepspeed_json, forecast, on_site, speed
from xmem_slurm.planning.bounds import Persistent, bound, persistent_of
from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.planning.changes import (
    arguments_for,
    changed,
    files_for,
    variables_for,
    what_changes,
)
from xmem_slurm.planning.deepspeed_json import DeepSpeedJson
from xmem_slurm.planning.host_memory import NodeMemory
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.methods import METHODS
from xmem_slurm.planning.on_site import Planned, PlanWanted
from xmem_slurm.planning.search import Row, Search, Ways
from xmem_slurm.planning.space import Space
from xmem_slurm.report import plan as report
from xmem_slurm.rewriting import launch
from xmem_slurm.rewriting.launch import Processes
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns, Gpu, Site
from xmem_slurm.sizing.margins import Experience, RanOut
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import signals
from xmem_slurm.trace import Mark, ScriptFailure, Seen, Trace, Training
from xmem_slurm.units import human, listed
from xmem_slurm.work import CountedRow, StepCounts, Work

GPU = load_catalogue()["h200"]
SCRIPT = """#!/bin/bash
#SBATCH --gpus-per-node=4
#SBATCH --ntasks=1
torchrun --standalone --nproc-per-node=4 train.py --per_device_train_batch_size 4 --gradient_accumulation_steps 2
"""
PARAMETERS, SAMPLE = 800, 100
"""MiB: of the parameters (gradients as much, the optimizer's state twice that), and of the
activations of a sample."""


HOST = 1
"""GiB that each process holds on the host, and as much again of what is offloaded."""


def site_of(memory_mib: int = 512000, **per_node: int) -> Site:
    return Site.model_validate(
        {
            "schema_version": 1,
            "name": "test",
            "option": {
                name: {"gpu": "h200", "type": name, "cost": 1 + at}
                for at, name in enumerate(per_node)
            },
            "nodes": [
                {
                    "names": f"{name}[1-2]",
                    "cpus": 64,
                    "memory_mib": memory_mib,
                    "gpus": {name: number},
                    "partitions": ["p"],
                }
                for name, number in per_node.items()
            ],
            "partition": {"p": {"default": True}},
        }
    )


def gpu(mib: int) -> Gpu:
    return GPU.model_copy(update={"total_bytes": mib << 20, "context_bytes": 1})


def trained(environ: Mapping[str, str], words: Sequence[str]) -> Trace:
    """Return what a dry run of this command would show: a trainer whose need is known by
    arithmetic."""
    given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word)) | dict(
        environ
    )
    options = {name: value for name, value in pairwise(words) if name.startswith("--")}
    options |= dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    ranks = int(options["--nproc-per-node"]) * int(options.get("--nnodes", "1"))
    micro = int(options["--per_device_train_batch_size"])
    checkpointing = options.get("--gradient_checkpointing") == "True"
    method, parts = "ddp", (1, 1, 1)
    if given.get("ACCELERATE_USE_DEEPSPEED") == "true":
        stage = int(given["ACCELERATE_DEEPSPEED_ZERO_STAGE"])
        method, parts = f"zero{stage}", tuple(ranks if stage > at else 1 for at in (2, 1, 0))
    elif given.get("ACCELERATE_USE_FSDP") == "true":
        reshards = given["FSDP_RESHARD_AFTER_FORWARD"] == "true"
        shards = int(given.get("PARALLELISM_CONFIG_DP_SHARD_SIZE", ranks))
        method = "hsdp" if shards != ranks else "fsdp2" if reshards else "fsdp2-grad"
        parts = (shards,) * 3
    offloaded = any("OFFLOAD" in name for name in given)
    kept = [
        size / part
        for size, part in zip((PARAMETERS, PARAMETERS, 2 * PARAMETERS), parts, strict=True)
    ]
    activations = SAMPLE * micro * (0.2 if checkpointing else 1)
    trace = trace_of(
        f"+p:{kept[0]}:PARAM +a:{activations} -a +g:{kept[1]}:GRAD +o:{kept[2]}:OPT "
        f"+b:{activations} -b +t:1"
    )
    times = int(options["--gradient_accumulation_steps"])
    seen = Training(
        "transformers", method, micro, times, checkpointing, offloaded, has_deepspeed=True
    )
    return replace(
        trace,
        world_size=ranks,
        training=seen,
        marks=[Mark("step", 4), Mark("step", 5)],
        host_bytes=HOST * (2 if offloaded else 1) << 30,
        argv=["python", "-u", "train.py"],
    )


def by(run: Callable[[DryRunOrder], DryRunResult], at_once: int = 1) -> InTurn:
    """Have dry runs made in this process: what comes next is chosen before what came of all but one
    is known."""

    def in_turn(another: Callable[[], Orders[T] | None]) -> Iterator[T]:
        found = deque[T]()
        while True:
            while len(found) < at_once and (orders := another()) is not None:
                found.append(drive(orders, run))
            if not found:
                return
            yield found.popleft()

    return in_turn


def command_of(script: bytes) -> list[str]:
    return shlex.split(next(line for line in script.decode().splitlines() if "train.py" in line))


def planned(
    script: str,
    site: Site,
    gpus: Mapping[str, Gpu],
    most: int = 8,
    at_once: int = 1,
    start: Callable[[DryRunOrder], DryRunResult] | None = None,
    answer: Callable[[DryRunOrder, Trace], Trace] = lambda _, trace: trace,
    **wanted: object,
) -> tuple[Ways, list[str]]:
    """Return a plan by such dry runs, and the commands that were run."""
    job, ran = Submission(("job.sh",), {}, script.encode()), list[str]()

    def run(order: DryRunOrder) -> DryRunResult:
        words = command_of(order.job.script)
        if order.starts:
            return (start or started)(order)
        ran.append(" ".join(words))
        trace = answer(order, trained({}, words))
        return DryRunResult([trace], Spent(10), made_in_seconds=10.0)

    counts = [1 << power for power in range(most.bit_length())]
    space = Space(site, gpus, counts, list(METHODS.values()))
    order = DryRunOrder.of(from_submission(job), next(iter(gpus.values())), Budget())
    search = Search(
        order, job, space, **{"objective": "fewest", "top": 4, "seconds": 300.0, **wanted}
    )  # type: ignore[arg-type]
    return search.plan(by(run, at_once)), ran


def started(order: DryRunOrder) -> DryRunResult:
    """Return what a start of the last rank shows: it comes to its first collective."""
    assert order.run_ranks is not None
    (rank,), world = order.run_ranks
    return DryRunResult([replace(trace_of("+t:1"), rank=rank, world_size=world)])


def test_what_is_advised_was_run_and_fits_and_its_batch_is_as_large_as_before() -> None:
    plan, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)})
    assert len(plan.verified) == 4
    for row in plan.verified:
        assert row.job is not None
        assert row.job.script is not None
        assert row.estimate is not None
        assert row.estimate.fits(gpu(3000))
        assert " ".join(command_of(row.job.script)) in ran
        assert row.candidate.micro_batch * row.candidate.accumulation * row.candidate.gpus == 32
    assert [row.candidate.gpus for row in plan.verified] == sorted(
        row.candidate.gpus for row in plan.verified
    )


def test_a_plan_says_what_its_dry_runs_took_and_after_how_much_each_way_was_known() -> None:
    """Each takes 10 seconds, that of the job as it is written included."""
    gpus = {"small": gpu(3000)}
    plan, ran = planned(SCRIPT, site_of(small=8), gpus)
    found = report.objects(plan, gpus)
    assert found["dry_run_seconds"] == 10.0 * len(ran)
    ways = [row for row in found["candidates"] if row["status"] != "ruled-out"]
    after = sorted(row["known_after_seconds"] for row in ways)
    assert after == [10.0 * count for count in range(2, len(ran) + 1)]


@pytest.mark.parametrize("fails", [True, False])
def test_gpus_that_the_jobs_torch_has_no_kernels_for_are_left_out_and_named(fails: bool) -> None:
    """Also where they are the largest of the site, on which the job would be run as it is."""
    gpus = {"old": gpu(6000).model_copy(update={"capability": "7.0"}), "small": gpu(3000)}
    lacking = "the job's torch has no kernels for old (compute capability 7.0): it has sm_90"

    def answer(order: DryRunOrder, trace: Trace) -> Trace:
        trace = replace(trace, arch_list=["sm_90"])
        if fails and order.gpu.capability == "7.0":
            return replace(trace, marks=[], state="exit", failure=ScriptFailure("no kernel image"))
        return trace

    plan, _ = planned(SCRIPT, site_of(old=8, small=8), gpus, answer=answer)
    assert plan.verified
    assert {row.candidate.option for row in plan.rows} == {"small"}
    assert lacking in "\n".join(report.lines(plan, gpus))
    assert report.objects(plan, gpus)["without_kernels"] == [lacking]
    with pytest.raises(NoEstimate, match=re.escape(lacking)):
        planned(SCRIPT, site_of(old=8), {"old": gpus["old"]}, answer=answer)


def test_the_last_rank_is_started_once_for_each_number_of_gpus() -> None:
    starts = list[tuple[int, int]]()

    def start(order: DryRunOrder) -> DryRunResult:
        assert order.run_ranks is not None
        starts.append((*order.run_ranks.ranks, order.run_ranks.world))
        return started(order)

    plan, _ = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, start=start)
    counts = {row.candidate.gpus for row in plan.verified if row.candidate.gpus > 1}
    assert sorted(starts) == [(count - 1, count) for count in sorted(counts)]


@pytest.mark.parametrize(
    ("budget", "of_one"), [(30.0, 30.0), (120.0, 60.0), (180.0, 60.0), (600.0, 200.0)]
)
def test_with_a_larger_budget_one_dry_run_may_take_longer(
    budget: float, of_one: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ends at its limit says that a larger budget gives it more."""
    limits = list[float]()

    def search(self: Search, _: InTurn) -> Ways:
        limits.append(self.order.budget.seconds)
        raise NoEstimate("that is enough")

    monkeypatch.setattr(Search, "plan", search)
    job = Submission(("job.sh",), {}, SCRIPT.encode())
    premises = Premises(site_of(small=8), {"small": gpu(3000)}, Budget())
    with pytest.raises(NoEstimate, match="that is enough"):
        on_site.plan(job, PlanWanted(seconds=budget), premises, print)
    assert limits == [of_one]


WORDS = "RuntimeError: CUDA error: invalid device ordinal"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (NoEstimate(WORDS, on_any_gpu=True, fails=True), WORDS),
        (
            NoEstimate("the script ended with code 1", on_any_gpu=True),
            "the script ended with code 1",
        ),
        (NoEstimate("the dry run was stopped at its time limit"), ""),
        (NoEstimate("no time on this machine", on_any_gpu=True, busy=True), ""),
        (UnusedGpu("no GPU memory was used", on_any_gpu=True), ""),
    ],
)
def test_a_way_whose_last_rank_does_not_start_is_not_advised(answer: NoEstimate, why: str) -> None:
    """A start that shows nothing, as there was no time for it, is not why a way is ruled out."""
    plan, _ = planned(
        *(SCRIPT, site_of(small=8), {"small": gpu(3000)}), start=lambda _: DryRunResult(answer)
    )
    failed = {row.why for row in plan.rows if row.status == "failed"}
    assert bool(failed) is bool(why)
    assert all(
        re.fullmatch(rf"rank \d of \d does not start: {re.escape(why)}", row) for row in failed
    )
    assert bool([row for row in plan.verified if row.candidate.gpus > 1]) is not bool(why)


def test_what_the_last_rank_raises_before_its_first_collective_is_why() -> None:
    def start(order: DryRunOrder) -> DryRunResult:
        (trace,) = started(order).traces
        return DryRunResult(
            [replace(trace, state="exit", failure=ScriptFailure(WORDS, "RuntimeError"))]
        )

    plan, _ = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, start=start)
    assert {row.why for row in plan.rows if row.status == "failed"} >= {
        f"rank 7 of 8 does not start: {WORDS}"
    }


@pytest.mark.parametrize(("skipped", "of_many"), [(0, 4 + 128.0), (12, 4 + 8 + 0.2 * 120)])
def test_many_micro_batches_are_expected_to_take_little_longer_where_calls_are_skipped(
    skipped: int, of_many: float
) -> None:
    """A dry run of four steps took 4 s before it trained, and one for each batch."""
    steps = [Mark("step", number) for number in range(4)]
    seen = Seen(steps=4, skipped=skipped)
    training = Training("transformers", "ddp", 1, 1)
    trace = replace(trace_of("+a:1"), marks=steps, seen=seen, training=training, lived=(4.0, 8.0))
    found = forecast.RunSeconds()
    found.learn(trace, Spent(8.0, 8.0))
    way = Candidate("small", 4, 1, METHODS["ddp"], 1, 1, 32, False)
    assert found.of(way) == pytest.approx(of_many)
    assert found.of(replace(way, accumulation=1)) == pytest.approx(8.0)
    for name in ("zero2", "zero3-offload"):
        bucketed = replace(way, method=METHODS[name])
        assert found.of(bucketed) == pytest.approx(4 + 128.0), "all of its calls are made"


def test_numbers_of_gpus_with_another_batch_are_told() -> None:
    plan, _ = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)})
    space = Space(site_of(small=8), {"small": gpu(3000)}, [1, 2, 64, 128], list(METHODS.values()))
    left_out = space.of_another_batch(plan.base)
    assert (plan.base.batch, left_out) == (32, [64, 128])
    lines = report.lines(replace(plan, of_another_batch=left_out), {"small": gpu(3000)})
    assert (
        "not with 64 and 128 GPUs: a step would not have 32 samples (--any-global-batch)"
        in "\n".join(lines)
    )


def test_two_at_once_find_the_same_and_run_nothing_twice() -> None:
    for wanted in ({"top": 1}, {"top": 3}, {"top": 3, "objective": "cost"}):
        plan, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, **wanted)  # type: ignore[arg-type]
        other, ran_by_two = planned(
            SCRIPT, site_of(small=8), {"small": gpu(3000)}, at_once=2, **wanted
        )  # type: ignore[arg-type]
        assert other.verified[0].candidate == plan.verified[0].candidate
        assert len(set(ran_by_two)) == len(ran_by_two) <= len(ran) + 1
    nothing_fits, _ = planned(
        SCRIPT, site_of(small=8), {"small": gpu(300)}, at_once=2, top=100, seconds=2000.0
    )
    looked_at = [row.candidate for row in nothing_fits.rows]
    assert all(looked_at.count(candidate) == 1 for candidate in looked_at)


@pytest.mark.parametrize("gib", [1, 12], ids=["in a part of the memory", "in all of it"])
def test_a_second_plan_of_the_same_job_makes_no_dry_run(
    gib: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is kept of one that had too little of the memory says so, too; and of each it is known
    how much of its time it trained: 10 of 40 seconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made, model = tmp_path / "made", tmp_path / "model.py"
    made.mkdir()
    model.write_text("layers = 1\n")
    files = [as_read(model)]

    def here(order: DryRunOrder) -> DryRunResult:
        tempfile.mkstemp(dir=made)  # it is in a process of its own
        if order.budget.memory_bytes < gib << 30:
            why = NoEstimate("the dry run was stopped at its memory limit", files)
            return DryRunResult(why, Spent(10), stopped="memory")
        trace = trained({}, command_of(order.job.script))
        if order.starts:
            (trace,) = started(order).traces
        trace = replace(trace, files=files, seen=Seen(steps=5, end=True), lived=(100.0, 110.0))
        return DryRunResult([trace], Spent(10), made_in_seconds=40.0)

    monkeypatch.setattr(dispatch, "here", here)
    job, gpus = Submission(("job.sh",), {}, SCRIPT.encode()), {"small": gpu(3000)}
    space = Space(site_of(small=8), gpus, [1, 2, 4, 8], list(METHODS.values()))
    order = DryRunOrder.of(from_submission(job), gpus["small"], Budget())
    plans, counts = [], []
    for _ in range(2):
        search = Search(order, job, space, "fewest", 4, 300.0)
        plans.append(search.plan(dispatch.some_at_once(DryRuns())))
        counts.append(len(list(made.iterdir())))
        assert search.run_seconds.by_method["ddp"][0] == {1: 7.5, 12: 15.0}[gib]
    first, second = ([(row.candidate, row.status) for row in plan.rows] for plan in plans)
    assert (first, counts[0]) == (second, counts[1])
    assert plans[0].verified


def test_what_earlier_jobs_showed_counts_in_every_way() -> None:
    """But how much the job as it is written needed at the least says nothing of another way."""
    as_ever, _ = planned(SCRIPT, site_of(small=8), {"small": gpu(9000)})
    lacked, _ = planned(
        SCRIPT,
        site_of(small=8),
        {"small": gpu(9000)},
        experience=Experience(ran_out=RanOut("it ran out", 1.0, 0)),
    )
    needs = {
        str(row.candidate): row.estimate.required_bytes
        for row in as_ever.verified
        if row.estimate is not None
    }
    for row in lacked.verified:
        assert row.estimate is not None
        assert Doubt.RAN_OUT in [noted.doubt for noted in row.estimate.doubts]
        assert row.estimate.required_bytes > 1.5 * needs.get(str(row.candidate), 0)
    least, _ = planned(
        SCRIPT,
        site_of(small=8),
        {"small": gpu(9000)},
        experience=Experience(ran_out=RanOut("it ran out", None, 1 << 40)),
    )
    ways = [row.job.script for row in least.verified if row.job is not None]
    assert ways
    assert SCRIPT.encode() not in ways


def cut(order: DryRunOrder) -> Trace:
    """Return what a dry run shows that is over after the first step that allocates too much: then
    the optimizer made its state at the end of that, and there was no second one."""
    whole = trained({}, command_of(order.job.script))
    sizes = [allocation.size for allocation in whole.allocations]
    parameters, activations, gradients, state = sizes[:4]
    peaks = parameters + max(activations, gradients + state), sum(sizes[:5]) - activations
    first = replace(whole, recorded={"allocated_bytes": peaks[0]})
    if not order.is_exceeded([first]):
        return replace(whole, recorded={"allocated_bytes": max(peaks)})
    return replace(first, allocations=whole.allocations[:4], events=whole.events[:6], marks=[])


def test_a_way_of_which_a_step_does_not_fit_is_over_and_teaches_as_much_as_a_whole_run() -> None:
    """Its run ends where it allocated more than the largest GPU of its kind has."""
    gpus = {"small": gpu(1900), "large": gpu(2200)}
    job = Submission(("job.sh",), {}, SCRIPT.encode())
    space = Space(site_of(small=8, large=8), gpus, [1, 2, 4, 8], list(METHODS.values()))
    order = DryRunOrder.of(from_submission(job), gpu(1900), Budget())
    most = list[int | None]()

    def whole(order: DryRunOrder) -> DryRunResult:
        return started(order) if order.starts else DryRunResult([cut(order)], Spent(10))

    def run(order: DryRunOrder) -> DryRunResult:
        most.append(order.most_bytes)
        return whole(order)

    def to_its_end(order: DryRunOrder) -> DryRunResult:
        return whole(replace(order, most_bytes=None))

    search, of_whole = (Search(order, job, space, "fewest", 4, 300.0) for _ in range(2))
    found, expected = search.plan(by(run)), of_whole.plan(by(to_its_end))
    assert most[0] is None, "the job as it is written is run to its end"
    assert set(most[1:]) <= {(2200 << 20) - 1, None}
    assert [(str(row.candidate), row.status) for row in found.rows] == [
        (str(row.candidate), row.status) for row in expected.rows
    ]
    over = [row for row in found.rows if row.status == "too large" and row.bound_bytes]
    assert over
    for row in over:
        assert row.bound_bytes > 2200 << 20
        (of_row,) = [seen for seen in expected.rows if seen.candidate == row.candidate]
        assert of_row.estimate is not None
        assert row.bound_bytes < of_row.estimate.required_bytes
    (said,) = [words for words in report.lines(found, gpus) if words.startswith("does not fit")]
    assert f"(> {human(over[0].bound_bytes)})" in said
    shown = {row["lower_bound_bytes"]: row for row in report.objects(found, gpus)["candidates"]}
    assert {shown[row.bound_bytes]["required_bytes"] for row in over} == {None}


def test_a_way_that_came_to_no_optimizer_step_is_not_advised() -> None:
    """What a step allocates was not seen, however much of the GPU is left."""
    gpus, job = {"small": gpu(3000)}, Submission(("job.sh",), {}, SCRIPT.encode())
    space = Space(site_of(small=8), gpus, [1, 2, 4, 8], list(METHODS.values()))
    order = DryRunOrder.of(from_submission(job), gpus["small"], Budget())

    def run(order: DryRunOrder) -> DryRunResult:
        if order.starts:
            return started(order)
        trace = trained({}, command_of(order.job.script))
        marks = [] if trace.training.method == "zero3" else trace.marks
        return DryRunResult([replace(trace, marks=marks)], Spent(10))

    rows = Search(order, job, space, "fewest", 100, 2000.0).plan(by(run)).rows
    tried = [row for row in rows if row.estimate and row.candidate.method.name == "zero3"]
    assert {row.status for row in tried} >= {"failed"}
    assert "verified" not in {row.status for row in tried}
    assert {row.why for row in tried if row.status == "failed"} == {
        "its dry run came to no optimizer step"
    }
    assert any(row.status == "verified" for row in rows)


def test_what_is_offloaded_is_tried_where_nothing_else_fits() -> None:
    for mib, is_tried in ((3000, False), (300, True)):
        _, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(mib)}, top=100, seconds=2000.0)
        assert any("OFFLOAD" in command for command in ran) == is_tried


def test_what_is_ruled_out_would_not_have_fitted() -> None:
    small = gpu(1100)
    plan, _ = planned(SCRIPT, site_of(small=8), {"small": small}, top=100, seconds=2000.0)
    ruled_out = [row for row in plan.rows if row.status == "ruled out"]
    assert {row.candidate.method.name for row in ruled_out} >= {"ddp", "zero1", "fsdp2"}
    for row in ruled_out:
        job = changed(plan.base, row.candidate, site_of(small=8))
        assert job.script is not None
        needed = max(map(persistent_bytes, [trained({}, command_of(job.script))]))
        assert needed >= row.bound_bytes > small.total_bytes - small.context_bytes


def persistent_bytes(trace: Trace) -> int:
    return persistent_of(trace).total


def test_no_bound_is_more_than_a_way_keeps() -> None:
    base = Base(
        Submission(("job.sh",), {}, SCRIPT.encode()), trained({}, command_of(SCRIPT.encode()))
    )
    found = persistent_of(base.trace)
    assert found == Persistent(PARAMETERS << 20, PARAMETERS << 20, 2 * PARAMETERS << 20)
    space = Space(site_of(small=8), {"small": gpu(3000)}, [1, 2, 4, 8, 16], list(METHODS.values()))
    for candidate in space.all_of(base):
        job = changed(base, candidate, space.site)
        assert job.script is not None
        trace = trained({}, command_of(job.script))
        assert 0 <= bound(base, found, candidate) <= persistent_bytes(trace)
        assert candidate.is_seen(trace, base.training) == ""


def test_when_the_time_is_out_the_answer_is_the_best_so_far() -> None:
    """Two dry runs took 20 of 25 s, and a third one would not end in time."""
    plan, ran = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, seconds=25.0)
    assert len(ran) == plan.dry_runs == 2
    assert plan.not_tried
    text = "\n".join(report.lines(plan, {"small": gpu(3000)}))
    assert re.search(r"ways were not tried \(the most promising: \d x small .*\): these are", text)
    assert plan.tried_next[0] not in [row.candidate for row in plan.rows]
    more, _ = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)}, top=3)
    assert plan.tried_next[0] in [row.candidate for row in more.rows]


def interrupted_at(many: int, by_signal: int = signal.SIGINT) -> Ways:
    """Return the plan whose dry run of such a number is ended by a signal."""
    ran = 0

    def run(order: DryRunOrder) -> DryRunResult:
        nonlocal ran
        if order.starts:
            return started(order)
        ran += 1
        if ran == many:
            raise signals.Signalled(by_signal)
        return DryRunResult([trained({}, command_of(order.job.script))], Spent(10))

    job = Submission(("job.sh",), {}, SCRIPT.encode())
    space = Space(site_of(small=8), {"small": gpu(3000)}, [1, 2, 4, 8], list(METHODS.values()))
    order = DryRunOrder.of(from_submission(job), gpu(3000), Budget())
    return Search(order, job, space, "fewest", 4, 300.0, can_interrupt=True).plan(by(run))


def test_ctrl_c_ends_a_plan_with_the_best_so_far() -> None:
    whole, _ = planned(SCRIPT, site_of(small=8), {"small": gpu(3000)})
    plan = interrupted_at(whole.dry_runs)
    assert plan.was_interrupted
    assert not whole.was_interrupted
    assert 0 < len(plan.verified) < len(whole.verified)
    tried = [row.candidate for row in plan.rows]
    (last,) = [row.candidate for row in whole.rows if row.candidate not in tried]
    assert last in plan.tried_next
    assert plan.not_tried == whole.not_tried + 1


@pytest.mark.parametrize(
    ("many", "by_signal"),
    [(1, signal.SIGINT), (2, signal.SIGINT), (4, signal.SIGTERM)],
)
def test_before_something_fits_ctrl_c_ends_it_as_other_signals_do(
    many: int, by_signal: int
) -> None:
    with pytest.raises(signals.Signalled):
        interrupted_at(many, by_signal)


_PLAN = """
import os, signal
from tests.unit.planning import test_plan as t
from xmem_slurm.cli.main import main
from xmem_slurm.planning import on_site

def plan(job, wanted, *_):
    gpus = {"small": t.gpu(3000)}
    ran = []
    def trained(*args):
        ran.append(args)
        if len(ran) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return whole(*args)
    whole, t.trained = t.trained, trained
    site = t.site_of(small=8)
    can = wanted.can_interrupt
    return on_site.Planned(t.planned(t.SCRIPT, site, gpus, can_interrupt=can)[0], site, gpus)

on_site.plan = plan
main()
"""


def test_an_interrupted_plan_is_printed_and_the_process_ends_as_by_ctrl_c(tmp_path: Path) -> None:
    job = tmp_path / "job.sh"
    job.write_text(SCRIPT)
    words = ("plan", "--site", str(EXAMPLE_SITE), str(job))
    command = [sys.executable, "-c", _PLAN, *words]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGINT, done.stderr
    assert done.stdout.splitlines()[1].startswith("1.  2 x small")
    assert done.stderr == f"xmem-slurm: {report.INTERRUPTED}\n"


def test_ways_that_are_as_fast_are_a_tie_and_cheaper_ones_come_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step takes as long, but those of FSDP2: a twentieth longer, which is a tie, or a
    half."""
    monkeypatch.setattr(
        speed,
        "work_of",
        lambda trace: Work((), {"bf16": float(trace.training.method == "fsdp2")}, 0, 0, ()),
    )
    orders = {}
    for more in (0.05, 0.5):
        monkeypatch.setattr(
            speed, "step_seconds", lambda work, _, more=more: 1 + more * work.flops["bf16"]
        )
        plan, _ = planned(
            SCRIPT,
            site_of(small=8),
            {"small": gpu(9000)},
            4,
            objective="time",
            top=50,
            seconds=2000.0,
        )
        assert plan.not_ranked == ""
        orders[more] = [row.candidate for row in plan.verified]
        assert any("1.0x" in line for line in report.lines(plan, {"small": gpu(9000)}))
    assert [each.gpus for each in orders[0.05]] == sorted(each.gpus for each in orders[0.05])
    slow = [each.method.base == "fsdp2" for each in orders[0.5]]
    assert slow == sorted(slow)


def test_what_has_no_time_comes_last_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one of the GPUs no speed is known, and with FSDP2 the job runs CUDA graphs."""
    uncounted = trained

    def counted(environ: Mapping[str, str], words: Sequence[str]) -> Trace:
        trace = uncounted(environ, words)
        graphs = [CountedRow("graph", "", (0, 0, 0, 0), 1)]
        rows = graphs if trace.training.method.startswith("fsdp2") else []
        return replace(trace, counts=StepCounts(1000, 1, 1 << 30, rows))

    monkeypatch.setattr(sys.modules[__name__], "trained", counted)
    gpus = {"xy": gpu(3000).model_copy(update={"speed": None}), "known": gpu(3000)}
    plan, _ = planned(SCRIPT, site_of(xy=8, known=8), gpus, objective="cost", top=50, seconds=9e9)
    assert plan.not_ranked == ""
    numbers = defaultdict[str, list[int]](list)
    for number, row in enumerate(plan.verified, 1):
        why = "it runs CUDA graphs, whose kernels a dry run does not see"
        if not row.candidate.method.name.startswith("fsdp2"):
            why = ""
        numbers[why if row.candidate.option == "known" else "no speed of xy is known"].append(
            number
        )
    with_time = numbers.pop("")
    assert with_time == list(range(1, len(with_time) + 1))
    lines = report.lines(plan, gpus)
    assert len(numbers) == 2
    for why, lacking in numbers.items():
        assert f"{listed(lacking)} have no time: {why}" in lines
    for row in report.objects(plan, gpus)["candidates"][: len(plan.verified)]:
        assert (row["why_no_time"] is None) == (row["relative_time"] is not None)
        assert (row["why_no_time"] is None) == (row["relative_cost"] is not None)


def test_what_can_be_compared_is_tried_before_gpus_of_which_no_speed_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(speed, "work_of", lambda _: Work((), {}, 1.0, 1, ()))
    gpus = {"xy": gpu(3000).model_copy(update={"speed": None}), "known": gpu(3000)}
    plan, _ = planned(SCRIPT, site_of(xy=8, known=8), gpus, objective="cost", top=1)
    assert [row.candidate.option for row in plan.verified] == ["known"]


def test_multiples_are_explained_where_there_are_some() -> None:
    site, gpus = site_of(small=8), {"small": gpu(3000)}
    text = "\n".join(report.lines(planned(SCRIPT, site, gpus)[0], gpus))
    assert "not ranked by speed: what a step does was not counted" in text
    none_fits = "\n".join(report.lines(planned(SCRIPT, site, {"small": gpu(100)})[0], gpus))
    assert "multiples" not in text + none_fits


def test_options_of_one_kind_of_gpu_share_their_dry_runs() -> None:
    gpus = {"small": gpu(3000), "large": gpu(9000)}
    plan, ran = planned(SCRIPT, site_of(small=8, large=8), gpus, top=8)
    assert {row.candidate.option for row in plan.verified} == {"small", "large"}
    assert len(set(ran)) == len(ran)


def test_what_does_not_fit_the_host_is_not_advised_and_what_is_asked_for_is_compared() -> None:
    """A node has 5 GiB, and the job asks for 1.5 GiB."""
    script = SCRIPT.replace("#SBATCH --ntasks=1", "#SBATCH --ntasks=1\n#SBATCH --mem=1536M")
    gpus = {"small": gpu(3000)}
    plan, offloading = (
        planned(script, site_of(5120, small=8), {"small": gpu(mib)}, top=50, seconds=2000.0)[0]
        for mib in (3000, 600)
    )
    rows = [*plan.rows, *offloading.rows]
    fits = {
        row.candidate.gpus * (2 if row.candidate.method.offloaded else 1) <= 4
        for row in rows
        if row.status == "verified"
    }
    assert fits == {True}
    lacking = [row for row in rows if row.status == "host"]
    assert {(row.candidate.gpus, bool(row.candidate.method.offloaded)) for row in lacking} == {
        (8, False),
        (8, True),
    }
    text = "\n".join(report.lines(replace(plan, rows=[*plan.verified[:1], *lacking[:1]]), gpus))
    assert "host memory on each node, which has 5.00 GiB" in text
    first = next(row for row in plan.verified if row.candidate.gpus == 2)
    assert first.host is not None
    assert (
        first.host.lacking
        == "2 x 1.00 GiB of host memory on each node, of which the job asks for 1.50 GiB: ask for "
        "more"
    )
    objects = report.objects(replace(plan, rows=rows), gpus)["candidates"]
    assert {each["host_bytes_per_node"] for each in objects if each["status"] == "host"} == {
        8 << 30,
        16 << 30,
    }


def test_what_takes_no_more_of_the_host_than_the_job_as_it_is_written_is_advised_and_said() -> None:
    """A node has 3 GiB, of which the job's four processes take 4."""
    plan, _ = planned(SCRIPT, site_of(3072, small=8), {"small": gpu(3000)}, top=50, seconds=2000.0)
    lacking = {
        row.host.lacking
        for row in plan.verified
        if row.candidate.gpus == 4 and row.host is not None
    }
    needed = "4 x 1.00 GiB of host memory on each node, which has 3.00 GiB"
    assert lacking == {f"{needed}, and the job as it is written takes as much"}
    assert {row.candidate.gpus for row in plan.rows if row.status == "host"} == {8}
    known = NodeMemory(100, 1, 1, 0, 50, 98)
    assert [known._replace(per_process=each).fits for each in (50, 101, 102)] == [True, True, False]


def test_a_lever_that_did_nothing_is_said() -> None:
    """The script has its batch from elsewhere behind its arguments: what is written there changes
    nothing."""
    script = SCRIPT.replace("train.py", 'train.py "$@"').replace(
        "--per_device_train_batch_size 4", "$BATCH"
    )
    job = Submission(("job.sh",), {}, script.encode())

    def run(order: DryRunOrder) -> DryRunResult:
        words = [*command_of(order.job.script), "--per_device_train_batch_size", "4"]
        return DryRunResult([trained({}, words)], Spent(10))

    space = Space(site_of(small=8), {"small": gpu(9000)}, [2], [METHODS["ddp"]])
    order = DryRunOrder.of(from_submission(job), gpu(9000), Budget())
    plan = Search(order, job, space, "cost", 2, 300.0).plan(by(run))
    assert {row.why for row in plan.rows} == {
        "the change did not do what it should: micro batch, accumulation"
    } or {row.why.rpartition(": ")[2] for row in plan.rows} <= {"micro batch"}
    assert not plan.verified


READS = SCRIPT.replace("train.py", "train.py --seed $SLURM_ARRAY_TASK_ID")


@pytest.mark.parametrize(
    ("array", "script", "named", "ran"),
    [
        ("3-5", READS, "", {"3": 3, "5": 3}),
        ("3-5", READS, "4,5", {"4": 3, "5": 3}),
        ("3,5", READS, "", {"3": 2, "5": 2}),
        ("3-5", SCRIPT, "", {"3": 0, "5": 0}),
        ("3", READS, "", {"3": 0}),
        ("", READS, "", {"": 0}),
    ],
    ids=["its ends", "those that are named", "all", "all are alike", "one", "no array"],
)
def test_an_array_is_planned_for_the_task_that_needs_the_most(
    array: str, script: str, named: str, ran: Mapping[str, int]
) -> None:
    """The largest is the last here; `ran` has the tasks that are run, and of how many."""
    gpus, tasks = {"small": gpu(3000)}, list[str]()
    in_array = (
        script.replace("#SBATCH", f"#SBATCH --array={array}\n#SBATCH", 1) if array else script
    )
    job = Submission(("job.sh",), {}, in_array.encode())

    def run(order: DryRunOrder) -> DryRunResult:
        tasks.append(order.job.environ.get("SLURM_ARRAY_TASK_ID", ""))
        if order.starts:
            return started(order)
        trace = trained({}, command_of(order.job.script))
        more = [
            each._replace(size=each.size + (int(tasks[-1] or 0) << 22))
            for each in trace.allocations
        ]
        return DryRunResult([replace(trace, allocations=more)], Spent(10))

    space = Space(site_of(small=8), gpus, [1, 2], [METHODS["ddp"]])
    order = DryRunOrder.of(
        from_submission(job), gpus["small"], Budget(), Asked(array_tasks=named or None)
    )
    plan = Search(order, job, space, "cost", 1, 300.0).plan(by(run))
    written, largest = list(ran), list(ran)[-1]
    assert tasks[: len(written)] == written
    assert set(tasks[len(written) :]) <= {largest}
    words = report.of_array(plan)
    if ran[largest] <= len(ran):
        assert words == []
    else:
        assert words[0].startswith(f"this is for task {largest} of the array, which needs")
        assert f"of its 3 tasks only {' and '.join(written)} ran" in words[0]
        assert words[0] in report.lines(plan, gpus)


def test_a_plan_is_a_script_that_asks_for_the_gpus_and_says_why() -> None:
    gpus = {"small": gpu(3000)}
    plan, _ = planned(SCRIPT, site_of(small=8), gpus)
    row = next(row for row in plan.verified if row.candidate.gpus != 4)
    job = Planned(plan, site_of(small=8), gpus).submission(row)
    assert job.script is not None
    assert job.request.gpus_per_node == row.candidate.gpus
    assert job.request.gpu_types == ("small",)
    assert f"planned: {row.candidate}" in job.script.decode()
    assert command_of(job.script)[-8:] == command_of(row.job.script)[-8:]  # type: ignore[union-attr, arg-type]


@pytest.mark.parametrize(
    ("argv", "asked", "changes"),
    [
        ((), "small:4", ""),
        (("--gpus-per-node=4",), "4", "--gpus-per-node=4 -> --gpus-per-node=small:4: "),
    ],
)
def test_a_plan_says_why_also_where_its_script_asks_for_the_same_gpus(
    argv: tuple[str, ...], asked: str, changes: str
) -> None:
    gpus = {"small": gpu(3000)}
    script = SCRIPT.replace("--gpus-per-node=4", f"--gpus-per-node={asked}")
    plan, _ = planned(script, site_of(small=8), gpus, top=20, seconds=2000.0)
    row = next(row for row in plan.verified if row.candidate.gpus == 4)
    assert row.job is not None
    base = replace(plan.base, job=plan.base.job.but(argv=(*argv, "job.sh")))
    row = replace(row, job=row.job.but(argv=base.job.argv))
    job = Planned(replace(plan, base=base), site_of(small=8), gpus).submission(row)
    assert job.script is not None
    assert f"# xmem-slurm {__version__}: {changes}planned: {row.candidate}" in job.script.decode()


def test_what_is_written_is_submitted_as_the_job_would_be() -> None:
    gpus = {"small": gpu(3000)}
    plan, _ = planned(SCRIPT, site_of(small=8), gpus)
    row = next(row for row in plan.verified if row.candidate.gpus != 4)
    assert row.job is not None
    path = Path("my plan.sh")
    assert Planned(plan, site_of(small=8), gpus).command(row, path) == "sbatch 'my plan.sh'"
    told = {"SBATCH_COMMENT": "a b", "HOME": "/home/me"}
    before = {**told, "SBATCH_COMMENT": "c", "OLD": "1"}
    as_written = plan.base.job.but(argv=("job.sh", "--lr", "a b"), environ=before)
    base = replace(plan.base, job=as_written)
    row = replace(row, job=row.job.but(argv=("--mem=1G", "job.sh", "--lr", "a b"), environ=told))
    command = Planned(replace(plan, base=base), site_of(small=8), gpus).command(row, path)
    words = "--mem=1G 'my plan.sh' --lr 'a b'"
    assert command == f"env -u OLD SBATCH_COMMENT='a b' sbatch {words}"


def test_what_is_written_still_says_what_its_user_wants_of_xsbatch_and_the_filter() -> None:
    gpus, script = {"small": gpu(3000)}, SCRIPT.replace("#SBATCH", "#XMEM keep-type\n#SBATCH", 1)
    found = Planned(planned(script, site_of(small=8), gpus)[0], site_of(small=8), gpus)
    (content,) = found.written(found.best, Path("plan.sh")).values()
    assert content.splitlines()[1] == b"#XMEM keep-type"


@pytest.mark.parametrize(
    ("option", "nodes", "needed"),
    [
        ("l4", 1, r"  \d+\.\d\d [MG]iB of 2\.93 GiB  "),
        ("rtx_6000_ada", 1, r"  \d+\.\d\d [MG]iB  "),
        ("rtx_6000_ada", 2, r"\d \d+\.\d\d [MG]iB "),
    ],
)
def test_the_table_has_80_columns(option: str, nodes: int, needed: str) -> None:
    """What the GPU has is left out first, then room between the columns."""
    gpus = {option: gpu(3000)}
    plan, _ = planned(SCRIPT, site_of(**{option: 8}), gpus)
    method = METHODS["ddp" if option == "l4" else "zero3-offload"]
    row = plan.verified[0]
    way = replace(row.candidate, nodes=nodes, method=method, micro_batch=16, accumulation=16)
    lines = report.lines(replace(plan, rows=[replace(row, candidate=way)]), gpus)
    assert max(map(len, lines[:2])) <= 80
    assert re.search(needed, lines[1]), lines[1]


def test_what_is_advised_comes_first_then_a_line_for_each_reason_with_a_count() -> None:
    """All of what is printed has 80 columns, its sentences in several lines."""
    gpus = {"small": gpu(1800)}
    plan, _ = planned(SCRIPT, site_of(small=8), gpus, top=3)
    lines = report.lines(plan, gpus)
    assert [line.split()[0] for line in lines[1:4]] == ["1.", "2.", "3."]
    reasons = [
        line.partition(":") for line in lines if line.startswith(tuple(report.ANSWERS.values()))
    ]
    assert len(reasons) > 1
    assert len({reason for reason, _, _ in reasons}) == len(reasons)
    for reason, _, named in reasons:
        count = sum(report.ANSWERS.get(row.status) == reason for row in plan.rows)
        shown, _, more = named.partition(f"; {count - 3} more")
        assert (shown.count("; "), more) == (min(count, 3) - 1, ""), named
    printed = report.text(plan, gpus).splitlines()
    assert max(map(len, lines)) > 80
    assert max(map(len, printed)) <= 80
    assert " ".join(" ".join(printed).split()) == " ".join(" ".join(lines).split())


def test_numbers_are_said_as_people_say_them() -> None:
    gpus = {"small": gpu(3000)}
    plan, _ = planned(SCRIPT, site_of(small=8), gpus)
    text = "\n".join(report.lines(plan, gpus))
    assert "processes on one node" in text
    assert "1 nodes" not in text
    one = replace(plan, rows=[], dry_runs=1, not_tried=1, tried_next=())
    assert "1 dry run; margins included" in report.lines(one, gpus)
    assert "1 other way was not tried" in report.lines(one, gpus)


def test_over_nodes_there_is_a_task_on_each() -> None:
    base = Base(
        Submission(("job.sh",), {}, SCRIPT.encode()), trained({}, command_of(SCRIPT.encode()))
    )
    space = Space(site_of(small=8), {"small": gpu(9000)}, [16], [METHODS["hsdp"]])
    job = changed(base, next(space.all_of(base)), space.site)
    assert (job.request.nodes, job.request.ntasks, job.request.gpus_per_node) == (2, 2, 8)


PYTHON = "python -u train.py --x | tee log"


@pytest.mark.parametrize(
    ("command", "after", "expected"),
    [
        (
            "torchrun --standalone --nproc_per_node=$N train.py --batch 4",
            (1, 2),
            "A='b c' torchrun --standalone --nproc_per_node=2 train.py --more 8 --batch 2",
        ),
        (
            "srun torchrun --nnodes 2 -m pkg.train --batch=4",
            (1, 4),
            "A='b c' srun torchrun --nproc-per-node=4 --nnodes 2 -m pkg.train --more 8 --batch=2",
        ),
        (
            PYTHON,
            (1, 2),
            (
                "A='b c' torchrun --standalone --nproc-per-node=2 train.py --batch 2 --more 8 --x | "
                "tee log"
            ),
        ),
        (
            "/v/bin/python3 train.py",
            (1, 2),
            "/v/bin/python3 -m torch.distributed.run --standalone --nproc-per-node=2",
        ),
        (
            "srun -n4 --gpus-per-task=1 python train.py",
            (1, 2),
            "srun -n2 --gpus-per-task=1 python train.py",
        ),
        ("srun --ntasks 4 -N 1 python train.py", (2, 8), "srun --ntasks 16 -N 2 python train.py"),
        (
            "accelerate launch --num_processes 4 train.py",
            (1, 2),
            "accelerate launch --num_processes 2 train.py",
        ),
        ("deepspeed train.py", (1, 2), "deepspeed --num_gpus=2 train.py"),
        ("deepspeed --include localhost:0,1 train.py", (1, 4), "deepspeed --num_gpus=4 train.py"),
        ("deepspeed -q -e='localhost:$N' train.py", (1, 4), "deepspeed -q --num_gpus=4 train.py"),
        (
            "accelerate launch --gpu_ids 0,1 --num_processes=2 train.py",
            (1, 4),
            "accelerate launch --gpu_ids=all --num_processes=4 train.py",
        ),
        (
            "exec python -m torch.distributed.run 'train.py'",
            (1, 2),
            "distributed.run --nproc-per-node=2 'train.py' --",
        ),
        (
            "torchrun train.py",
            (2, 8),
            "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 ${SLURM_CPUS_PER_TASK:+",
        ),
        ("torchrun train.py", (2, 8), "--cpus-per-task=$SLURM_CPUS_PER_TASK} torchrun --nnodes=2"),
        (
            "srun python3 -m torch.distributed.run train.py",
            (2, 8),
            "} python3 -m torch.distributed.run --nnodes=2 --nproc-per-node=8",
        ),
        (
            "python -u -X dev -m torch.distributed.run --nproc_per_node 4 train.py",
            (1, 2),
            "python -u -X dev -m torch.distributed.run --nproc_per_node 2 train.py --",
        ),
        (
            "python -u -m accelerate.commands.launch train.py",
            (1, 2),
            "python -u -m accelerate.commands.launch --num_processes=2 train.py",
        ),
        (
            '"$V/bin/python" -u -m torch.distributed.run --x train.py',
            (2, 8),
            '} "$V/bin/python" -u -m torch.distributed.run --nnodes=2',
        ),
        (
            "$V/bin/python train.py",
            (1, 2),
            "$V/bin/python -m torch.distributed.run --standalone --nproc-per-node=2",
        ),
        (
            "python3 -u -m torch.distributed.run train.py",
            (2, 8),
            "} python3 -u -m torch.distributed.run --nnodes=2 --nproc-per-node=8",
        ),
    ],
)
def test_the_command_that_launches_it_is_changed_and_nothing_else(
    command: str, after: tuple[int, int], expected: str
) -> None:
    script = f"#!/bin/bash\nif true; then\n  {command}\nfi\n# train.py\n".encode()
    found = launch.find(script, "pkg.train" if "pkg" in command else "train.py")
    text = launch.changed(
        script,
        found,
        (Processes(1, 1), Processes(*after)),
        variables={"A": "b c"},
        arguments={"--batch": "2", "--more": "8"},
    ).decode()
    assert expected in text
    assert text.startswith("#!/bin/bash\nif true; then\n  A='b c' ")
    assert text.endswith("\nfi\n# train.py\n")


@pytest.mark.parametrize("include", ["worker-1:0,1", "localhost:0@worker-1:0", "$WHERE"])
def test_where_deepspeed_is_told_of_hosts_it_stays_so(include: str) -> None:
    command = f"deepspeed --include {include} train.py"
    base = base_of(Training("deepspeed", "zero2", 4, 2), command)
    told, _, why = base.not_scaled.partition(" names hosts: ")
    assert told == f"deepspeed --include {include}"
    assert why == "how many processes are started on each cannot be changed"


def test_gpus_that_are_named_are_no_longer_where_the_job_asks_for_fewer() -> None:
    """Two of the four that it asks for: planned for two, it asks for two, and there is no third."""
    command = "deepspeed --include localhost:2,3 train.py"
    base = base_of(Training("deepspeed", "zero2", 4, 2), command)
    base = replace(base, trace=replace(base.trace, world_size=2))
    way = Candidate("small", 2, 1, METHODS["zero2"], 2, 4, 2, checkpointing=False)
    job = changed(base, way, site_of(small=8))
    assert job.request.gpus_per_node == 2
    assert b"\ndeepspeed --num_gpus=2 train.py" in (job.script or b"")


@pytest.mark.parametrize("given", ["-b 8", "-b8", "-b=8", "-b '8'", "-b $B"])
def test_a_short_option_is_changed_where_it_stands(given: str) -> None:
    script = f"#!/bin/bash\npython train.py --lr-b 8 -bs 8 {given} -c 8\n".encode()
    same = Processes(1, 1), Processes(1, 1)
    text = launch.changed(
        script, launch.find(script, "train.py"), same, variables={}, arguments={"-b": "2"}
    )
    assert re.search(rb"--lr-b 8 -bs 8 -b[ =]?'?2'? -c 8\n", text), text


@pytest.mark.parametrize("script", ["bash run.sh", "python train.py; python train.py", "train.py"])
def test_what_is_not_found_is_said(script: str) -> None:
    with pytest.raises(UsageError, match="how it is launched cannot be changed"):
        launch.find(f"#!/bin/sh\n{script}\n".encode(), "train.py")


def test_a_loop_of_the_scripts_own_gets_what_can_be_done_to_it() -> None:
    script = SCRIPT.replace("--per_device_train_batch_size 4", "--batch 4").replace(
        "--gradient", "--own"
    )
    job = Submission(("job.sh",), {}, script.encode())
    argv = ["python", "train.py", "--batch", "4"]
    seen = replace(
        trained({}, command_of(SCRIPT.encode())), training=Training("", "ddp"), argv=argv
    )
    space = Space(site_of(small=8), {"small": gpu(9000)}, [1, 2, 4, 8], list(METHODS.values()))
    found = {(each.gpus, each.method.name) for each in space.all_of(Base(job, seen))}
    assert found == {(4, "ddp")}
    base = Base(job, seen, BatchLever.parse("batch_size=--batch"))
    varied = list(space.all_of(base))
    assert {(each.gpus, each.method.name, each.micro_batch) for each in varied} == {
        *((1, "single", 16), (2, "ddp", 8), (4, "ddp", 4), (8, "ddp", 2))
    }
    assert arguments_for(base, varied[0]) == {"--batch": "16"}
    assert variables_for(base, varied[0]) == {}


def base_of(training: Training, command: str, argv: Sequence[str] = ("python", "train.py")) -> Base:
    script = f"#!/bin/bash\n{command}\n"
    trace = replace(trained({}, command_of(SCRIPT.encode())), training=training, argv=argv)
    return Base(Submission(("--gpus-per-node=4", "job.sh"), {}, script.encode()), trace)


def test_an_srun_of_one_process_becomes_torchrun_unless_the_trainer_asks_slurm() -> None:
    command, argv = "srun --cpu-bind=cores python train.py --output_dir out", ("python", "train.py")
    for by, wanted in (("transformers", "python"), ("lightning", "srun")):
        base = base_of(Training(by, "single", 4, 2), command, argv)
        alone = Base(base.job, replace(base.trace, world_size=1))
        assert (alone.started_by(base.job.script or b"").kind, alone.tasks(4, 1)) == (
            wanted,
            4 if wanted == "srun" else 1,
        )
    of_several = base_of(Training("transformers", "ddp", 4, 2), command, argv)
    assert of_several.started_by(of_several.job.script or b"").kind == "srun"


def test_bf16_is_offered_where_it_is_allowed_and_takes_the_place_of_fp16() -> None:
    written = Training("transformers", "ddp", 4, 2, precision="fp16")
    base = base_of(written, "torchrun --nproc-per-node=4 train.py --fp16 --output_dir out")
    space = Space(site_of(small=8), {"small": gpu(9000)}, [4], [METHODS["ddp"]])
    assert not any(each.bf16 for each in space.all_of(base))
    halves = [each for each in replace(space, bf16=True).all_of(base) if each.bf16]
    assert halves
    script = changed(base, halves[0], space.site).script
    assert script is not None
    assert (
        "train.py --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --bf16 True "
        "--fp16 False" in (script.decode())
    )
    assert any("bf16 in place of fp16" in each for each in what_changes(base, halves[0]))
    assert (
        halves[0].is_seen(replace(base.trace, training=written), written)
        == "micro batch, accumulation, precision"
    )
    assert not any(
        each.bf16
        for each in replace(space, bf16=True).all_of(base_of(Training("", "ddp"), "train.py"))
    )


@pytest.mark.parametrize(
    ("method", "precision", "expected"),
    [
        ("zero2", "no", ["DeepSpeed's format: the optimizer's state is sharded"]),
        ("zero3", "no", ["sharded, and made whole by zero_to_fp32.py"]),
        (
            "zero2",
            "bf16",
            ["Speed", "in bf16, with master weights and the optimizer's state in fp32", "reduced"],
        ),
        ("fsdp2", "no", ["sharded, and made whole by `accelerate merge-weights`"]),
        (
            "fsdp2-offload",
            "fp16",
            ["sharded", "CPU", "fp16; their shards and the optimizer's state are in fp32", "fp16"],
        ),
        ("ddp", "bf16", []),
    ],
)
def test_what_is_stored_and_computed_in_another_precision_is_said(
    method: str, precision: str, expected: Sequence[str]
) -> None:
    base = base_of(Training("transformers", "ddp", 4, 2, precision=precision), "torchrun train.py")
    way = Candidate("small", 4, 1, METHODS[method], 4, 4, 2, checkpointing=False)
    found = what_changes(base, way)
    assert len(found) == len(expected)
    assert all(part in each for part, each in zip(expected, found, strict=True)), found


def test_what_is_so_by_the_jobs_own_method_does_not_change() -> None:
    own = Training("transformers", "zero2", 4, 2, precision="bf16", has_deepspeed=True)
    base = base_of(own, "torchrun train.py")
    way = Candidate("small", 4, 1, METHODS["zero3"], 4, 4, 2, checkpointing=False)
    assert what_changes(base, way) == ["checkpoints are sharded, and made whole by zero_to_fp32.py"]
    assert what_changes(base, replace(way, method=METHODS["zero2"])) == []


def test_torchtitan_has_degrees_whose_product_is_the_number_of_gpus() -> None:
    written = Training("torchtitan", "fsdp2", 8, 1, shards=4, can_checkpoint=True)
    command = "torchrun --nproc-per-node=4 -m torchtitan.train --job.config_file a.toml"
    base = base_of(written, command, ["python", "-m", "torchtitan.train"])
    space = Space(site_of(small=8), {"small": gpu(9000)}, [4, 16], list(METHODS.values()))
    ways = list(space.all_of(base))
    assert {(each.method.name, each.tensor) for each in ways if each.gpus == 4} == {
        *(
            ("ddp", 1),
            ("fsdp2", 1),
            ("fsdp2-grad", 1),
            ("fsdp2", 2),
            ("fsdp2-grad", 2),
            ("single", 4),
        )
    }
    names = (
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "tensor_parallel_degree",
    )
    for each in ways:
        arguments = arguments_for(base, each)
        assert each.batch == 32
        degrees = [
            int(arguments.get(f"--parallelism.{name}", own))
            for name, own in zip(names, (1, 4, 1), strict=True)
        ]
        assert math.prod(degrees) == each.gpus
        assert (degrees[1] > 1, degrees[2]) == (each.method.shards != frozenset(), each.tensor)
        script = changed(base, each, space.site).script
        assert script is not None
        words = "".join(f" {name} {value}" for name, value in arguments.items())
        assert f"--job.config_file a.toml{words}\n" in script.decode()
    assert {each.shards for each in ways if each.method.is_hybrid} == {8, 4, 2}
    pipelined = base_of(
        Training("torchtitan", "others"), command, ["python", "-m", "torchtitan.train"]
    )
    assert list(space.all_of(pipelined)) == []
    assert (
        what_changes(
            base, next(each for each in ways if each.method.name == "ddp" and each.gpus == 4)
        )
        == []
    )


def test_lightning_is_told_by_options_where_it_has_them() -> None:
    written = Training("lightning", "ddp", 8, 2, precision="no", has_options=True)
    command = "srun -n4 python main.py fit --config a.yaml --trainer.devices=4 > log"
    base = base_of(written, command, ["python", "main.py"])
    space = Space(site_of(small=8), {"small": gpu(9000)}, [1, 4, 8], list(METHODS.values()))
    assert {each.method.name for each in space.all_of(base)} == {
        "single",
        "ddp",
        "fsdp1",
        "fsdp1-offload",
    }
    way = next(each for each in space.all_of(base) if (each.gpus, each.method.name) == (8, "fsdp1"))
    script = changed(base, way, space.site).script
    assert script is not None
    wanted = "--trainer.strategy fsdp --trainer.num_nodes 1 --trainer.accumulate_grad_batches 1"
    assert (
        f"srun -n8 python main.py fit --config a.yaml --trainer.devices=8 {wanted} > log"
        in script.decode()
    )
    known = written._replace(has_deepspeed=True)
    assert "zero2" in {
        each.method.name for each in space.all_of(base_of(known, command, ["python", "main.py"]))
    }
    own = base_of(written._replace(has_options=False), command, ["python", "main.py"])
    assert {each.method.name for each in space.all_of(own)} == {"ddp"}


OWN_JSON = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "zero_optimization": {"stage": 1},
}
AUTO_JSON = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "zero_optimization": {"stage": 3},
}


@pytest.mark.parametrize("by", ["deepspeed", "transformers"])
def test_deepspeeds_file_is_copied_and_the_copy_says_what_the_way_is(
    tmp_path: Path, by: str
) -> None:
    """The user's own stays as it is; where its batches are for transformers to fill in, they stay
    so."""
    mine = OWN_JSON if by == "deepspeed" else AUTO_JSON
    option = "--deepspeed_config" if by == "deepspeed" else "--deepspeed"
    (tmp_path / "ds.json").write_text(json.dumps(mine))
    script = f"#!/bin/bash\ntorchrun --nproc-per-node=4 train.py --deepspeed {option}=ds.json\n"
    job = Submission((f"--chdir={tmp_path}", "job.sh"), {}, script.encode())
    seen = Training(
        by, f"zero{mine['zero_optimization']['stage']}", 8, 2, own_batches=by == "deepspeed"
    )  # type: ignore[index]
    trace = replace(
        trained({}, command_of(SCRIPT.encode())),
        training=seen,
        argv=["python", "train.py", "--deepspeed", f"{option}=ds.json"],
    )
    base = Base(job, trace, None, deepspeed_json.find(trace, tmp_path, tmp_path / "copies"))
    space = Space(site_of(small=8), {"small": gpu(9000)}, [1, 4, 8], list(METHODS.values()))
    ways = list(space.all_of(base))
    assert {each.method.name for each in ways if each.gpus == 4} == {
        *("zero1", "zero2", "zero3", "zero2-offload", "zero3-offload")
    }
    for each in ways:
        assert each.micro_batch * each.accumulation * each.gpus == 64
        (path, content), *more = files_for(base, each).items()
        assert not more
        copy = json.loads(content)
        assert copy["zero_optimization"].pop("stage") == int(each.method.base[-1])
        assert bool(copy["zero_optimization"]) == bool(each.method.offloaded)
        batches = [copy["train_micro_batch_size_per_gpu"], copy.get("gradient_accumulation_steps")]
        assert batches == (
            [each.micro_batch, each.accumulation]
            if by == "deepspeed"
            else ["auto", each.accumulation]
        )
        changed_script = changed(base, each, space.site).script
        assert changed_script is not None
        assert f"{option}={path}" in changed_script.decode()
        assert variables_for(base, each) == {}
    assert json.loads((tmp_path / "ds.json").read_text()) == mine


def test_a_plan_that_needs_a_file_has_it_beside_its_script(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(OWN_JSON))
    script = SCRIPT.replace("train.py", "train.py --deepspeed ds.json").replace(
        "4 train", "2 train"
    )
    gpus, folder = {"small": gpu(9000)}, tmp_path / "copies"
    plan, _ = planned(SCRIPT, site_of(small=8), gpus, 1)
    base = replace(
        plan.base,
        job=plan.base.job.but(script=script.encode()),
        deepspeed=DeepSpeedJson("--deepspeed", OWN_JSON, folder),
    )
    way = Candidate("small", 2, 1, METHODS["zero2"], 2, 4, 4, checkpointing=False)
    row = Row(way, "verified", changed(base, way, site_of(small=8)))
    files = Planned(replace(plan, base=base), site_of(small=8), gpus).written(
        row, tmp_path / "plan.sh"
    )
    copy = tmp_path / "plan.deepspeed.json"
    assert json.loads(files[copy])["zero_optimization"] == {"stage": 2}
    assert f"--deepspeed {copy} " in files[tmp_path / "plan.sh"].decode()
    assert set(files) == {copy, tmp_path / "plan.sh"}


def test_where_only_fragments_are_in_the_way_expandable_segments_are_tried() -> None:
    """Of every two blocks in a segment of 20 MiB one is freed, and 12 MiB find no room there."""
    holes = (
        " ".join(f"+a{n}:9 +b{n}:9" for n in range(20))
        + " "
        + " ".join(f"-a{n}" for n in range(20))
    )
    job = Submission(("job.sh",), {}, SCRIPT.encode())
    needed = 580

    def run(order: DryRunOrder) -> DryRunResult:
        words = command_of(order.job.script)
        settings = next(
            (
                word.partition("=")[2]
                for word in words
                if word.startswith("PYTORCH_CUDA_ALLOC_CONF=")
            ),
            "",
        )
        trace = trace_of(f"{holes} {' '.join(f'+c{n}:12' for n in range(15))}", settings)
        return DryRunResult([replace(trained({}, words), **parts_of(trace))], Spent(10))

    space = Space(site_of(small=8), {"small": gpu(needed)}, [4], [METHODS["ddp"]])
    order = DryRunOrder.of(from_submission(job), gpu(needed), Budget())
    found = Search(order, job, space, "cost", 1, 300.0).plan(by(run))
    assert found.verified[0].candidate.expandable
    assert variables_for(found.base, found.verified[0].candidate) == {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"
    }


def parts_of(trace: Trace) -> dict[str, object]:
    """Return what a trace is made of, to be put into another one."""
    names = ("allocations", "events", "allocator_settings")
    return {**{name: getattr(trace, name) for name in names}, "marks": []}


def test_without_an_answer_of_the_job_as_it_is_there_is_no_plan() -> None:
    job = Submission(("job.sh",), {}, SCRIPT.encode())
    space = Space(site_of(small=8), {"small": gpu(9000)}, [2], [METHODS["ddp"]])
    order = DryRunOrder.of(from_submission(job), gpu(9000), Budget())
    with pytest.raises(NoEstimate, match="no such file"):
        Search(order, job, space, "cost", 2, 300.0).plan(
            by(lambda _: DryRunResult(NoEstimate("no such file")))
        )
    assert Path("job.sh").name == "job.sh"


def test_a_candidate_says_what_it_is() -> None:
    candidate = Candidate("a100", 8, 1, METHODS["fsdp2"], 8, 2, 4, checkpointing=True)
    assert str(candidate) == "8 x a100, fsdp2, 2 x 4, checkpointing"
