"""Jobs that wait, ask, miss something or hide: an estimate or a clear reason, within the time that
was given."""

import os
from pathlib import Path

import pytest

from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import Estimate, estimate

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow(
        covers=["xmem_slurm/probe/*course*", "xmem_slurm/probe/*record*", "xmem_slurm/dryrun/*"]
    ),
]

H200 = load_catalogue()["h200"]
SETUP = """
import sys, time, urllib.request
import torch
model = torch.nn.Linear(4096, 4096, device="cuda")
optimizer = torch.optim.AdamW(model.parameters())

def step(rows=64):
    loss = model(torch.ones(rows, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""


def dry_run(
    folder: Path,
    job_python: Path,
    code: str,
    script: str = "python train.py",
    seconds: float = 60,
    gpus: int = 1,
) -> Estimate:
    (folder / "train.py").write_text(code)
    environ = {"HOME": str(folder), "PATH": f"{job_python.parent}:{os.environ['PATH']}"}
    job = Job(f"#!/bin/bash\n{script}\n".encode(), (), folder, environ, (gpus,))
    return estimate(
        runner.run(DryRunOrder.of(job, H200, Budget(seconds=seconds))).traces, "h200", H200
    )


ESTIMATED = {
    "waits until the loss is small, which it is at once": "while step().item() > 1e-3: pass\nfor _ "
    "in range(9): step()",
    "waits for a value that never comes": "while step().item() < 1: pass",
    "fills the GPU": "rows = torch.cuda.mem_get_info()[0] // 2**24\nfor _ in range(9): step(rows)",
    "fails when it has trained": "for _ in range(5): step()\nopen('validation.bin')",
    "asks when it has trained": "for _ in range(5): step()\ninput('Save? ')",
    "only infers": "with torch.no_grad():\n    for _ in range(9): model(torch.ones(64, 4096, "
    "device='cuda'))",
}


@pytest.mark.usefixtures("without_sandbox")
@pytest.mark.parametrize("case", ESTIMATED)
def test_is_estimated(case: str, warm_python: Path, tmp_path: Path) -> None:
    found = dry_run(tmp_path, warm_python, SETUP + ESTIMATED[case])
    assert found.largest.replay.peak_allocated_bytes >= 4096 * 4096 * 4
    stopped = [reason for reason in found.reasons if reason.startswith("the script stopped with")]
    assert bool(stopped) == ("when it has trained" in case)


NVCC = """
import os
os.environ["CUDA_HOME"] = "/nowhere"
open("a.cu", "w").close()
from torch.utils import cpp_extension
"""
OF_THE_NETWORK = {
    "a download": (
        "urllib.request.urlopen('http://example.org/data.tar')",
        "URLError: .*name resolution",
    ),
    "a hub": (
        "torch.hub.load('pytorch/vision', 'resnet18')",
        "RuntimeError: .*no internet connection",
    ),
}
NOT_ESTIMATED = {
    "no data set": ("open('corpus/train.bin')", "FileNotFoundError: .*corpus/train.bin"),
    "an extension that nobody built": (
        "import flash_attn_2_cuda",
        "ModuleNotFoundError: .*'flash_attn_2_cuda'",
    ),
    "an extension for another machine": (
        "open('mine.so', 'wb').write(b'?' * 4096)\nsys.path.insert(0, '.')\nimport mine",
        "ImportError: .*mine.so: invalid ELF header",
    ),
    "an extension that nvcc would build": (
        NVCC + "cpp_extension.load('mine', ['a.cu'])",
        "RuntimeError: (Ninja is required|Error building extension 'mine')",
    ),
    "an exit": ("exit(3)", "0 optimizer steps with SystemExit: 3"),
    "a question": (
        "answer = input('Overwrite the checkpoint? [y/N] ')",
        "EOFError: EOF when reading a line",
    ),
    "a version": (
        "assert torch.__version__ == '1.7.0'",
        r"AssertionError: assert torch.__version__ == '1.7.0' \(train.py:\d+\)",
    ),
    "a value that never comes": (
        "assert step().item() > 0, 'no loss'",
        "1 optimizer step with AssertionError: no loss",
    ),
}


def test_a_script_that_changes_its_parameters_itself_has_no_steps_to_wait_for(
    job_python: Path, tmp_path: Path
) -> None:
    code = """
import torch
model = torch.nn.Linear(4096, 4096, device="cuda")
while True:
    model(torch.ones(64, 4096, device="cuda")).sum().backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
"""
    found = dry_run(tmp_path, job_python, code, seconds=20)
    assert found.largest.trace.growing
    assert found.largest.replay.peak_allocated_bytes >= 2 * 4096 * 4096 * 4


@pytest.mark.parametrize("case", OF_THE_NETWORK)
def test_says_that_there_is_no_network(case: str, job_python: Path, tmp_path: Path) -> None:
    code, why = OF_THE_NETWORK[case]
    with pytest.raises(NoEstimate, match=why):
        dry_run(tmp_path, job_python, SETUP + code)


@pytest.mark.usefixtures("without_sandbox")
@pytest.mark.parametrize("case", NOT_ESTIMATED)
def test_says_what_was_missing(case: str, warm_python: Path, tmp_path: Path) -> None:
    code, why = NOT_ESTIMATED[case]
    with pytest.raises(NoEstimate, match=why):
        dry_run(tmp_path, warm_python, SETUP + code)


TIME_BOXED = {
    "prepares its data for half an hour": (
        "import time, torch\ntime.sleep(1800)",
        "time limit before any GPU",
    ),
    "waits on a value and never steps": (
        SETUP + "while model.weight.sum().item() != 1: pass",
        "0 optimizer steps",
    ),
}


@pytest.mark.parametrize("case", TIME_BOXED)
def test_ends_in_time(case: str, job_python: Path, tmp_path: Path) -> None:
    code, why = TIME_BOXED[case]
    with pytest.raises(NoEstimate, match=why):
        dry_run(tmp_path, job_python, code, seconds=20)


@pytest.mark.parametrize("script", ["python -I train.py", "python -E train.py"])
def test_what_hides_from_the_probe_is_named(script: str, job_python: Path, tmp_path: Path) -> None:
    code = (
        "try:\n    import torch\nexcept ImportError:  # it links to CUDA libraries that may not "
        "be here\n    pass"
    )
    with pytest.raises(NoEstimate, match="the script did not load torch"):
        dry_run(tmp_path, job_python, code, script)


@pytest.mark.usefixtures("without_sandbox")
def test_of_runs_one_after_another_the_largest_counts(warm_python: Path, tmp_path: Path) -> None:
    code = SETUP + "for _ in range(5): step(int(sys.argv[1]))"
    script = "for rows in 8 4096 16; do python train.py $rows; done"
    found = dry_run(tmp_path, warm_python, code, script)
    assert [rank.trace.argv[-1] for rank in found.ranks if rank is found.largest] == ["4096"]


@pytest.mark.usefixtures("without_sandbox")
def test_runs_at_once_on_one_gpu_add_up(warm_python: Path, tmp_path: Path) -> None:
    code = (
        SETUP + "for _ in range(9): step(int(sys.argv[1]))\ntime.sleep(5)\nstep(int(sys.argv[1]))"
    )
    alone = dry_run(tmp_path, warm_python, code, "python train.py 4096", seconds=180)
    both = dry_run(
        tmp_path, warm_python, code, "python train.py 4096 & python train.py 8 & wait", seconds=180
    )
    small = min(rank.required_bytes - rank.beside_bytes for rank in both.ranks)
    assert both.required_bytes == alone.required_bytes + small
    assert "processes that ran at once on one GPU are added up" in both.reasons
    assert not both.fits(H200.model_copy(update={"total_bytes": both.required_bytes - 2**21}))
    assert both.fits(H200.model_copy(update={"total_bytes": both.required_bytes + 2**21}))


@pytest.mark.usefixtures("without_sandbox")
def test_runs_at_once_on_gpus_of_their_own_do_not(warm_python: Path, tmp_path: Path) -> None:
    code = SETUP + "for _ in range(9): step(8)\ntime.sleep(5)\nstep(8)"
    script = (
        "CUDA_VISIBLE_DEVICES=0 python train.py & CUDA_VISIBLE_DEVICES=1 python train.py & wait"
    )
    found = dry_run(tmp_path, warm_python, code, script, seconds=180, gpus=2)
    assert [rank.beside_bytes for rank in found.ranks] == [0, 0]


LAUNCHED = {
    "python -c": "python -c \"exec(open('train.py').read())\"",
    "a module": "python -um train",
    "srun": "srun --ntasks=1 --gpus=1 python -u train.py",
    "srun of a shell": "srun bash -c 'python train.py'",
    "a function in a loop": "train() { for n in 1 2; do python train.py; done; }\ntrain",
    "exec": "exec python train.py",
    "another script": "echo 'exec python train.py' > run.sh\nsource ./run.sh",
    "site commands that are not here": "module purge\nml cuda/12\nspack load x\npython train.py",
    "no PYTHONPATH": "unset PYTHONPATH\npython train.py",
    "exec in an environment without PYTHONPATH": "exec env -u PYTHONPATH python train.py",
    "another shell that unsets it": "echo 'unset PYTHONPATH; exec python train.py' > run.sh\nbash "
    "run.sh",
    "in the background": "python train.py &\nwait $!",
    "timeout": "timeout 60 python train.py",
}


OF_PYTHON = (
    "a module",
    "exec",
    "no PYTHONPATH",
    "exec in an environment without PYTHONPATH",
    "another shell that unsets it",
)
"""What is of the start of a Python, and not of what starts it."""


@pytest.mark.parametrize("way", LAUNCHED)
def test_is_estimated_however_it_is_started(
    way: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if way not in OF_PYTHON:
        request.getfixturevalue("without_sandbox")
    python = request.getfixturevalue("job_python" if way in OF_PYTHON else "warm_python")
    found = dry_run(tmp_path, python, SETUP + "for _ in range(5): step()", LAUNCHED[way])
    assert found.largest.trace.steps == 5
