"""What calls of modules and their backward passes hang on past their arguments: scripts that change
it late, each beside itself, whole."""

from pathlib import Path

import pytest

from tests.harness import probe
from tests.harness.probe import Run
from xmem_slurm.allocator.replay import replay

pytestmark = pytest.mark.torch

SECONDS = 300
"""Enough for a script's own end; with a budget calls are skipped, without one all are made."""
SCRIPTS = {
    "gradients of the weights, after those of the input": """
import torch
linear = torch.nn.Linear
model = torch.nn.Sequential(linear(64, 512), torch.nn.Tanh(), linear(512, 512)).cuda()
for i in range(80):
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    loss = model(x).square().mean()
    torch.autograd.grad(loss, x if i < 72 else list(model.parameters()))
    model(x.detach()).square().mean().backward()
    model.zero_grad()
""",
    "weights in another order of memory": """
import torch
class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        conv = torch.nn.Conv2d
        self.body = torch.nn.Sequential(conv(16, 64, 3), torch.nn.ReLU(), conv(64, 64, 3))
    def forward(self, x):
        return self.body(x).reshape(len(x), -1)
model = Flat().cuda()
optimizer = torch.optim.SGD(model.parameters())
for i in range(80):
    if i == 72: model.to(memory_format=torch.channels_last)
    model(torch.randn(64, 16, 24, 24, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.fixture
def run(job_python: Path, warm_python: Path, tmp_path: Path) -> Run:
    return probe.runs(warm_python, probe.stand_ins(job_python), tmp_path)


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_changes_late_is_in_the_trace(name: str, run: Run) -> None:
    whole = run(SCRIPTS[name]).traces[0]
    trace = run(SCRIPTS[name], seconds=SECONDS).traces[-1]
    assert trace.state == "exit"
    assert replay(trace).peak_allocated_bytes == pytest.approx(
        whole.recorded["allocated_bytes"], rel=0.01
    )
    assert not [noted.detail for noted in trace.doubts if noted.code == "skipped"]
