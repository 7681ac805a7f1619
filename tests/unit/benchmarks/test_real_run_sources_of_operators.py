"""Liger's measurements are told apart by their order; what PEFT's comparison reads is laid out
whole."""

import csv
import json
import math
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Run
from benchmarks.real_runs.sources import liger, peft
from tests.traces import trace_of
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate

A100 = "NVIDIA A100-SXM4-80GB"
SCRIPT = """
import torch
common = {"kernel_name": "add", "extra_benchmark_configs": [{"B": 4, "dtype": torch.float32}]}
"""
OWN, OTHER = '{"B": 4, "dtype": "torch.float32"}', '{"B": 8, "dtype": "torch.float32"}'
LINES = [("liger", 1024, OWN), ("torch", 1024, OWN), ("liger", 1024, OTHER)]


def rows_of(source: str, **columns: str) -> Row:
    return Row("key", source, columns["metric"], columns.get("torch", ""), "", 1 << 30, columns)


def git(folder: Path, *words: str) -> str:
    about = {
        "GIT_COMMITTER_DATE": "2024-09-04T00:00:00Z",
        "PATH": "/usr/bin:/bin",
        "HOME": str(folder),
    }
    who = ("-c", "user.name=a", "-c", "user.email=a@b.example")
    return subprocess.run(
        ["git", *who, *words], cwd=folder, env=about, check=True, capture_output=True, text=True
    ).stdout


def liger_runs(folder: Path) -> list[Run]:
    """Lay out a repository that first had the script after its measurements, and return the runs of
    three rows."""
    checkout = folder / "checkout"
    table, script = checkout / liger.TABLE, checkout / liger.SCRIPTS / "benchmark_add.py"
    table.parent.mkdir(parents=True)
    script.parent.mkdir()
    (checkout / "src").mkdir()
    (checkout / "src" / "code.py").touch()
    names = "kernel_name,kernel_provider,kernel_operation_mode,metric_name,x_name,x_value,extra_benchmark_config_str"
    with table.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*names.split(","), "gpu_name", "timestamp", "liger_version"])
        for provider, x, config in LINES:
            lines.writerow(
                [
                    "add",
                    provider,
                    "full",
                    "memory",
                    "V",
                    x,
                    config,
                    A100,
                    "2024-09-03 15:30:00",
                    "0.2.1",
                ]
            )

    git(checkout, "init", "-q")
    for text in (SCRIPT, SCRIPT.replace("4", "16")):
        script.write_text(text, encoding="utf-8")
        git(checkout, "add", "-A")
        git(checkout, "commit", "-q", "-m", "a")
    rows = [
        rows_of(
            liger.SOURCE,
            model="add",
            gpu=A100,
            metric="max allocated",
            command_or_config=f"benchmark/scripts/benchmark_add.py provider={provider} mode=full",
            seq_len=f"V={x}",
            batch=config,
        )
        for provider, x, config in LINES
    ]
    (folder / "data").mkdir()
    return list(liger.runs(rows, checkout, folder / "data"))


def test_a_script_of_its_time_runs_whole_and_is_called_where_it_has_another_configuration(
    tmp_path: Path,
) -> None:
    whole, called = liger_runs(tmp_path)
    assert (len(whole.rows), len(called.rows), whole.gpu) == (2, 1, "a100-sxm4-80gb")
    assert whole.torch == "2.4.0"
    assert (whole.folder / "benchmark_add.py").read_text(encoding="utf-8") == SCRIPT
    assert whole.script.endswith("exec python benchmark_add.py\n")
    assert (
        "SingleBenchmarkRunInput(1024, *('liger', 'full'), {'B': 8} | {'dtype': torch.float32})"
        in called.script
    )


def test_a_row_is_the_median_of_its_own_calls(tmp_path: Path) -> None:
    whole = liger_runs(tmp_path)[0]
    peaks = [7, *range(100, 110), *range(200, 209), 999]
    trace = replace(trace_of("+a:1"), between_resets=[{"allocated_bytes": peak} for peak in peaks])
    said = estimate([trace], "h200", load_catalogue()["h200"])
    assert [whole.answer(row, said) for row in whole.rows] == [104, 204]


def test_a_comparison_of_methods_finds_all_that_it_reads(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    folder = tmp_path / "data"
    result = f"{peft.COMPARISON}/results/a.json"
    folder.mkdir()
    for name in (f"{peft.COMPARISON}/run.py", "src/code.py", result):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    git(checkout, "init", "-q")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "a")
    # committed with its result
    experiment = checkout / peft.COMPARISON / "experiments" / "a" / "config.json"
    experiment.parent.mkdir(parents=True)
    experiment.touch()
    of = {
        "meta_info": {
            "package_info": {"peft-commit-hash": git(checkout, "rev-parse", "HEAD").strip()}
        }
    }
    (checkout / result).write_text(json.dumps(of), encoding="utf-8")
    about = {
        "what": "method_comparison/MetaMathQA",
        "command_or_config": "python run.py experiments/a",
        "path": result,
    }
    about["gpu"] = "NVIDIA L40S"
    kinds = ("peak reserved (max)", "reserved, mean of steps")
    rows = [rows_of(peft.SOURCE, metric=metric, torch="2.13.0", **about) for metric in kinds]
    (run,) = peft.runs(rows, checkout, folder)
    assert (run.key, run.rows, (run.folder / "run.py").is_file()) == (
        "experiments/a",
        rows[:1],
        True,
    )
    folder = run.folder
    assert (folder / "experiments/a/config.json").is_file()
    weights = folder / peft.MODEL / "model.safetensors"
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
    count = sum(
        math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"
    )
    assert count == 3_212_749_824  # num_total_params of its full fine-tuning
    assert weights.stat().st_size == begin + 2 * count
    assert weights.stat().st_blocks * 512 < 1 << 20
    samples = (folder / "meta-math/MetaMathQA/train.jsonl").read_text(encoding="utf-8").splitlines()
    lengths = [len(row["query"] + row["response"]) for row in map(json.loads, samples)]
    assert lengths[:4] == [max(lengths)] * 4
    assert sum(lengths) / len(lengths) == pytest.approx(210, rel=0.03)
