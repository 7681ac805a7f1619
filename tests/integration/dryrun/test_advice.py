"""Advice changes one thing of a job in a dry run of its own, says what it was, and changes nothing
where it cannot."""

import os
from pathlib import Path

import pytest

from xmem_slurm.dryrun import dispatch
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.sizing.sizing import CHANGES, Advice, Sizing, advised, size_components
from xmem_slurm.slurm.submission import Submission

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("without_sandbox")]

GPU = load_catalogue()["a100-sxm4-80gb"].model_copy(update={"total_bytes": 1 << 30})
ON_ONE = Premises(None, {"small": GPU}, Budget(seconds=100))
HERE = DryRuns()
TRAIN = """
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

def block(layer, x):
    return torch.nn.functional.gelu(layer(x))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(1024, 1024) for _ in range(8))
        self.is_gradient_checkpointing = {on}

    def gradient_checkpointing_enable(self):
        self.is_gradient_checkpointing = True

    def forward(self, x):
        for layer in self.layers:
            if self.is_gradient_checkpointing:
                x = checkpoint(block, layer, x, use_reentrant=False)
            else:
                x = block(layer, x)
        return x

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters())
for loader in {loaders}:
    for (batch,) in loader:
        with torch.autocast("cuda", torch.bfloat16, enabled={on}):
            loss = model(batch.cuda().expand(-1, 1024, 1024)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
LOADER = "DataLoader(TensorDataset(torch.zeros(200, 1, 1)), batch_size={})"


def tried(folder: Path, python: Path, script: str) -> tuple[Sizing, dict[str, Advice]]:
    (folder / "train.py").write_text(script)
    job = Submission(
        (f"--chdir={folder}", "job.sh"),
        dict(os.environ),
        f"#!/bin/sh\nexec {python} train.py\n".encode(),
    )
    sized = dispatch.one(size_components(job, [0], ON_ONE), HERE)[0]
    assert isinstance(sized, Sizing), sized
    found = dispatch.one(advised(sized, job, 0, ON_ONE), HERE).advice
    assert [each.option for each in found] == ["small"] * len(CHANGES)
    return sized, dict(zip(CHANGES, found, strict=True))


def test_each_change_is_made_and_needs_less(tmp_path: Path, warm_python: Path) -> None:
    loaders = f"[{LOADER.format(16)}]"
    sized, found = tried(tmp_path, warm_python, TRAIN.format(on=False, loaders=loaders))
    whole = sized.estimate.largest.replay.peak_reserved_bytes
    assert found["batch"].change == "half the batch (8)"
    assert found["bf16"].change == "bf16 autocast around the model"
    assert found["checkpointing"].change == "gradient_checkpointing_enable()"
    for advice in found.values():
        assert advice.estimate is not None, advice
        assert advice.estimate.largest.replay.peak_reserved_bytes < 0.8 * whole
        assert advice.fits == advice.estimate.fits(GPU)


@pytest.mark.parametrize("own", ["around", "within"])
def test_what_would_change_nothing_is_not_advised(
    tmp_path: Path, warm_python: Path, own: str
) -> None:
    """The script has autocast on already: around its calls of the model, or as Accelerate does,
    within them."""
    loaders = f"[{LOADER.format(16)}, {LOADER.format(32)}]"
    script = TRAIN.format(on=True, loaders=loaders)
    if own == "within":
        on = 'model.forward = torch.autocast("cuda", torch.bfloat16)(model.forward)'
        script = script.replace("enabled=True", "enabled=False").replace(
            "optimizer = ", f"{on}\noptimizer = ", 1
        )
    _, found = tried(tmp_path, warm_python, script)
    assert all(
        advice.estimate is None and advice.why_not == CHANGES[change][1]
        for change, advice in found.items()
    )


def test_where_no_option_is_too_small_nothing_is_run(tmp_path: Path) -> None:
    fits = Sizing(None, Placement([Verdict("small", GPU, True)], "small"), 1.0)  # type: ignore[arg-type] # not looked at
    assert dispatch.one(advised(fits, Submission(("job.sh",), {}, b""), 0, ON_ONE), HERE) is fits
