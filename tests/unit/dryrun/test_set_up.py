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
    found = set_up.failure(b"before\n" + ran.stdout)
    assert found.startswith("line 2: ") == bool(said)
    assert said in found


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
    assert set_up.failure(f"well\n{line}\nepoch 1\n".encode()) == line
