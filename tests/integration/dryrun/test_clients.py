"""Programs that submit jobs, with `sbatch` being xsbatch: each gets its number and result, and its
job is sized."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import TRAIN, XSBATCH, Cluster, own_cache, wait_until

pytestmark = [
    pytest.mark.torch, pytest.mark.slurm,
    pytest.mark.slow(
        covers=["xmem_slurm/probe/_xmem/clients.py", "xmem_slurm/slurm/services.py", "xmem_slurm/submission/answer.py"],
        as_one=True,
    ),
]  # fmt: skip


HYDRA = (
    "hydra",
    "hydra_plugins",
    "submitit",
    "omegaconf",
    "cloudpickle",
    "typing_extensions.py",
    "yaml",
)
"""What Hydra's launcher needs of what is installed, and what has a wheel of its own beside it is
found by."""


@pytest.fixture(scope="module")
def packages(job_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the programs beside nothing of ours; skip where there is no index of packages."""
    venv = tmp_path_factory.mktemp("clients") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    wanted = [
        "submitit",
        "hydra-submitit-launcher",
        "snakemake",
        "snakemake-executor-plugin-slurm",
        "dask-jobqueue",
        "parsl",
        "ray",
    ]
    done = subprocess.run(
        [venv / "bin" / "pip", "install", "-q", *wanted],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"the clients cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return venv


@pytest.fixture
def environ(accounts: Cluster, packages: Path, tmp_path: Path) -> dict[str, str]:
    """A PATH on which xsbatch is sbatch, and on which srun finds the cluster without SLURM_CONF, as
    on most sites."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "sbatch").symlink_to(XSBATCH)
    srun = f'#!/bin/sh\nSLURM_CONF={accounts.environ["SLURM_CONF"]} exec /usr/bin/srun "$@"\n'
    (programs / "srun").write_text(srun)
    (programs / "srun").chmod(0o755)
    path = os.pathsep.join([str(programs), str(packages / "bin"), accounts.environ["PATH"]])
    return own_cache(tmp_path) | {
        "PATH": path,
        "XMEM_BUDGET": "300",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }


def test_submitit_has_its_results_and_its_jobs_are_sized(
    accounts: Cluster, environ: dict[str, str], packages: Path, job_python: Path, tmp_path: Path
) -> None:
    submits = """
    import submitit
    def train(width):
        import torch
        torch.zeros(width << 20, device="cuda")
        return torch.cuda.max_memory_reserved()
    if __name__ == "__main__":
        executor = submitit.AutoExecutor(folder="logs")
        executor.update_parameters(timeout_min=5, slurm_gres="gpu:h200:1", slurm_partition="gpu")
        jobs = [executor.submit(train, 64), *executor.map_array(train, [16, 32])]
        print(*(job.job_id for job in jobs), *(job.result() >> 20 for job in jobs))
    """
    (tmp_path / "submits.py").write_text(textwrap.dedent(submits))
    (site,) = (packages / "lib").glob("python*/site-packages")
    only = tmp_path / "only"
    only.mkdir()
    for name in ("submitit", "cloudpickle", "typing_extensions.py"):
        (only / name).symlink_to(site / name)
    path = f"{only}{os.pathsep}{tmp_path}"
    done = accounts.run(str(job_python), "submits.py", cwd=tmp_path, PYTHONPATH=path, **environ)
    assert done.returncode == 0, done.stderr
    one, first, second, *reserved = done.stdout.split()
    assert reserved == ["256", "64", "128"]
    assert (first.partition("_")[2], second.partition("_")[2]) == ("0", "1")
    for job in (one, first.partition("_")[0]):
        assert "gres:gpu:l4:1" in accounts.ended(job)


def test_a_sweep_of_hydra_is_sized(
    accounts: Cluster, environ: dict[str, str], packages: Path, job_python: Path, tmp_path: Path
) -> None:
    sweeps = """
    import hydra
    @hydra.main(version_base=None)
    def train(config):
        import torch
        torch.zeros(config.width << 20, device="cuda")
    if __name__ == "__main__":
        train()
    """
    (tmp_path / "sweeps.py").write_text(textwrap.dedent(sweeps))
    (site,) = (packages / "lib").glob("python*/site-packages")
    only = tmp_path / "only"
    only.mkdir()
    for name in HYDRA:
        (only / name).symlink_to(site / name)
    launcher = [
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.partition=gpu",
        "hydra.launcher.timeout_min=5",
    ]
    asks = "+hydra.launcher.additional_parameters={gres: 'gpu:h200:1'}"
    command = [str(job_python), "sweeps.py", "-m", *launcher, asks, "+width=16,32"]
    done = accounts.run(*command, cwd=tmp_path, PYTHONPATH=str(only), **environ)
    assert done.returncode == 0, done.stderr
    (name,) = {
        path.name.partition("_")[0] for path in (tmp_path / "multirun").glob("*/*/.submitit/*_0")
    }
    assert "gres:gpu:l4:1" in accounts.ended(name)


def test_snakemake_runs_its_rule_in_a_job_that_is_sized(
    accounts: Cluster, environ: dict[str, str], job_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "Snakefile").write_text(
        f"""
rule train:
    output: "done.txt"
    resources: slurm_partition="gpu", runtime=10, mem_mb=4000, gres="gpu:h200:1"
    shell: "{job_python} train.py && scontrol show job $SLURM_JOB_ID >{{output}}"
"""
    )
    done = accounts.run("snakemake", "--executor", "slurm", "--jobs", "1", cwd=tmp_path, **environ)
    assert done.returncode == 0, done.stderr
    assert "gpu:l4" in (tmp_path / "done.txt").read_text()


def test_workers_of_dask_are_passed_on_at_once(
    accounts: Cluster, environ: dict[str, str], packages: Path, tmp_path: Path
) -> None:
    scales = """
    from dask.distributed import Client
    from dask_jobqueue import SLURMCluster
    if __name__ == "__main__":
        gpu = ["--gres=gpu:h200:1"]
        cluster = SLURMCluster(queue="gpu", cores=1, memory="2GB", walltime="00:10:00", job_extra_directives=gpu)
        cluster.scale(jobs=1)
        client = Client(cluster)
        print(client.submit(sum, [40, 2]).result())
        client.close()
        cluster.close()
    """
    (tmp_path / "scales.py").write_text(textwrap.dedent(scales))
    done = accounts.run(str(packages / "bin" / "python"), "scales.py", cwd=tmp_path, **environ)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    # no dry run, so no answer to keep
    assert not (tmp_path / "cache" / "xmem-slurm" / "estimates").exists()


def test_a_task_of_nextflow_is_submitted_by_a_script_without_a_name_of_its_own(
    accounts: Cluster, environ: dict[str, str], job_python: Path, tmp_path: Path
) -> None:
    """`sbatch .command.run`, in the task's folder: directives, functions and a trap; the last line
    starts it all."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / ".command.sh").write_text(f"#!/bin/bash -ue\n{job_python} train.py\n")
    (tmp_path / ".command.run").write_text(
        f"""#!/bin/bash
#SBATCH -J nf-train
#SBATCH -o {tmp_path}/.command.log
#SBATCH --no-requeue
#SBATCH --signal B:USR2@30
#SBATCH -p gpu
#SBATCH --gres=gpu:h200:1
set -e
on_exit() {{ printf -- $? >{tmp_path}/.exitcode; }}
nxf_main() {{
    trap on_exit EXIT
    cd {tmp_path}
    (/bin/bash -ue {tmp_path}/.command.sh) >.command.out 2>.command.err &
    wait $!
}}
nxf_main
"""
    )
    done = accounts.run("sbatch", ".command.run", cwd=tmp_path, **environ)
    number = done.stdout.removeprefix("Submitted batch job ").strip()
    assert number.isdecimal(), done.stderr
    shown = accounts.ended(number)
    assert "gres:gpu:l4:1" in shown
    assert (tmp_path / ".exitcode").read_text() == "0"


@pytest.mark.parametrize("launcher", ["SrunLauncher", "SingleNodeLauncher"])
def test_a_pool_of_parsl_s_workers_is_passed_on_at_once(
    launcher: str,
    accounts: Cluster,
    environ: dict[str, str],
    packages: Path,
    tmp_path: Path,
) -> None:
    asks = f"""
    import parsl
    from parsl.launchers import {launcher}
    from parsl.providers import SlurmProvider

    @parsl.python_app
    def total(numbers):
        return sum(numbers)

    if __name__ == "__main__":
        gpu = "#SBATCH --gres=gpu:h200:1"
        provider = SlurmProvider("gpu", scheduler_options=gpu, walltime="00:10:00", max_blocks=1,
                                 launcher={launcher}(), exclusive=False)
        executor = parsl.HighThroughputExecutor(
            address="127.0.0.1", max_workers_per_node=1, provider=provider
        )
        with parsl.load(parsl.Config(executors=[executor])):
            print(total([40, 2]).result())
    """
    (tmp_path / "asks.py").write_text(textwrap.dedent(asks))
    done = accounts.run(str(packages / "bin" / "python"), "asks.py", cwd=tmp_path, **environ)
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert not (tmp_path / "cache" / "xmem-slurm" / "estimates").exists()


RAY = """#!/bin/bash
#SBATCH -p gpu --cpus-per-task=1 --gres=gpu:h200:1
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
ip_head=127.0.0.1:6399
export ip_head
srun --nodes=1 --ntasks=1 -w "${nodes[0]}" ray start --head --node-ip-address=127.0.0.1 \\
    --port=6399 --num-cpus=4 --num-gpus=1 --include-dashboard=false --block &
until ray status --address=$ip_head; do sleep 1; done
python -u train.py
"""
"""After slurm-template.sh of Ray's documentation (2.60), of one node; it sleeps for 10 s, which may
not be enough on a busy machine."""
RAY_TRAIN = """
import os
import ray

ray.init(address=os.environ["ip_head"])

@ray.remote(num_gpus=0.5)
class Actor:
    def __init__(self, width):
        import torch
        self.held = torch.zeros(width << 20, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([self.held])
        for _ in range(4):
            self.held.sum().backward()
            optimizer.step()

    def reserved(self):
        import torch
        return torch.cuda.max_memory_reserved() >> 20

actors = [Actor.remote(16), Actor.remote(32)]
print(ray.get([actor.reserved.remote() for actor in actors]))
"""


def test_actors_of_ray_that_share_a_gpu_are_added_up(
    accounts: Cluster, environ: dict[str, str], packages: Path, job_python: Path, tmp_path: Path
) -> None:
    """Ray starts in the dry run as it does in the job, and its actors use the GPU there."""
    (site,) = (packages / "lib").glob("python*/site-packages")
    programs = tmp_path / "bin"
    (programs / "ray").write_text('#!/bin/sh\nexec python -m ray.scripts.scripts "$@"\n')
    (programs / "ray").chmod(0o755)
    (tmp_path / "train.py").write_text(RAY_TRAIN)
    (tmp_path / "job.sh").write_text(RAY)
    environ["PATH"] = os.pathsep.join([str(job_python.parent), environ["PATH"]])
    environ |= {"PYTHONPATH": str(site), "HOME": str(tmp_path)}
    done = accounts.run("sbatch", "--xmem-verbose", "job.sh", cwd=tmp_path, **environ)
    assert "processes that ran at once on one GPU are added up" in done.stderr, done.stderr
    number = done.stdout.removeprefix("Submitted batch job ").strip()
    assert "gres:gpu:l4:1" in accounts.run("scontrol", "show", "job", number).stdout
    accounts.run("scancel", number)


LIGHTNING = """
import signal
import time
from pathlib import Path

import lightning
import torch
from lightning.pytorch.plugins.environments import SLURMEnvironment


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 10)

    def training_step(self, batch, _):
        return torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def on_train_epoch_end(self):
        Path("epoch").write_text(str(self.current_epoch))
        time.sleep(0.05)  # there is time for the signal


data = torch.utils.data.TensorDataset(torch.randn(320, 64), torch.randint(0, 10, (320,)))
slurm = SLURMEnvironment(auto_requeue=True, requeue_signal=signal.SIGUSR1)
trainer = lightning.Trainer(
    max_epochs=200, accelerator="gpu", devices=1, plugins=[slurm], logger=False,
    enable_progress_bar=False,
)
net = Net()
trainer.fit(net, torch.utils.data.DataLoader(data, batch_size=32))
Path("ended").write_text(str(trainer.current_epoch))
"""


def test_a_job_that_lightning_requeues_is_the_one_that_was_sized(
    accounts: Cluster, environ: dict[str, str], trainer_python: Path, tmp_path: Path
) -> None:
    """Slurm keeps the changed script, so what was chosen holds for each start of the job."""
    (tmp_path / "train.py").write_text(LIGHTNING)
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -p gpu --gres=gpu:h200:1 --requeue --signal=SIGUSR1@90\n"
        f"srun {trainer_python} train.py\n"
    )
    done = accounts.run("sbatch", "--parsable", "job.sh", cwd=tmp_path, **environ)
    number = done.stdout.strip()
    assert number.isdecimal(), done.stderr
    wait_until((tmp_path / "epoch").exists)
    accounts.slurm("scancel", "--signal=USR1", number)  # as Slurm does before the time is up
    wait_until(lambda: "Restarts=1" in accounts.show(number))
    accounts.slurm("scontrol", "update", f"JobId={number}", "StartTime=now")  # Slurm waits 120 s
    shown = accounts.ended(number)
    assert ("gres:gpu:l4:1" in shown, "JobState=COMPLETED" in shown) == (True, True), shown
    assert (tmp_path / "ended").read_text() == "200"
