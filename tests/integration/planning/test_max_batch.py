"""The largest batch of a real script: written into the script it fits, and one sample more does
not."""

import os
from pathlib import Path

import pytest

from xmem_slurm.dryrun import dispatch
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.max_batch import largest
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.sizing.sizing import Sizing, size_components
from xmem_slurm.slurm.submission import Submission

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("without_sandbox")]

GPU = load_catalogue()["a100-sxm4-80gb"].model_copy(update={"total_bytes": 1 << 30})
LOADERS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

samples = TensorDataset(torch.zeros(2_000, 1024))
model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(8)])
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(2):
    for (batch,) in DataLoader(samples, batch_size={batch}, shuffle=True):
        model(batch.cuda().unsqueeze(1).repeat(1, 64, 1)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for (batch,) in DataLoader(samples, batch_size=128):
            model(batch.cuda())
"""
OPTION = """
import sys
import torch

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.GELU()) for _ in range(8)])
model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    model(torch.zeros(int(sys.argv[2]), 64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def submission(folder: Path, command: str) -> Submission:
    return Submission(
        (f"--chdir={folder}", "job.sh"), dict(os.environ), f"#!/bin/sh\nexec {command}\n".encode()
    )


@pytest.mark.parametrize(
    ("script", "vary", "arguments"),
    [
        pytest.param(LOADERS, "", "", id="DataLoader, another one for evaluation"),
        pytest.param(OPTION, "batch_size=--batch", "--batch {batch}", id="an option"),
    ],
)
def test_it_fits_as_the_script_would_have_it_and_one_more_does_not(
    script: str, vary: str, arguments: str, tmp_path: Path, warm_python: Path
) -> None:
    def written(batch: int) -> Submission:
        (tmp_path / "train.py").write_text(script.replace("{batch}", str(batch)))
        return submission(tmp_path, f"{warm_python} train.py {arguments.format(batch=batch)}")

    premises = Premises(None, {"small": GPU}, Budget(seconds=100))
    lever = BatchLever.parse(vary) if vary else BatchLever()
    (found,) = dispatch.one(
        largest(premises.order(written(32)), lever, 0, premises.gpus), DryRuns()
    )
    assert found.estimate is not None
    assert found.over is not None
    for batch, estimate in ((found.batch, found.estimate), (found.batch + 1, found.over)):
        sized = dispatch.one(size_components(written(batch), [0], premises), DryRuns())[0]
        assert isinstance(sized, Sizing)
        assert sized.estimate.required_bytes == estimate.required_bytes
        assert sized.estimate.fits(GPU) == (batch == found.batch)
