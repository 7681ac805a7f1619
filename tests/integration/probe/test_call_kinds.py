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
linear, relu = torch.nn.Linear, torch.nn.ReLU
layers = [linear(512, 2048), relu(), linear(2048, 2048), relu(), linear(2048, 512)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.SGD(model.parameters())
for i in range(200):  # the first ones may all be made: `known.SPARED`
    x = torch.randn(1024, 512, device="cuda", requires_grad=True)
    loss = model(x).square().mean()
    given = torch.autograd.grad(loss, x if i < 170 else list(model.parameters()))
    optimizer.zero_grad()
    model(x.detach()).square().mean().backward()
    optimizer.step()
""",
    "weights in another order of memory": """
import torch
class Flat(torch.nn.Module):
    def __init__(self):
        super().__init__()
        conv, relu = torch.nn.Conv2d, torch.nn.ReLU
        self.body = torch.nn.Sequential(conv(16, 64, 3), relu(), conv(64, 64, 3), relu())
        self.head = torch.nn.Linear(64 * 20 * 20, 32)
    def forward(self, x):
        return self.head(self.body(x).reshape(len(x), -1))
model = Flat().cuda()
optimizer = torch.optim.SGD(model.parameters())
for i in range(300):
    if i == 150: model.to(memory_format=torch.channels_last)
    model(torch.randn(64, 16, 24, 24, device="cuda")).mean().backward()
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
