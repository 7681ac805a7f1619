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
    "a list that it takes its argument from": """
import torch
class Last(torch.nn.Sequential):
    def forward(self, tensors):
        return super().forward(tensors.pop())
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
model, kept = Last(*layers).cuda(), []
optimizer = torch.optim.SGD(model.parameters())
for i in range(300):
    tensors = [torch.randn(256, 256, device="cuda")]
    model(tensors).mean().backward()
    kept += tensors
    optimizer.step()
    optimizer.zero_grad()
""",
    "what it counts in a dictionary that it is given": """
import torch
class Counting(torch.nn.Sequential):
    def forward(self, x, seen):
        seen["samples"] += len(x)
        return super().forward(x)
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
model, kept = Counting(*layers).cuda(), []
optimizer = torch.optim.SGD(model.parameters())
for i in range(300):
    seen = {"samples": 0}
    model(torch.randn(256, 256, device="cuda"), seen).mean().backward()
    kept += [torch.empty(seen["samples"], 64, device="cuda")]
    optimizer.step()
    optimizer.zero_grad()
""",
    "a hook by which what frozen weights give needs a gradient": """
import torch
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
frozen = torch.nn.Sequential(*layers).cuda().requires_grad_(False)
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters())
for i in range(300):
    if i == 150: frozen[0].register_forward_hook(lambda module, args, out: out.requires_grad_(True))
    model(frozen(torch.randn(4096, 512, device="cuda"))).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "a number in its Python module that goes round": """
import torch
number = 0
class Numbered(torch.nn.Sequential):
    def forward(self, x):
        global number
        number = (number + 1) % 4
        return super().forward(x)
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
model, kept, last = Numbered(*layers).cuda(), [], 0
optimizer = torch.optim.SGD(model.parameters())
for i in range(600):  # the first ones of each number may all be made: `known.SPARED`
    model(torch.randn(256, 256, device="cuda")).mean().backward()
    kept += [torch.empty(256, 256, device="cuda")] if number != last else []
    last = number
    optimizer.step()
    optimizer.zero_grad()
""",
    "a number that its backward pass counts": """
import torch
number = [0]
class Numbered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1
    @staticmethod
    def backward(ctx, gradient):
        number[0] = (number[0] + 1) % 4
        return gradient
class Model(torch.nn.Sequential):
    def forward(self, x):
        return Numbered.apply(super().forward(x))
layers = [layer for _ in range(8) for layer in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
model, kept, last = Model(*layers).cuda(), [], [0]
optimizer = torch.optim.SGD(model.parameters())
for i in range(600):
    model(torch.randn(256, 256, device="cuda")).mean().backward()
    kept += [torch.empty(256, 256, device="cuda")] if number != last else []
    last = number[:]
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
