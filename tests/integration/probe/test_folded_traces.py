"""A long run leaves a short trace, and nothing that counts is missing from it."""

import pytest

from tests.integration.probe.test_probe import Run, run, stand_ins
from xmem_slurm.allocator.replay import replay
from xmem_slurm.trace import Trace

__all__ = ["run", "stand_ins"]
pytestmark = pytest.mark.torch

LIMIT = 600
"""Seconds that no test comes near; that there is a limit lets the probe fold."""
TRAIN = """
import torch
def network(width=512):
    return torch.nn.Sequential(torch.nn.Linear(256, width), torch.nn.ReLU(), torch.nn.Linear(width, 256)).cuda()
model, kept = network(), []
optimizer = torch.optim.AdamW(model.parameters())
def step(rows=32):
    model(torch.zeros(rows, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def in_full(run: Run, script: str) -> Trace:
    """The trace of a whole run, in which a loop that goes on keeps the run from its end."""
    return run(TRAIN + script, seconds=LIMIT).trace


def same(trace: Trace) -> None:
    """What was kept replays to torch's own peaks."""
    found = replay(trace)
    assert found.peak_allocated_bytes == trace.recorded["allocated_bytes"]
    assert found.peak_reserved_bytes == trace.recorded["reserved_bytes"]


@pytest.mark.parametrize("steps", [60, 400])
def test_of_equal_steps_some_are_kept(run: Run, steps: int) -> None:
    """Of the others the trace says how many there were, and a replay makes them again: each asks
    for 16 blocks.

    The last may be one of them: on a slow machine the clock has had the trace written before it.
    """
    trace = in_full(run, f"for i in range({steps}): step(32)\nstep(64)\nprint(model)")
    assert (trace.state, trace.steps) == ("exit", steps + 1)
    assert len(trace.allocations) < 400
    assert replay(trace).repeated_steps in (steps - 2, steps - 1)
    same(trace)


def test_a_peak_within_a_long_run_is_kept(run: Run) -> None:
    trace = in_full(
        run,
        "for i in range(300):\n  step(32)\n  if i == 200: step(9999)\n  if i == 250: "
        "step(99999)\nstep(32)",
    )
    assert len(trace.allocations) < 700
    assert trace.recorded["allocated_bytes"] > 99999 * 4 * (256 + 512 + 256)
    same(trace)


def test_what_unseen_steps_left_and_took_is_in_the_trace(run: Run) -> None:
    """Tensors that are made or dropped in steps that were not kept are there, or gone, when the
    next one is kept."""
    trace = in_full(
        run,
        """
for i in range(300):
    step(32)
    if 100 <= i < 104: kept.append(torch.empty(2 << 20, device="cuda"))
    if i == 150: kept.append(kept[0].clone())
    if i == 200: del kept[1:3]
    if i == 299: step(99999)
""",
    )
    found = replay(trace)
    assert found.peak_allocated_bytes == trace.recorded["allocated_bytes"]
    assert len(trace.allocations) < 800


def test_batches_of_all_sizes_leave_a_trace_that_holds_the_largest(run: Run) -> None:
    """All of them while there is room for it; then only what raises the peak."""
    trace = in_full(run, "for i in range(1600): step(1 + 37 * i % 1601)\nstep(1601)")
    assert trace.steps == 1601
    assert 19_000 < len(trace.allocations) < 21_000 < 1600 * 16
    # less is no new peak
    assert replay(trace).peak_allocated_bytes > trace.recorded["allocated_bytes"] / 1.002


RING = (
    "ring = [torch.empty((20 << 20) + (i << 16), dtype=torch.uint8, device='cuda') for i in "
    "range(12)]\n"
)
"""Each is a cached block of its own once it is freed, and as a whole given to who asks for 20
MiB."""


@pytest.mark.parametrize(
    ("asked", "of_another_size"), [("20 << 20", False), ("(20 << 20) - (i << 16)", True)]
)
def test_a_step_that_asks_for_as_much_is_no_other_though_it_is_given_other_blocks(
    run: Run, asked: str, of_another_size: bool
) -> None:
    turn = (
        f"  del ring[0]; ring.append(torch.empty({asked}, dtype=torch.uint8, device='cuda')); "
        "step()\n"
    )
    trace = in_full(run, f"{RING}step(); step()\nfor i in range(10):\n{turn}")
    others = [phase for phase in trace.seen.phases if phase.what == "a step of another size"]
    assert bool(others) == of_another_size
    same(trace)


def test_a_run_without_a_limit_is_kept_whole(run: Run) -> None:
    trace = run(TRAIN + "for i in range(100): step(32)").trace
    assert len(trace.allocations) > 1500
    same(trace)
