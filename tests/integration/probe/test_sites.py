"""Every allocation knows the line that asked for it: forward, backward, recomputed, in threads; and
its module."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmem_slurm.dryrun import dispatch, runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import Asked, DryRunOrder
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.trace import Category, Origin, Trace

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("without_sandbox")]

GPU = load_catalogue()["a100-sxm4-80gb"]
MODEL = """\
import sys, threading, torch
from torch.utils.checkpoint import checkpoint

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(512, 2048), torch.nn.Linear(2048, 512)
    def forward(self, x):
        h = torch.nn.functional.gelu(self.wide(x))
        first, second = h.chunk(2, -1)
        return x + self.narrow(torch.cat([second, first], -1))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=MODE == "reentrant") if MODE != "plain" else block(x)
        return x

net = Net().cuda()
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(4):
    x = torch.ones(1024, 512, device="cuda", requires_grad=True)
    loss = net(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
LINES = {number: line.strip() for number, line in enumerate(MODEL.splitlines(), 2)}
WIDE, CHUNK, NARROW = 1024 * 2048 * 4, 1024 * 1024 * 4, 1024 * 512 * 4
WEIGHT = 512 * 2048 * 4


def dry_run(tmp_path: Path, python: Path, code: str) -> Trace:
    (tmp_path / "train.py").write_text(code)
    job = Job(f"#!/bin/sh\nexec {python} train.py\n".encode(), [], tmp_path, dict(os.environ))
    (found,) = [
        t
        for t in runner.run(
            DryRunOrder.of(job, GPU, Budget(seconds=60), Asked(origins=True))
        ).traces
        if t.allocations
    ]
    return found


def of_size(found: Trace, size: int, *categories: Category) -> Iterator[Origin]:
    for number, allocation in enumerate(found.allocations):
        if allocation.size == size and (not categories or allocation.category in categories):
            yield found.site_of(number)


@pytest.mark.parametrize("mode", ["plain", "reentrant", "not reentrant"])
def test_each_allocation_names_its_line_and_module(
    tmp_path: Path, warm_python: Path, mode: str
) -> None:
    found = dry_run(tmp_path, warm_python, f"MODE = {mode!r}\n{MODEL}")
    assert found.error is None
    seen = {
        (site.function, LINES.get(site.line, "").partition(" ")[0], site.module)
        for site in of_size(found, WIDE)
    }
    expected = (
        ("forward", "h", "blocks.{}.wide"),
        ("forward", "h", "blocks.{}"),  # gelu
        ("forward", "return", "blocks.{}"),  # cat
        ("AddmmBackward0", "return", "blocks.{}.narrow"),
        ("SplitBackward0", "", "blocks.{}"),  # chunk allocates nothing
        ("GeluBackward0", "h", "blocks.{}"),
    )
    assert seen == {
        (node, line, module.format(block)) for block in range(3) for node, line, module in expected
    }


def test_a_stack_leads_from_the_line_to_the_script_itself(
    tmp_path: Path, warm_python: Path
) -> None:
    found = dry_run(tmp_path, warm_python, f"MODE = 'plain'\n{MODEL}")
    (gelu, *_), (backward, *_) = (
        [
            [
                (site.function, LINES[site.line])
                for site in found.stack_of(number)
                if site.file.endswith("/train.py")
            ]
            for number, allocation in enumerate(found.allocations)
            if allocation.size == WIDE and found.site_of(number).function == function
        ]
        for function in ("forward", "GeluBackward0")
    )
    line = "h = torch.nn.functional.gelu(self.wide(x))"
    assert gelu == [("forward", line), ("forward", LINES[20]), ("<module>", "loss = net(x).sum()")]
    assert backward == [("GeluBackward0", line), *gelu]


def test_parameters_and_their_optimizer_state_have_their_names(
    tmp_path: Path, warm_python: Path
) -> None:
    found = dry_run(tmp_path, warm_python, f"MODE = 'plain'\n{MODEL}")
    names = {f"blocks.{block}.{layer}.weight" for block in range(3) for layer in ("wide", "narrow")}
    for category, line in (
        (Category.PARAM, "net = Net().cuda()"),
        (Category.OPT, "optimizer.step()"),
    ):
        sites = list(of_size(found, WEIGHT, category))
        assert {site.module for site in sites} == names
        assert {LINES[site.line] for site in sites} == {line}


def test_wrappers_and_compiled_code_are_not_the_script(tmp_path: Path, warm_python: Path) -> None:
    wrapped = MODEL.replace("Net().cuda()", "torch.nn.Sequential(Net()).cuda()").replace(
        "net(x)", "torch.compile(net)(x)"
    )
    found = dry_run(tmp_path, warm_python, f"MODE = 'plain'\n{wrapped}")
    assert {site.file for site in of_size(found, WIDE)} == {str(tmp_path / "train.py")}


def test_a_command_that_is_a_script_has_lines_too(tmp_path: Path, warm_python: Path) -> None:
    job = Job(
        b"#!/bin/sh\nexec python -c 'import torch\nx = torch.ones(3, 1 << 20).cuda()'\n",
        [],
        tmp_path,
        {**os.environ, "PATH": f"{warm_python.parent}:{os.environ['PATH']}"},
    )
    (found,) = [
        t
        for t in runner.run(
            DryRunOrder.of(job, GPU, Budget(seconds=60), Asked(origins=True))
        ).traces
        if t.allocations
    ]
    assert list(of_size(found, 3 * 4 << 20)) == [Origin("<string>", 2, "<module>", "")]


def test_a_thread_of_the_scripts_own_is_told_apart(tmp_path: Path, warm_python: Path) -> None:
    in_thread = """
def fetch():
    global batch
    batch = torch.ones(3, 1 << 20, device="cuda")
thread = threading.Thread(target=fetch)
thread.start()
thread.join()
"""
    found = dry_run(tmp_path, warm_python, f"MODE = 'plain'\n{MODEL}{in_thread}")
    (site,) = of_size(found, 3 * 4 << 20)
    assert (site.function, site.module) == ("fetch", "")


HANDLED = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
some = torch.ones(5, device="cuda")
for _ in range(3):
    try:
        (some * 2)[5]
    except IndexError:
        pass
    model(torch.ones(64, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_an_exception_that_the_script_handles_is_its_own(tmp_path: Path, warm_python: Path) -> None:
    """torch's hook loses it, so without a report there is no hook, and a run that stops is made
    again without."""
    (tmp_path / "train.py").write_text(HANDLED)
    job = Job(f"#!/bin/sh\nexec {warm_python} train.py\n".encode(), [], tmp_path, dict(os.environ))
    plain, with_frames = (
        dispatch.here(DryRunOrder.of(job, GPU, Budget(seconds=60), Asked(origins=origins))).traces[
            0
        ]
        for origins in (False, True)
    )
    assert (plain.error, plain.steps, plain.made_at) == (None, 3, [0] * len(plain.allocations))
    assert (with_frames.error, with_frames.steps) == (None, 3)
    assert with_frames.stack_of(0)[0] == Origin(str(tmp_path / "train.py"), 3, "<module>", "")


def test_the_lines_cost_little_of_a_trace(tmp_path: Path, warm_python: Path) -> None:
    found = dry_run(tmp_path, warm_python, f"MODE = 'plain'\n{MODEL}")
    assert len(found.sites) < 100 < len(found.made_at)
    assert len(json.dumps(found.made_at)) < 4 * len(found.made_at)
