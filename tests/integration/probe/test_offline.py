"""Programs that fetch over the network, in a dry run, which has none: once, and what they were
asked for is said."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.units import GIB, MIB

BUDGET = Budget(seconds=60, memory_bytes=4 * GIB, scratch_bytes=256 * MIB, processes=256)
PROGRAM = '#!/bin/sh\necho "ran $0 $*"\nexit 6\n'


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a job's folder, in which `bin` has programs that fail like those that reach nobody."""
    job = Path(tempfile.mkdtemp(prefix="offline-test-", dir="/tmp"))
    (job / "bin").mkdir()
    for name in ("curl", "wget", "ssh", "pip"):
        (job / "bin" / name).write_text(PROGRAM)
        (job / "bin" / name).chmod(0o755)
    yield job
    shutil.rmtree(job)


def why_not(folder: Path, script: str, path: str = "/usr/bin:/bin") -> str:
    """Return why there is no estimate."""
    text = f"#!/bin/sh\ncd {folder}\n{script}\n"
    job = from_submission(
        Submission(("--gres=gpu:1", "job.sh"), {"PATH": path, "HOME": str(folder)}, text.encode())
    )
    with pytest.raises(NoEstimate) as caught:
        assert runner.run(DryRunOrder.of(job, load_catalogue()["l4"], BUDGET)).traces
    return str(caught.value)


ASKED = {
    "curl -fO --retry 9 https://host/a.tar": (
        "curl -fO --retry 9 https://host/a.tar --retry 0",
        "https://host/a.tar",
    ),
    "wget -t 20 -- http://host/a": ("wget -t 20 --tries=1 -- http://host/a", "http://host/a"),
    "ssh node2 python train.py": ("ssh node2 python train.py", "ssh node2 python train.py"),
    "pip install einops": ("pip install einops", "pip install einops"),
}


@pytest.mark.parametrize("command", ASKED)
def test_what_fetches_tries_once_and_is_named(folder: Path, command: str) -> None:
    ran, asked = ASKED[command]
    said = why_not(folder, f"set -e\n{command}\necho not reached", f"{folder}/bin:/usr/bin:/bin")
    assert f"ended with code 6 before any GPU memory was used: ran {folder}/bin/{ran};" in said
    assert said.endswith(f"; the script had asked for {asked}, and a dry run has no network")


@pytest.mark.parametrize(
    "command", ["curl --retry 9 http://localhost:8000/health", "wget 127.0.0.1/a", "pip list"]
)
def test_what_needs_no_network_is_as_it_was_written(folder: Path, command: str) -> None:
    said = why_not(folder, f"set -e\n{command}", f"{folder}/bin:/usr/bin:/bin")
    assert said.endswith(f": ran {folder}/bin/{command}")


def test_what_is_not_on_this_machine_is_not_there(folder: Path) -> None:
    script = "command -v gdown || echo none\nexit 9"
    assert why_not(folder, script, f"{folder}/bin").endswith(": none")
    assert "none" not in why_not(folder, script.replace("gdown", "curl"), f"{folder}/bin")


def test_git_works_on_what_is_here(folder: Path) -> None:
    """What fails of it without the network is said only if it is what the script died of, or may
    have died of."""
    commit = "git -c user.name=a -c user.email=b commit -q --allow-empty -m fetch"
    script = (
        f"set -e\ngit init -q here\n(cd here; {commit})\ngit clone -q here there 2>&1\ngit -C "
        "there log --format=%s"
    )
    assert why_not(folder, f"{script}\nexit 9").endswith(": fetch")
    said = why_not(folder, f"{script}\ngit clone https://host.invalid/a || exit 8")
    assert "ended with code 8" in said
    assert said.endswith(
        "; the script had asked for https://host.invalid/a, and a dry run has no network"
    )


def test_a_loop_that_waits_for_the_network_is_named_at_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.BUDGET", Budget(seconds=4))
    said = why_not(
        folder, "until wget http://host/a; do sleep 1; done", f"{folder}/bin:/usr/bin:/bin"
    )
    assert "time limit" in said
    assert said.endswith("; the script had asked for http://host/a, and a dry run has no network")


def test_python_packages_go_by_what_is_here_where_the_user_says_nothing_else(folder: Path) -> None:
    ask = 'echo "$HF_HUB_OFFLINE $WANDB_MODE $WANDB_CONSOLE"; exit 9'
    assert why_not(folder, ask).endswith(": 1 offline off")
    assert why_not(folder, f"export WANDB_MODE=disabled\n{ask}").endswith(": 1 disabled off")


def test_a_data_set_that_is_not_here_is_to_be_loaded_once(folder: Path) -> None:
    words = "ConnectionError: Couldn't reach 'stanfordnlp/imdb' on the Hub (OfflineModeIsEnabled)"
    said = why_not(folder, f'echo "{words}"; exit 1')
    assert said.endswith(
        "; a dry run has no network: load_dataset('stanfordnlp/imdb') once on the login node"
    )


@pytest.mark.torch
@pytest.mark.parametrize(
    ("call", "command"),
    [
        ("transformers.AutoModel.from_pretrained('a/model')", "hf download a/model"),
        (
            "huggingface_hub.snapshot_download('a/set', repo_type='dataset')",
            "hf download --repo-type dataset a/set",
        ),
    ],
)
def test_what_a_hub_has_is_to_be_fetched_first(
    folder: Path, job_python: Path, call: str, command: str
) -> None:
    error = error_of(
        folder, f"import torch, huggingface_hub, transformers\n{call}\n", f"{job_python} train.py"
    )
    assert error.endswith(
        f"(train.py:2); a dry run has no network: `{command}` on the login node first"
    )


@pytest.mark.torch
def test_data_that_was_not_fetched_explains_an_error_of_training(
    folder: Path, job_python: Path
) -> None:
    train = "import torch\nx = torch.ones(9, device='cuda')\nopen('data.bin')\n"
    error = error_of(folder, train, f"wget http://host/data.bin\n{job_python} train.py")
    assert error.startswith("FileNotFoundError")
    assert error.endswith(
        "; the script had asked for http://host/data.bin, and a dry run has no network"
    )


def error_of(folder: Path, train: str, script: str) -> str:
    """Return what `train.py` ended with."""
    (folder / "train.py").write_text(train)
    environ = {"PATH": f"{folder}/bin:/usr/bin:/bin", "HOME": str(folder)}
    text = f"#!/bin/sh\ncd {folder}\n{script}\n".encode()
    job = from_submission(Submission(("--gres=gpu:1", "job.sh"), environ, text))
    (found,) = runner.run(DryRunOrder.of(job, load_catalogue()["l4"], BUDGET)).traces
    assert found.error is not None
    return found.error
