"""Tasks of an array may differ where anything of the user's names their number, or where two were
seen to differ."""

from dataclasses import replace
from pathlib import Path

from tests.unit.report.test_report import GPT2
from xmem_slurm.dryrun import array_tasks
from xmem_slurm.dryrun.job import Job
from xmem_slurm.trace import File, Trace


def job(folder: Path, script: bytes = b"#!/bin/sh\npython train.py\n") -> Job:
    return Job(script, (), folder, {})


def read(*paths: Path) -> Trace:
    return replace(GPT2, files=[File("R", 0, 0, str(path)) for path in paths])


def test_alike(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    task = [read(tmp_path / "train.py")]
    assert not array_tasks.may_differ(job(tmp_path), [task, task])


def test_the_script_one_that_it_runs_or_a_python_file_names_the_number(tmp_path: Path) -> None:
    assert array_tasks.may_differ(
        job(tmp_path, b"#!/bin/sh\npython train.py $SLURM_ARRAY_TASK_ID\n"), []
    )
    (tmp_path / "run.sh").write_text("python train.py --seed ${SLURM_ARRAY_TASK_ID}\n")
    assert array_tasks.may_differ(job(tmp_path, b"#!/bin/sh\n. ./run.sh\n"), [])
    (tmp_path / "train.py").write_text("import os; number = os.environ['SLURM_ARRAY_TASK_ID']\n")
    assert array_tasks.may_differ(job(tmp_path), [[read(tmp_path / "train.py")]])


def test_what_installed_packages_name_is_no_sign(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "cluster.py"
    package.parent.mkdir()
    package.write_text("number = os.environ.get('SLURM_ARRAY_TASK_ID')\n")
    assert not array_tasks.may_differ(job(tmp_path), [[read(package)], [read(package)]])


def test_other_files_or_another_need(tmp_path: Path) -> None:
    one, other = tmp_path / "0.pkl", tmp_path / "1.pkl"
    assert array_tasks.may_differ(job(tmp_path), [[read(one)], [read(other)]])
    larger = replace(read(one), recorded={"reserved_bytes": 2 * GPT2.recorded["reserved_bytes"]})
    assert array_tasks.may_differ(job(tmp_path), [[read(one)], [larger]])
