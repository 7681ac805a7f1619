"""Every template's script is taken by a real Slurm, with the GPU in it that was chosen."""

import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, TRAIN, UNSANDBOXED, XMEM_SLURM, Cluster, as_of_22_05

OPTIONS = {
    "plain": (),
    "torchrun": (),
    "multi-node": (),
    "apptainer": ("--set", "image=none.sif"),
    "pyxis": ("--set", "image=nvcr.io#nvidia/pytorch:25.01-py3"),
    "checkpoint-requeue": (),
    "sweep": ("--grid", "width=1"),
}
CHOSEN = {"apptainer": "h200:1", "pyxis": "h200:1", "torchrun": "l4:2", "multi-node": "l4:2"}


@pytest.mark.slurm
@pytest.mark.torch
def test_every_template_is_submitted(cluster: Cluster, warm_python: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    path = os.pathsep.join([str(warm_python.parent), cluster.environ["PATH"]])
    environ = cluster.environ | {"PATH": path, "SBATCH_OUTPUT": os.devnull}

    def run(*command: str, stdin: str | None = None) -> str:
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environ,
            input=stdin,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    listed = run(*UNSANDBOXED, "xmem_slurm.cli.main", "generate", "--list")
    assert [line.split()[0] for line in listed.splitlines()] == sorted(OPTIONS)
    for name, options in OPTIONS.items():
        command = ["python", "train.py", *(["{width}"] if name == "sweep" else [])]
        script = run(
            *UNSANDBOXED,
            "xmem_slurm.cli.main",
            "generate",
            "--template",
            name,
            *options,
            "--",
            *command,
        )
        job = re.findall(r"\d+", run("sbatch", "--hold", stdin=script))[0]
        shown = as_of_22_05(run("scontrol", "show", "job", job))
        assert f"TresPerNode=gres:gpu:{CHOSEN.get(name, 'l4:1')}" in shown
        run("scancel", job)
    done = run(
        "sbatch",
        "--wait",
        stdin=run(
            *UNSANDBOXED, "xmem_slurm.cli.main", "generate", "--", "python", "-c", "print(1)"
        ),
    )
    assert "Submitted" in done


@pytest.mark.slurm
@pytest.mark.parametrize(
    ("command", "ends"),
    [
        (
            (
                "bash",
                "-c",
                "trap 'touch saved; exit 3' USR1; touch ready; while :; do sleep 0.1; done",
            ),
            "Restarts=1",
        ),
        (("bash", "-c", "touch ready; exec sleep 600"), "JobState=FAILED"),
    ],
    ids=["saves", "cannot save"],
)
def test_a_job_is_queued_again_only_after_a_checkpoint(
    cluster: Cluster, tmp_path: Path, command: Sequence[str], ends: str
) -> None:
    def run(*words: str | Path, stdin: str | None = None) -> str:
        return subprocess.run(
            words,
            cwd=tmp_path,
            env=cluster.environ,
            input=stdin,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    script = run(
        XMEM_SLURM, "generate", "--template", "checkpoint-requeue", "--budget=3", "--", *command
    )
    job = re.findall(r"\d+", run("sbatch", stdin=script))[0]
    wait_for((tmp_path / "ready").exists)
    run("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: ends in run("scontrol", "show", "job", job))
    assert (tmp_path / "saved").exists() == (ends == "Restarts=1")
    run("scancel", job)


def wait_for(happened: Callable[[], bool]) -> None:
    until = time.monotonic() + 90
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.3)


def test_scripts_are_written_to_a_folder_and_nothing_is_overwritten(tmp_path: Path) -> None:
    environ = {**os.environ, "XMEM_SITE": str(EXAMPLE_SITE)}
    command = [XMEM_SLURM, "generate", "--output", "jobs", "--", "true"]
    for code, told in ((0, "not estimated"), (2, "nothing is overwritten")):
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, check=False, capture_output=True, text=True
        )
        assert done.returncode == code
        assert told in done.stderr
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["plain-h200.sh"]
