"""Each block of Python on the page about it runs, one after the other, as in a notebook; and so
does the notebook."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import TRAIN, write_job

PAGE = (Path(__file__).parents[3] / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OPTION = (
    "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', "
    "type=int)\nN = p.parse_args()"
)


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


AS_JUPYTER = """
import ast, json, sys
names = {}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)
        shown = eval(compile(last, "cell", "eval"), names) if last else None
        if hasattr(shown, "_repr_html_"):
            print(shown._repr_html_()[:14])
"""
"""Runs the code cells, and shows the value of a cell's last line, as Jupyter does; which is no part
of the tests."""


@pytest.mark.torch
@pytest.mark.slow(covers=["examples/estimate.ipynb", "xmem_slurm/api.py"])
def test_the_notebook_runs(job_python: Path, tmp_path: Path) -> None:
    notebook = Path(__file__).parents[3] / "examples" / "estimate.ipynb"
    assert all(cell.get("outputs", []) == [] for cell in json.loads(notebook.read_text())["cells"])
    environ = {**os.environ, "PATH": os.pathsep.join([str(job_python.parent), os.environ["PATH"]])}
    run = [sys.executable, "-c", AS_JUPYTER, notebook]
    done = subprocess.run(
        run, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "<iframe srcdoc" in done.stdout
    needed = re.findall(
        r"--batch-size (\d+)( --amp)? +([\d.]+) (\w+) of GPU memory needed", done.stdout
    )
    assert [(batch, amp) for batch, amp, _, _ in needed] == [
        ("32", ""),
        ("64", ""),
        ("64", " --amp"),
    ]
    less, more, mixed = (
        float(size) * (1024 if unit == "GiB" else 1) for _, _, size, unit in needed
    )
    assert less < more > mixed
