"""A dry run of a job as users write them finds the same again: what the job makes itself, and how
it sets itself up."""

import os
from pathlib import Path

import pytest

from xmem_slurm.dryrun import kept_runs, runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.site.loading import load_catalogue

pytestmark = pytest.mark.torch

SCRIPT = b"""#!/bin/bash
source ~/.bashrc
source $(conda info --base)/etc/profile.d/conda.sh
conda activate x
python train.py
"""

TRAIN = """
import os, tempfile, torch
os.makedirs("out/checkpoints", exist_ok=True)
model = torch.nn.Linear(8, 8, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
loader = torch.utils.data.DataLoader(torch.randn(8, 8), 4, num_workers=1)
with tempfile.TemporaryDirectory() as scratch:
    for epoch in range(2):
        for batch in loader:
            model(batch.cuda()).sum().backward()
            optimizer.step()
        torch.save(model.state_dict(), f"out/checkpoints/{epoch}.pt")
        torch.save(model.state_dict(), os.path.join(scratch, "last.pt"))
        print(os.listdir("out/checkpoints"), os.listdir(scratch))
"""


def test_a_job_with_workers_temporary_folders_and_start_up_files_is_run_dry_once(
    warm_python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / ".bashrc").write_text(
        'case $- in *i*) ;; *) return;; esac\neval "$(dircolors -b)"\n'
    )
    made = list[DryRunOrder]()

    def make(order: DryRunOrder) -> DryRunResult:
        made.append(order)
        return runner.run(order)

    environ = {"HOME": str(tmp_path), "PATH": f"{warm_python.parent}:{os.environ['PATH']}"}
    order = DryRunOrder.of(
        Job(SCRIPT, (), tmp_path, environ), load_catalogue()["h200"], Budget(seconds=60)
    )
    give = kept_runs.made_or_kept(make)
    peaks = [
        [trace.recorded["reserved_bytes"] for trace in give(order).traces if trace.recorded]
        for _ in range(2)
    ]
    assert peaks[0] == peaks[1] != []
    assert len(made) == 1
