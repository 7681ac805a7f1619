"""The torch snapshot that the report writes is one that torch's own viewer reads."""

import dataclasses
import subprocess
from pathlib import Path

import pytest

from xmem_slurm import trace, trace_file
from xmem_slurm.report import snapshot
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.placement import Placement
from xmem_slurm.sizing.sizing import Sizing

GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")

FLAME_GRAPH = """
import pickle, runpy, sys
print(runpy.run_path(sys.argv[1])["memory"](pickle.load(open("run.pickle", "rb")), lambda lines: lines))
"""
"""The words of the graph; the program that draws them would be downloaded."""


def viewer_of(python: Path) -> Path:
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch = subprocess.run(
        [python, "-c", find], check=True, capture_output=True, text=True
    ).stdout.strip()
    return Path(torch, "cuda", "_memory_viz.py")


@pytest.mark.torch
def test_torch_draws_it(job_python: Path, tmp_path: Path) -> None:
    sizing = Sizing(estimate([GPT2], "l4", load_catalogue()["l4"]), Placement([], None), 1.0)
    snapshot.write(tmp_path / "run.pickle", sizing)
    viewer = viewer_of(job_python)
    subprocess.run(
        [job_python, viewer, "trace_plot", "run.pickle", "-o", "plot.html"],
        cwd=tmp_path,
        check=True,
    )
    assert (tmp_path / "plot.html").stat().st_size > 100_000
    drawn = subprocess.run(
        [job_python, viewer, "trace", "run.pickle"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "alloc" in drawn


@pytest.mark.torch
def test_its_flame_graph_goes_from_the_category_over_the_module_to_the_line(
    job_python: Path, tmp_path: Path
) -> None:
    site = trace.Origin("/home/u/train.py", 7, "main", "h.0")
    found = dataclasses.replace(
        GPT2, sites=[trace.NOWHERE, site], made_at=[1] * len(GPT2.allocations)
    )
    snapshot.write(
        tmp_path / "run.pickle",
        Sizing(estimate([found], "l4", load_catalogue()["l4"]), Placement([], None), 1.0),
    )
    drawn = subprocess.run(
        [job_python, "-c", FLAME_GRAPH, viewer_of(job_python)],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "stream_0;active_allocated;:0:PARAM;:0:h.0;train.py:7:main 154389504\n" in drawn
