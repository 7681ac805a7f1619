"""What comes after an epoch is seen: evaluation and checkpoints that the first seconds of training
do not reach."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import warm
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.report.timeline import timeline
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Trace

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("without_sandbox", "ticking")]

GPU = load_catalogue()["a100-sxm4-80gb"]


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some 400 batches are trained on until a run is cut."""
    monkeypatch.setenv(warm.TICK, "0.02")


LONG, SHORT = "samples = 40_000", "samples = 10_000"
"""An epoch is longer than a run may go on with whole ones, or it is not."""
TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.zeros(samples, 256))
model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(data, batch_size=32, {loader})
for epoch in range(1_000_000):
    model.train()
    for index, (batch,) in enumerate(loader):
        model(batch.cuda()).sum().backward()
        if index % {accumulate} == {accumulate} - 1:
            optimizer.step()
            optimizer.zero_grad()
    {after}
    print("epoch", epoch, flush=True)
"""
EVALUATE = """
    model.eval()
    with torch.no_grad():
        for (batch,) in DataLoader(data, batch_size=8192):
            model(batch.cuda())
    torch.save(model.state_dict(), "model.pt")
"""


def dry_run(
    tmp_path: Path,
    python: Path,
    script: str,
    *,
    brief: bool = False,
    end_seen: bool = False,
    most_bytes: int | None = None,
) -> Trace:
    (tmp_path / "train.py").write_text(script)
    job = Job(f"#!/bin/sh\nexec {python} train.py\n".encode(), [], tmp_path, dict(os.environ))
    order = DryRunOrder.of(job, GPU, Budget(seconds=40))
    order = replace(order, brief=brief, end_seen=end_seen, most_bytes=most_bytes)
    (trace,) = [t for t in runner.run(order).traces if t.allocations]
    return trace


@pytest.mark.slow(
    covers=["xmem_slurm/probe/_xmem/course/*", "xmem_slurm/probe/_xmem/process/steps*"]
)
def test_a_brief_run_has_the_same_peaks_in_fewer_steps(tmp_path: Path, warm_python: Path) -> None:
    script = SHORT + TRAIN.format(loader="", accumulate=1, after=EVALUATE)
    whole, brief = (dry_run(tmp_path, warm_python, script, brief=brief) for brief in (False, True))
    assert whole.steps > 2 * brief.steps
    assert (brief.recorded, brief.is_whole) == (whole.recorded, True)


def test_a_run_that_needs_more_than_its_gpu_has_is_over_once_it_repeats_itself(
    tmp_path: Path, warm_python: Path
) -> None:
    script = SHORT + TRAIN.format(loader="", accumulate=1, after=EVALUATE)
    found = dry_run(tmp_path, warm_python, script, most_bytes=1 << 20)
    assert (found.state, found.steps < 10, found.came_to_its_end) == ("steady", True, False)


def test_where_that_hangs_on_values_a_run_goes_on(tmp_path: Path, warm_python: Path) -> None:
    """Real steps may need less, and then what comes later has to be known."""
    script = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
samples = torch.randn(64, 64, device="cuda")
for _ in range(40):
    model(samples[samples[:, 0] > 0]).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    found = dry_run(tmp_path, warm_python, script, most_bytes=1 << 10)
    assert (found.state, found.steps) == ("exit", 40)


def test_a_brief_run_that_needs_more_than_its_gpu_has_is_over_after_one_step(
    tmp_path: Path, warm_python: Path
) -> None:
    script = SHORT + TRAIN.format(loader="", accumulate=1, after=EVALUATE)
    found = dry_run(tmp_path, warm_python, script, brief=True, most_bytes=1 << 20)
    assert (found.state, found.steps) == ("steady", 1)


@pytest.mark.parametrize(
    ("loader", "accumulate"),
    [("", 1), ("num_workers=2, persistent_workers=True", 1), ("", 16)],
    ids=str,
)
def test_an_evaluation_after_a_long_epoch_is_in_the_peak(
    tmp_path: Path, warm_python: Path, loader: str, accumulate: int
) -> None:
    only, both = (
        LONG + TRAIN.format(loader=loader, accumulate=accumulate, after=each)
        for each in ("pass", EVALUATE)
    )
    training = dry_run(tmp_path, warm_python, only)
    assert training.training.drawn == 32
    whole = dry_run(tmp_path, warm_python, both)
    assert (training.state, whole.state) == ("steady", "steady")
    batch = 8192 * 4 * (256 + 1024)  # the input and the first layer's output, in fp32
    assert whole.recorded["requested_bytes"] - training.recorded["requested_bytes"] > batch
    assert [doubt for doubt in whole.doubts if doubt.code == "not-reached"]  # the script's own end
    assert whole.seen is not None
    assert (whole.seen.evaluation, whole.seen.checkpoints > 0) == ((5, 5), True)
    drawn = timeline(whole, 100)
    evaluations = [phase for phase in drawn.phases if phase.name == "evaluation"]
    assert [phase.highest for phase in evaluations if phase.highest == drawn.peak]
    assert drawn.checkpoints[0] == evaluations[0].end


@pytest.mark.parametrize(
    ("growing", "codes"), [(0, ["not-reached"]), (1, ["largest-drawn", "not-reached"])]
)
def test_a_later_epoch_that_is_cut_short_does_not_forget_what_was_drawn(
    tmp_path: Path, warm_python: Path, growing: int, codes: list[str]
) -> None:
    """Batches that a job's own function collates may differ, so those of the first epoch are drawn:
    all, but once.

    Where a later epoch's are larger, it counts alone.
    """
    own = "collate_fn=lambda samples: [torch.stack([each for (each,) in samples]).repeat(rows, 1)]"
    script = TRAIN.format(loader=own, accumulate=1, after="pass").replace(
        "range(1_000_000)", "until_told()"
    )
    grow = (
        "rows = 1\ndef until_told():\n  global rows\n  while True:\n    yield 0\n    rows += "
        f"{growing}\n"
    )
    trace = dry_run(tmp_path, warm_python, f"samples = 6_000\n{grow}{script}")
    assert trace.seen is not None
    assert trace.seen.batches == ((3, 188) if growing else (188, 188))
    assert (
        sorted({doubt.code for doubt in trace.doubts} & {"largest-drawn", "not-reached"}) == codes
    )


def test_a_script_that_takes_batches_by_next_gets_them_all(
    tmp_path: Path, warm_python: Path
) -> None:
    """It would die of an early end of the data; so that comes when nothing else does, after 313
    batches."""
    loop = "for index, (batch,) in enumerate(loader):"
    script = SHORT + TRAIN.format(loader="", accumulate=1, after=EVALUATE)
    by_next = (
        "batches = iter(loader)\n    for index in range(len(loader)):\n        (batch,) = "
        "next(batches)"
    )
    trace = dry_run(tmp_path, warm_python, script.replace(loop, by_next))
    assert (trace.state, trace.error) == ("steady", None)
    assert trace.recorded["requested_bytes"] > 8192 * 4 * (256 + 1024)


def test_an_evaluation_that_is_not_reached_is_a_doubt(tmp_path: Path, warm_python: Path) -> None:
    script = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10_000_000):
    model(torch.zeros(32, 256, device="cuda")).sum().backward()
    optimizer.step()
    if step % 10_000 == 9_999:
        evaluate(model)
"""
    found = estimate([dry_run(tmp_path, warm_python, script)], "a100", GPU)
    assert found.confidence == "medium"
    assert re.match(
        r"the script's own end \([\d,]+ steps seen, nothing new since step 2\) was not",
        found.reasons[0],
    )


def test_a_loader_has_no_more_workers_than_there_are_cpus(
    tmp_path: Path, warm_python: Path
) -> None:
    """Unless the script begins each itself: it may have one draw larger samples than another."""
    script = """
import multiprocessing, os, torch
from torch.utils.data import DataLoader, TensorDataset

for batch, in DataLoader(TensorDataset(torch.zeros(1000, 256)), batch_size=10, num_workers=16):
    batch.cuda()
    assert len(multiprocessing.active_children()) == len(os.sched_getaffinity(0))
    break
own = dict(batch_size=10, num_workers=5, worker_init_fn=lambda worker: None)
for batch, in DataLoader(TensorDataset(torch.zeros(1000, 256)), **own):
    assert len(multiprocessing.active_children()) == 5
    break
"""
    assert dry_run(tmp_path, warm_python, script).error is None


@pytest.mark.parametrize(
    ("late", "confidence"), [("", "high"), ("if epoch == 35: test()", "medium")]
)
def test_whole_epochs_stand_for_the_rest_unless_something_new_comes_in_it(
    tmp_path: Path, warm_python: Path, monkeypatch: pytest.MonkeyPatch, late: str, confidence: str
) -> None:
    """Of 40 epochs some 13 are run whole, and the others with three batches each."""
    monkeypatch.setenv(warm.TICK, "0.004")
    script = TRAIN.format(loader="", accumulate=1, after=EVALUATE + f"    {late}\n").replace(
        "1_000_000", "40"
    )
    test = (
        "def test():\n    with torch.no_grad(): model(torch.zeros(100_000, 256, device='cuda'))\n"
    )
    trace = dry_run(tmp_path, warm_python, f"samples = 3_200\n{test}{script}")
    assert trace.seen is not None
    assert (trace.seen.end, 1_000 < trace.steps < 4_000) == (True, True)
    assert estimate([trace], "a100", GPU).confidence == confidence
    code = "not-reached" if late else "epochs-alike"
    assert [
        doubt.code for doubt in trace.doubts if doubt.code in {"not-reached", "epochs-alike"}
    ] == [code]
    assert (trace.recorded["requested_bytes"] > 100_000 * 4 * (256 + 1024)) is bool(late)


def test_where_another_run_has_seen_the_end_one_epoch_like_the_last_stands_for_the_rest(
    tmp_path: Path, warm_python: Path
) -> None:
    """Of 40 epochs of 100 steps two are whole, and the others have three batches each."""
    script = TRAIN.format(loader="", accumulate=1, after=EVALUATE).replace("1_000_000", "40")
    trace = dry_run(tmp_path, warm_python, f"samples = 3_200\n{script}", end_seen=True)
    assert trace.came_to_its_end
    assert trace.steps < 500


COUNTED = """
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.zeros(6_400, 64))
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(data, batch_size=32, shuffle=True)
batches = iter(loader)
for step in range(1_200):
    try:
        (batch,) = next(batches)
    except StopIteration:
        batches = iter(loader)
        (batch,) = next(batches)
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1_100:
        kept = torch.empty(1 << 28, device="cuda")
"""


def test_a_script_that_counts_its_batches_by_itself_comes_to_its_end(
    tmp_path: Path, warm_python: Path
) -> None:
    trace = dry_run(tmp_path, warm_python, COUNTED)
    assert (trace.seen is not None and trace.seen.end, trace.steps) == (True, 1_200)
    assert trace.recorded["allocated_bytes"] > 1 << 30
