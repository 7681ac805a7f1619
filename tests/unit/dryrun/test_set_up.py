"""A line that fails while a script goes on is found in what real shells print."""

import shutil
import subprocess
from pathlib import Path

import pytest

from xmem_slurm.dryrun import set_up


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("conda activate ml", "conda"),
        (". /nowhere/bin/activate", "/nowhere/bin/activate"),
        ("echo well >/nowhere/log", "/nowhere/log"),
        ("ls /nowhere", ""),
        ("echo 'train.py: line 3: x: command not found'", ""),
    ],
)
def test_what_a_shell_says_of_a_line_is_found(
    shell: str, line: str, said: str, tmp_path: Path
) -> None:
    """And what programs say is theirs."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} here")
    script = tmp_path / "slurm_script"
    script.write_text(f"set -u\n{line}\n")
    ran = subprocess.run(
        [shell, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    found = set_up.failures(b"before\n" + ran.stdout + ran.stdout)
    assert len(found) == bool(said)
    assert all(line.startswith("line 2: ") and said in line for line in found)


@pytest.mark.parametrize(
    "line",
    [
        "EnvironmentNameNotFound: Could not find conda environment: ml",
        "CondaError: Run 'conda init' before 'conda activate'",
        'Lmod has detected the following error:  The following module(s) are unknown: "cuda/99"',
        "ERROR: Unable to locate a modulefile for 'cuda/99'",
    ],
)
def test_what_environment_tools_say_is_found(line: str) -> None:
    assert set_up.failures(f"well\n{line}\nepoch 1\n".encode()) == [line]


def test_the_first_few_are_named() -> None:
    said = [f"slurm_script: line {n}: tool{n}: command not found" for n in range(2, 7)]
    assert set_up.failures("\n".join(said).encode()) == [
        line.removeprefix("slurm_script: ") for line in said[:3]
    ]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("line 3: pyhton: command not found", "python"),
        ("3: pyton3: not found", "python3"),
        ("line 3: command not found: torchrunn", "torchrun"),
        ("line 3: accelarate: command not found", ""),
        *(
            (f"line 3: {name}: command not found", "")
            for name in ("python", "python3", "python2", "ipython", "jython", "prun", "mpirun", "x")
        ),
        ("line 3: pyhton: No such file or directory", ""),
    ],
)
def test_a_misspelt_name_is_told_from_a_program_that_is_elsewhere(line: str, meant: str) -> None:
    assert set_up.meant(set_up.not_found(line)) == meant


def test_a_launcher_that_another_command_did_not_find_is_found() -> None:
    said = "epoch 1\ntorchrun: command not found\nnvidia-smi: command not found\n"
    assert set_up.failures(said.encode()) == ["torchrun: command not found"]
