"""Job scripts that set PATH, PYTHONPATH or LD_PRELOAD anew, or call Slurm by its path, are seen all
the same."""

import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job, from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.units import GIB, MIB

GPU = load_catalogue()["h100-sxm5-80gb"]
BUDGET = Budget(seconds=120, memory_bytes=4 * GIB, scratch_bytes=256 * MIB, processes=256)
TRAIN = "import torch\nprint(torch.ones(1 << 20, device='cuda').shape)\n"


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a job's folder, with a home beside it."""
    parent = Path(tempfile.mkdtemp(prefix="reach-test-", dir="/tmp"))
    for name in ("job", "home"):
        (parent / name).mkdir()
    (parent / "job" / "train.py").write_text(TRAIN)
    monkeypatch.chdir(parent / "job")
    yield parent / "job"
    shutil.rmtree(parent)


def job(folder: Path, script: str, *options: str, **environ: str) -> Job:
    """What sbatch would be given from this folder."""
    base = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder.parent / "home"),
        "LANG": "C",
    }
    base["PYTHON"] = os.environ.get("XMEM_TEST_PYTHON", "")
    return from_submission(
        Submission(("--gres=gpu:1", *options, "job.sh"), base | environ, script.encode())
    )


def why_not(found: Job) -> str:
    """Return why there is no estimate."""
    with pytest.raises(NoEstimate) as caught:
        assert runner.run(DryRunOrder.of(found, GPU, BUDGET)).traces
    return str(caught.value)


TASK = "-n1 /bin/sh -c 'echo rank=$SLURM_PROCID; exit 9'"
SRUN = {
    "by its path": f"#!/bin/bash\n/usr/bin/srun {TASK}",
    "by its path, in sh": f"#!/bin/sh\n/bin/srun {TASK}",
    "a PATH begun anew, in sh": f"#!/bin/sh\nexport PATH=/usr/bin:/bin\nsrun {TASK}",
    "a login shell": f"#!/bin/bash -l\nsrun {TASK}",
    "/etc/profile": f"#!/bin/sh\n. /etc/profile\nsrun {TASK}",
    "an empty environment": f"#!/bin/bash\nenv -i /usr/bin/srun {TASK}",
}


@pytest.mark.slurm
@pytest.mark.parametrize("way", SRUN)
def test_srun_is_ours_however_it_is_called(folder: Path, way: str) -> None:
    said = why_not(job(folder, SRUN[way] + "\n"))
    assert "ended with code 9" in said
    assert said.endswith("rank=0")


@pytest.mark.slurm
def test_slurm_s_other_commands_answer_by_their_path(folder: Path) -> None:
    script = "#!/bin/sh\n/usr/bin/squeue -h && /usr/bin/scontrol show hostnames\nexit 9\n"
    assert why_not(job(folder, script)).endswith(f": {os.uname().nodename}")


PYTHONPATH = {
    "before a command": "PYTHONPATH=.. $PYTHON train.py",
    "for the script": "export PYTHONPATH=$PWD\n$PYTHON train.py",
    "put before": "export PYTHONPATH=$PWD:$PYTHONPATH\n$PYTHON train.py",
    "taken away": "unset PYTHONPATH\n$PYTHON train.py",
}


@pytest.mark.torch
@pytest.mark.parametrize("way", PYTHONPATH)
def test_torch_is_seen_whatever_becomes_of_pythonpath(folder: Path, way: str) -> None:
    found = runner.run(
        DryRunOrder.of(job(folder, f"#!/bin/bash\n{PYTHONPATH[way]}\n"), GPU, BUDGET)
    )
    assert found.outcome.returncode == 0, found.outcome.output_tail.decode()
    assert [bool(trace.allocations) for trace in found.traces] == [True]


def test_a_program_that_is_no_python_keeps_its_pythonpath(folder: Path) -> None:
    script = (
        "#!/bin/bash\nunset PYTHONPATH\nsh -c 'echo ${PYTHONPATH-none}' && env | grep -c "
        "^PYTHONPATH\nexit 9\n"
    )
    assert why_not(job(folder, script)).endswith(": 0")


def test_the_job_s_own_preload_stays(folder: Path) -> None:
    script = "#!/bin/bash\necho ${LD_PRELOAD%%:*}\nexit 9\n"
    own = "/usr/lib/x86_64-linux-gnu/libm.so.6"
    assert why_not(job(folder, script, LD_PRELOAD=own)).endswith(f": {own}")


def test_without_a_compiler_pythonpath_alone_leads_there(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder.parent / "home"))
    monkeypatch.setenv("PATH", str(folder))
    script = "#!/bin/bash\necho ${LD_PRELOAD-none} ${PYTHONPATH##*/}\nexit 9\n"
    assert why_not(job(folder, script)).endswith(": none probe")


@pytest.mark.torch
@pytest.mark.parametrize("option", ["-I", "-E"])
def test_a_python_that_reads_no_environment_is_named(folder: Path, option: str) -> None:
    said = why_not(job(folder, f"#!/bin/bash\n$PYTHON {option} train.py || true\n"))
    assert "python -I" in said
    assert "-E" in said


def test_torch_without_cuda_libraries_says_that_python_was_not_reached(folder: Path) -> None:
    error = (
        "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"
    )
    said = why_not(job(folder, f"#!/bin/bash\necho '{error}' >&2\nexit 1\n"))
    assert "replaces PYTHONPATH and LD_PRELOAD" in said
    assert error in said


def test_a_line_that_failed_before_is_named(folder: Path) -> None:
    said = why_not(job(folder, "#!/bin/bash\nconda activate ml\necho no such data\nexit 9\n"))
    assert "; before that failed line 2: conda: command not found" in said


def test_the_python_that_lacks_a_module_is_named(folder: Path) -> None:
    script = "#!/bin/bash\nconda activate ml\n$PYTHON -c 'import no_such_module'\n"
    failed, _, python = why_not(job(folder, script)).partition("; the script went on with ")
    assert failed.endswith("; before that failed line 2: conda: command not found")
    assert Path(python).is_absolute()


@pytest.mark.torch
def test_a_script_that_went_on_without_its_environment_is_not_surely_known(folder: Path) -> None:
    found = runner.run(
        DryRunOrder.of(
            job(folder, "#!/bin/bash\nsource miniconda3/bin/activate ml\n$PYTHON train.py\n"),
            GPU,
            BUDGET,
        )
    )
    (noted,) = [
        noted for trace in found.traces for noted in trace.doubts if noted.doubt is Doubt.SET_UP
    ]
    failed, _, python = noted.detail.partition("; the script went on with ")
    assert failed == "line 2: miniconda3/bin/activate: No such file or directory"
    assert Path(python).is_absolute()


def test_a_script_that_fails_on_unset_variables_finds_slurm_s(folder: Path) -> None:
    script = (
        "#!/bin/bash\nset -u\necho $SLURM_JOB_PARTITION $SLURM_CLUSTER_NAME "
        "$SLURM_MEM_PER_NODE $SLURM_JOB_ACCOUNT"
    )
    script += (
        " $SLURM_JOB_USER $((SLURM_JOB_END_TIME > SLURM_JOB_START_TIME)) $((SLURM_TASK_PID "
        "== $$))\nexit 9\n"
    )
    said = why_not(job(folder, script, "--mem=2G", "--account=physics"))
    assert said.endswith(f": dry-run dry-run 2048 physics {pwd.getpwuid(os.getuid()).pw_name} 1 1")
