"""Calls that are given numbers on the host, each another one: skipped, unless something hangs on
them (xmem_slurm/probe/_xmem/repeat/host_reads.py)."""

from pathlib import Path

import pytest

from tests.harness import probe
from tests.harness.probe import Run
from xmem_slurm.allocator.replay import replay

pytestmark = pytest.mark.torch

SAMPLER = """
import torch
class Denoiser(torch.nn.Module):
    def __init__(self):
        super().__init__()
        linear, silu = torch.nn.Linear, torch.nn.SiLU
        self.time = linear(64, 256)
        self.body = torch.nn.Sequential(*[part for _ in range(12) for part in (linear(256, 256), silu())])
    def forward(self, x, t):
        kept = KEPT
        t = t[None].to(x.device) * torch.ones(len(x), device=x.device)
        angles = t[:, None] * torch.arange(64, device=x.device)[None]
        return self.body(x + self.time(angles.sin()))
model = Denoiser().cuda()
with torch.no_grad():
    x = torch.randn(1024, 256, device="cuda")
    for t in torch.arange(299, -1, -1):
        x = x - 0.01 * model(x, t)
    for t in torch.arange(99, -1, -1):
        x = x[:512] - 0.01 * model(x[:512], t)
"""
STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.randn(1024, 256, device="cuda"), 1).sum().backward()
optimizer.step()
optimizer.zero_grad()
with torch.no_grad():"""
UNREAD = "None"
READING = {
    "a condition": "torch.empty(4096, 1024, device=x.device) if t < 10 else None",
    "a slice": "torch.empty(4096, 1024, device=x.device)[: 10 * t + 1] * 2",
    "a list": "torch.empty(4096, 1024, device=x.device) if t.tolist() < 10 else None",
    "a copy on the GPU": "torch.empty(4096, 1024, device=x.device) if t.cuda() < 10 else None",
    "a mask": "torch.empty(4096, 1024, device=x.device)[t < 10] * 2",
    "repeats": "torch.repeat_interleave(torch.ones(1), 1 + (t < 10) * 4_000_000).to(x.device)",
    "late, of another batch": (
        "torch.empty(4096, 1024, device=x.device) if len(x) == 512 and t < 10 else None"
    ),
}


@pytest.fixture
def run(job_python: Path, warm_python: Path, tmp_path: Path) -> Run:
    return probe.runs(warm_python, probe.stand_ins(job_python), tmp_path)


def test_those_that_nobody_reads_are_of_no_kind(run: Run) -> None:
    whole = run(SAMPLER.replace("KEPT", UNREAD)).traces[0]
    trace = run(SAMPLER.replace("KEPT", UNREAD), seconds=300).traces[-1]
    assert trace.seen is not None
    assert trace.seen.skipped > 300
    assert not [noted for noted in trace.doubts if noted.code == "skipped"]
    assert replay(trace).peak_allocated_bytes == whole.recorded["allocated_bytes"]


@pytest.mark.parametrize("name", READING)
def test_what_hangs_on_one_is_in_the_trace(name: str, run: Run) -> None:
    script = SAMPLER.replace("KEPT", READING[name])
    whole = run(script).traces[0]
    trace = run(script, seconds=300).traces[-1]
    assert trace.state == "exit"
    assert replay(trace).peak_allocated_bytes == whole.recorded["allocated_bytes"]
    assert not [noted for noted in trace.doubts if noted.code == "skipped"]


def test_parts_of_calls_with_plain_numbers_are_skipped(run: Run) -> None:
    """Whose numbers count, and are others in each call; without a step the script comes round with
    each part that it calls."""
    script = SAMPLER.replace("t[None].to(x.device)", "t").replace("KEPT", UNREAD)
    script = script.replace(", t)\n    for", ", int(t))\n    for").replace(
        "\nwith torch.no_grad():", STEP
    )
    whole = run(script).traces[0]
    trace = run(script, seconds=300).traces[-1]
    assert trace.seen is not None
    assert trace.seen.skipped > 150
    assert replay(trace).peak_allocated_bytes == whole.recorded["allocated_bytes"]
