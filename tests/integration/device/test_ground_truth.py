"""The ground-truth campaign, measured on stand-in GPUs: the harness works, and a dry run repeats
what it measured."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.campaign import Config, configs
from benchmarks.ground_truth import measure, read_lines, trace_file
from benchmarks.ground_truth_compare import compare, first_parting, frames
from xmem_slurm import trace
from xmem_slurm.device.builder import build
from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.trace_file import read

ROOT = Path(__file__).parents[3]
RUNS = "mobilenet_v2_16x224_fp32_SGD"
"""It reads no value of a tensor: those are zeros here, where no probe keeps them."""

Measure = Callable[..., subprocess.CompletedProcess[str]]


MAP = """
import ctypes, glob
_found = sorted(glob.glob({folder!r} + "/*.so*"), key=lambda path: ("libcudart" not in path, path))
_mapped = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in _found]
"""
"""A sitecustomize: stand-in GPUs and no probe, which would keep torch's memory history to
itself."""


@pytest.fixture
def on_stand_in(tmp_path: Path, job_python: Path) -> Measure:
    """Run the campaign's command as on a GPU machine: in the job's Python, where nothing of the
    product is."""
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch_folder = subprocess.run(
        [job_python, "-c", find], capture_output=True, text=True, check=True
    ).stdout.strip()
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(MAP.format(folder=str(build(Path(torch_folder)))))
    gpu = gpu_environment.environment(load_catalogue()["h200"], 1, tmp_path, None)
    environ = {
        **os.environ,
        **{name: value for name, value in gpu.items() if name.startswith("XMEM_DEVICE_")},
    }
    environ["PYTHONPATH"] = str(site)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [
            str(job_python),
            "-m",
            "benchmarks.ground_truth",
            "--out",
            str(tmp_path / "out"),
            *options,
        ]
        return subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )

    return run


def test_the_campaign_has_its_sixty_runs_and_every_kind() -> None:
    every = list(configs())
    assert len({config.key for config in every}) == len(every) >= 60
    assert {config.precision for config in every} == {"fp32", "bf16", "fp16"}
    assert len({config.optimizer for config in every}) >= 6
    for kind in ("channels_last", "checkpointing", "compiled", "ddp"):
        assert any(getattr(config, kind) for config in every), kind
    assert any("expandable_segments" in config.allocator for config in every)
    assert any(not config.training for config in every)


def test_without_time_nothing_is_begun(tmp_path: Path) -> None:
    measure([Config("resnet50", 1, 32)], tmp_path, seconds=1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.torch
def test_measured_estimated_and_run_again_under_a_cap(
    on_stand_in: Measure, tmp_path: Path, job_python: Path
) -> None:
    done = on_stand_in("--only", RUNS)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    (run,) = read_lines(out / "runs.jsonl").values()
    # parameters, gradients
    assert run["peak_reserved_bytes"] >= run["peak_allocated_bytes"] > 3.5e6 * 4 * 2
    assert run["outside_before_bytes"] == load_catalogue()["h200"].context_bytes
    assert on_stand_in("--only", RUNS).stdout == "", (
        "what is measured already is not measured again"
    )

    history = trace_file(out, RUNS)
    measured = read(history)
    assert len(frames(history)) == len(measured.allocations)
    assert any("mobilenetv2.py" in name or "functional.py" in name for name in frames(history))

    chosen = [config for config in configs() if config.key == RUNS]
    table = compare(chosen, out, str(job_python), seconds=300)
    (estimate,) = read_lines(out / "estimates.jsonl").values()
    assert (
        estimate["peak_reserved_bytes"]
        == run["peak_reserved_bytes"]
        == estimate["replayed_history_bytes"]
    )
    assert estimate["parting"] is None
    assert "never" in table

    assert on_stand_in("--only", RUNS, "--capped").returncode == 0
    last = on_stand_in("--only", RUNS, "--capped", "--cap-at", "need")
    capped = read_lines(out / "capped.jsonl")
    assert [line["survived"] for line in capped.values()] == [True, True]
    assert "1 of 1 runs survived, capped at their need: PEF 0.0%" in last.stdout


@pytest.mark.torch
def test_a_run_that_fails_is_a_result_too(on_stand_in: Measure, tmp_path: Path) -> None:
    done = on_stand_in("--only", "no such run")
    assert (done.returncode, done.stdout) == (0, "")
    broken = {"key": RUNS, "fits_in_bytes": 1 << 20, "margin_bytes": 0}
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "out" / "estimates.jsonl").write_text(json.dumps(broken) + "\n")
    assert on_stand_in("--only", RUNS, "--capped").returncode == 0
    (capped,) = read_lines(tmp_path / "out" / "capped.jsonl").values()
    assert capped["survived"] is False
    assert "OutOfMemoryError" in capped["error"]


def test_the_first_difference_is_found_with_its_operator() -> None:
    path = ROOT / "tests" / "data" / "gpt2-small.json.gz"
    measured = read(path)
    operators = [f"op{number}" for number in range(len(measured.allocations))]
    assert first_parting(measured, measured, operators) is None
    changed = list(measured.allocations)
    changed[7] = changed[7]._replace(size=changed[7].size + 512)
    dry = _with(measured, changed)
    parting = first_parting(measured, dry, operators)
    assert parting is not None
    assert (parting.allocation, parting.operator) == (7, "op7")
    assert parting.measured.startswith(f"{measured.allocations[7].size} with ")


def _with(measured: trace.Trace, allocations: list[trace.Allocation]) -> trace.Trace:
    return dataclasses.replace(measured, allocations=allocations)
