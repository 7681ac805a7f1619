"""Each block of Python on the page about it runs, one after the other, as in a notebook."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TRAIN, write_job

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OPTION = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int)\nN = p.parse_args()"


@pytest.mark.torch
def test_the_page_is_a_notebook(job_python: Path, tmp_path: Path) -> None:
    train = f"{OPTION}.batch_size\n{TRAIN}".replace("zeros(64", "zeros(N")
    write_job(tmp_path, job_python, "--gres=gpu:1", train=train)
    path = os.pathsep.join([str(job_python.parent), os.environ["PATH"]])
    environ = {**os.environ, "PATH": path}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(BLOCKS)],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, batch, wrong = done.stdout.splitlines()
    assert first == re.findall(r"print\(found\) +# (.*)", PAGE)[0]
    assert batch == "128"
    assert wrong.startswith("--gpu no-such-gpu: not in the GPU catalogue")
    assert "<svg" in (tmp_path / "page.html").read_text()
