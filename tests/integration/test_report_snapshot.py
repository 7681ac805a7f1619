"""The torch snapshot that the report writes is one that torch's own viewer reads."""

import subprocess
from pathlib import Path

import pytest

from xmem_slurm import trace
from xmem_slurm.estimate import estimate
from xmem_slurm.placement import Placement
from xmem_slurm.report import snapshot
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing import Sizing

GPT2 = trace.read(Path(__file__).parents[1] / "data" / "gpt2-small.json.gz")


@pytest.mark.torch
def test_torch_draws_it(job_python: Path, tmp_path: Path) -> None:
    sizing = Sizing(estimate([GPT2], "l4", load_catalogue()["l4"]), Placement([], None), 1.0)
    snapshot.write(tmp_path / "run.pickle", sizing)
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch = subprocess.run([job_python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
    viewer = Path(torch, "cuda", "_memory_viz.py")
    subprocess.run([job_python, viewer, "trace_plot", "run.pickle", "-o", "plot.html"], cwd=tmp_path, check=True)
    assert (tmp_path / "plot.html").stat().st_size > 100_000
    drawn = subprocess.run(
        [job_python, viewer, "trace", "run.pickle"], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    assert "alloc" in drawn
