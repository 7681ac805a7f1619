"""Launchers as people write them in batch scripts of many nodes: which ranks run, of how many, on
which GPU."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.harness.rotation import some_each_time
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import DryRunOrder, RunRanks
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import Trace

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("without_sandbox")]

H200 = load_catalogue()["h200"]
TRAIN = """
import os, sys
import torch
import torch.distributed as dist

width = int(sys.argv[1]) if len(sys.argv) > 1 else 512
if "OMPI_COMM_WORLD_RANK" in os.environ:
    for name, theirs in ("RANK", "RANK"), ("LOCAL_RANK", "LOCAL_RANK"), ("WORLD_SIZE", "SIZE"):
        os.environ[name] = os.environ["OMPI_COMM_WORLD_" + theirs]
assert os.environ["MASTER_ADDR"] and int(os.environ["MASTER_PORT"])
assert dist.is_torchelastic_launched() == ("BY_ELASTIC" in os.environ)  # by which Lightning knows it from Slurm
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
print("rank", dist.get_rank(), "of", dist.get_world_size(), flush=True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(width, width).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.zeros(8, width, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
TWO_NODES = "#SBATCH --nodes=2 --gpus-per-node=4"
HEAD = """nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head=${nodes[0]}
"""
TASKS = "#SBATCH --ntasks-per-node=4\n"
OF_MANY = pytest.mark.slow(
    covers=[
        "xmem_slurm/dryrun/*",
        "xmem_slurm/probe/*ranks*",
        "xmem_slurm/probe/*process*",
        "xmem_slurm/slurm/*",
    ]
)
MASTER = """export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 20000)) WORLD_SIZE=$SLURM_NTASKS
"""
LAUNCHES = {
    "torchrun, rendezvous from Slurm's variables": f"""#SBATCH --ntasks-per-node=1
{HEAD}address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname)
srun torchrun --nnodes $SLURM_NNODES --nproc_per_node $SLURM_GPUS_ON_NODE --rdzv_id $RANDOM --rdzv_backend c10d \\
    --rdzv_endpoint "$address:29500" train.py""",
    "torchrun, the node's rank from Slurm": f"""#SBATCH --ntasks-per-node=1
{HEAD}srun bash -c 'torchrun --nnodes=2 --node-rank=$SLURM_NODEID --nproc-per-node=gpu --master-addr=x train.py'""",
    "torchrun on each node by hand": f"""{HEAD}
for i in ${{!nodes[@]}}; do
  srun -N1 -n1 -w ${{nodes[$i]}} torchrun --nnodes ${{#nodes[@]}} --node_rank $i --nproc_per_node 4 train.py &
done
wait""",
    "python -m torch.distributed.run": """#SBATCH --ntasks-per-node=1
srun python -m torch.distributed.run --nnodes=$SLURM_NNODES --nproc_per_node=4 --rdzv_backend=c10d train.py""",
    "srun, a task for each GPU": f"""{TASKS}{MASTER}
srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train.py'""",
    "mpirun": f"{TASKS}{MASTER}\nmpirun -np 8 --bind-to none -x MASTER_ADDR python train.py",
    "mpiexec": f"{TASKS}{MASTER}\nmpiexec -n $SLURM_NTASKS python train.py",
    "accelerate on several machines": f"""#SBATCH --ntasks-per-node=1
{MASTER}
srun bash -c 'accelerate launch --multi_gpu --num_machines $SLURM_NNODES --num_processes 8 \\
    --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT train.py'""",
}


def dry_run(
    script: str, folder: Path, python: Path, ranks: RunRanks | None = None
) -> Sequence[Trace]:
    """Run a batch script dry as it would be submitted; a failure in it is one here."""
    (folder / "train.py").write_text(TRAIN)
    text = f"#!/bin/bash\n{script}\n".encode()
    given = {"HOME": str(folder), "PATH": f"{python.parent}:/usr/bin:/bin"}
    given |= (
        {"BY_ELASTIC": "1"}
        if any(word in script for word in ("torchrun", "distributed.run", "accelerate"))
        else {}
    )
    given |= {"PYTHON_EXEC": str(python)}  # with which torch.distributed.run starts its workers
    job = from_submission(Submission((f"--chdir={folder}", "job.sh"), given, text))
    done = runner.run(DryRunOrder(job, H200, Budget(seconds=300), run_ranks=ranks))
    assert done.outcome.returncode == 0, done.outcome.output_tail.decode()
    found = sorted(
        (trace for trace in done.traces if trace.allocations), key=lambda trace: trace.rank
    )
    assert [trace.error for trace in found] == [None] * len(found)
    return found


@pytest.mark.parametrize(
    "way",
    some_each_time(
        LAUNCHES,
        ("torchrun, the node's rank from Slurm", "srun, a task for each GPU", "mpirun"),
        OF_MANY,
    ),
)
def test_the_first_and_the_last_rank_of_two_nodes(
    way: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Both are what they would be among all eight, each on its own node's GPU, so nothing is added
    up."""
    python = request.getfixturevalue(
        "trainer_python" if way.startswith("accelerate") else "warm_python"
    )
    found = dry_run(f"{TWO_NODES}\n{LAUNCHES[way]}", tmp_path, python, RunRanks((0, 7), 8))
    assert [(trace.rank, trace.world_size, trace.place) for trace in found] == [
        (0, 8, "0"),
        (7, 8, "1:3"),
    ]
    assert [rank.beside_bytes for rank in estimate(found, "h200", H200).ranks] == [0, 0]


PROGRAMS = """# tasks  program
0        bash -c 'LOCAL_RANK=0 RANK=%t exec python train.py 256'
1-2,3    bash -c 'LOCAL_RANK=%o RANK=%t \\
            exec python train.py 1024'
"""


def test_of_several_programs_the_first_task_of_each_runs(warm_python: Path, tmp_path: Path) -> None:
    (tmp_path / "programs.conf").write_text(PROGRAMS)
    script = f"#SBATCH --ntasks=4 --gpus=4\n{MASTER}srun --multi-prog programs.conf"
    found = dry_run(script, tmp_path, warm_python)
    assert [(trace.rank, trace.world_size, trace.argv[-1]) for trace in found] == [
        (0, 4, "256"),
        (1, 4, "1024"),
    ]


def test_tasks_that_share_gpus_run_together(warm_python: Path, tmp_path: Path) -> None:
    share = "RANK=$SLURM_PROCID LOCAL_RANK=$((SLURM_LOCALID % 2)) exec python train.py"
    found = dry_run(
        f"#SBATCH --ntasks=4 --gpus=2\n{MASTER}srun bash -c '{share}'", tmp_path, warm_python
    )
    assert [(trace.rank, trace.place) for trace in found] == [
        (0, "0"),
        (1, "1"),
        (2, "0"),
        (3, "1"),
    ]


@OF_MANY
def test_more_tasks_on_a_gpu_than_can_be_run_are_no_estimate(
    warm_python: Path, tmp_path: Path
) -> None:
    share = "RANK=$SLURM_PROCID LOCAL_RANK=0 exec python train.py"
    found = dry_run(
        f"#SBATCH --ntasks=9 --gpus=1\n{MASTER}srun bash -c '{share}'", tmp_path, warm_python
    )
    assert {doubt.detail for trace in found for doubt in trace.doubts if doubt.code == "tasks"} == {
        "1 more tasks share the GPUs than a dry run starts at once"
    }


TRAINER = """
import ctypes
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.sleep, ctypes.c_void_p(1), None)  # a slow end: torch's watchdog looks ten times meanwhile
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x=None, labels=None):
        y = self.layer(x)
        return {"loss": torch.nn.functional.mse_loss(y, labels), "logits": y}

data = [{"x": torch.ones(64), "labels": torch.ones(64)}] * 256
told = TrainingArguments("out", max_steps=4, per_device_train_batch_size=4, report_to=[], disable_tqdm=True)
Trainer(Model(), told, train_dataset=data).train()
"""


@OF_MANY
def test_a_trainer_of_many_tasks(trainer_python: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    run = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python trainer.py"
    found = dry_run(f"{TWO_NODES}\n{TASKS}{MASTER}srun bash -c '{run}'", tmp_path, trainer_python)
    assert [(trace.rank, trace.world_size, trace.steps) for trace in found] == [(0, 8, 4)]
