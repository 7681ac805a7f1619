"""A plan of a real script: what is advised is the script that is submitted, and it runs on the GPUs
it asks for."""

import os
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, XMEM_SLURM, Cluster, own_cache
from xmem_slurm.planning import on_site
from xmem_slurm.planning.on_site import Planned, PlanWanted
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission.answer import Wishes
from xmem_slurm.submission.premises import premises_of

pytestmark = pytest.mark.torch

TRAIN = """
import os, sys
import torch

size, batch = 4096, int(sys.argv[sys.argv.index("--batch") + 1])
torch.distributed.init_process_group()
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
layers = [torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.GELU()) for _ in range(8)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.zeros(batch, 4096, size, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], batch, flush=True)
"""


def written(folder: Path, python: Path, batch: int, *directives: str) -> Path:
    """Write a script of two processes whose batch does not fit the small GPUs of the example
    site."""
    (folder / "train.py").write_text(TRAIN)
    lines = ["#!/bin/bash", *(f"#SBATCH {directive}" for directive in directives)]
    lines += [
        f"export PATH={python.parent}:$PATH",
        f"torchrun --standalone --nproc-per-node=2 train.py --batch {batch}",
    ]
    (folder / "job.sh").write_text("\n".join([*lines, ""]))
    return folder / "job.sh"


def planned(script: Path, **wanted: object) -> Planned:
    job = Submission(
        (f"--chdir={script.parent}", str(script)), dict(os.environ), script.read_bytes()
    )
    premises = premises_of(job, Wishes(site=str(EXAMPLE_SITE), whole=True), None, print)
    return on_site.plan(job, PlanWanted(vary="batch_size=--batch", **wanted), premises, print)  # type: ignore[arg-type]


@pytest.mark.usefixtures("without_sandbox")
def test_a_script_of_ddp_is_planned_on_more_gpus_with_a_batch_that_fits(
    tmp_path: Path, warm_python: Path
) -> None:
    script = written(tmp_path, warm_python, 24, "--gres=gpu:2", "--ntasks=1", "--mem=1G")
    found = planned(script, gpus="2-4", on=("l4",), top=1)
    best = found.best
    assert (best.candidate.gpus, best.candidate.micro_batch) == (4, 12)
    assert best.estimate is not None
    assert best.estimate.fits(found.gpus["l4"])
    assert best.estimate.largest.trace.world_size == 4
    ready = found.submission(best)
    assert ready.script is not None
    text = ready.script.decode()
    assert "torchrun --standalone --nproc-per-node=4 train.py --batch 12\n" in text
    assert ready.request.gpus_per_node == 4
    assert ready.request.gpu_types == ("l4",)
    assert {row.candidate.gpus for row in found.plan.verified} == {4}


@pytest.mark.slurm
@pytest.mark.slow(covers=["xmem_slurm/planning/*", "xmem_slurm/submission/by_plan*"])
def test_a_plan_that_is_submitted_runs_on_the_gpus_that_it_asks_for(
    cluster: Cluster, tmp_path: Path, job_python: Path
) -> None:
    """The lab's GPUs have as much memory as the site says, and no more: as it is written the job
    ends without."""
    script = written(
        tmp_path, job_python, 24, "--gres=gpu:l4:2", "--ntasks=1", "--mem=1G", "--output=%j.out"
    )
    environ = own_cache(tmp_path)
    job = cluster.slurm("sbatch", "--parsable", f"--chdir={tmp_path}", str(script)).strip()
    assert "JobState=FAILED" in cluster.ended(job)
    assert "OutOfMemoryError" in (tmp_path / f"{job}.out").read_text()
    words = (
        "--gpus=2-4",
        "--on=l4",
        "--top=1",
        "--vary=batch_size=--batch",
        "--write=plan.sh",
        "job.sh",
    )
    done = cluster.run(XMEM_SLURM, "plan", *words, cwd=tmp_path, **environ)
    assert done.returncode == 0, done.stderr
    assert "1.  4 x l4" in done.stdout
    submitted = cluster.run(
        *("sbatch", "--parsable", f"--chdir={tmp_path}", str(tmp_path / "plan.sh")),
        XMEM_RUN_RANKS="0,1,2,3/4",  # without it a launcher starts the first alone
    )
    job = submitted.stdout.strip()
    assert "JobState=COMPLETED" in cluster.ended(job)
    lines = (tmp_path / f"{job}.out").read_text().splitlines()
    trained = sorted(line for line in lines if line.startswith("trained"))
    assert trained == [f"trained {rank} of 4 12" for rank in range(4)]


@pytest.mark.usefixtures("without_sandbox")
def test_gpus_that_the_script_does_not_let_its_processes_see_are_not_planned_with(
    tmp_path: Path, warm_python: Path
) -> None:
    """Rank 0 of four finds its own; there is no third and no fourth."""
    script = written(tmp_path, warm_python, 24, "--gres=gpu:2", "--ntasks=1", "--mem=1G")
    text = script.read_text()
    script.write_text(text.replace("torchrun", "export CUDA_VISIBLE_DEVICES=0,1\ntorchrun"))
    found = planned(script, gpus="4", on=("l4",), top=1)
    assert found.plan.rows
    for row in found.plan.rows:
        assert row.status == "failed"
        assert row.why.startswith(("rank 2 of 4", "rank 3 of 4"))
        assert "invalid device ordinal" in row.why


@pytest.mark.usefixtures("without_sandbox")
def test_a_way_whose_last_rank_ends_before_it_meets_the_others_is_not_advised(
    tmp_path: Path, warm_python: Path
) -> None:
    """Rank 0 of four runs; there are data for three."""
    script = written(tmp_path, warm_python, 24, "--gres=gpu:2", "--ntasks=1", "--mem=1G")
    rank = 'if os.environ["RANK"] == "3": sys.exit("no data for rank 3")\n'
    (tmp_path / "train.py").write_text(TRAIN.replace("size, batch", f"{rank}size, batch", 1))
    found = planned(script, gpus="4", on=("l4",), top=1)
    (row,) = found.plan.rows
    assert row.status == "failed"
    assert row.why.startswith("rank 3 of 4 does not start: ")
    assert "no data for rank 3" in row.why
