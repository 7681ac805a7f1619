"""What the sources of real runs lay out: scripts as published, and data in the form that they
read."""

import struct
import subprocess
from dataclasses import replace
from pathlib import Path

from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.sources import modded_nanogpt, torchtitan


def row(
    source: str,
    metric: str = "peak allocated",
    torch: str = "2.8.0.dev20250524+cu126",
    **columns: str,
) -> Row:
    return Row(
        "key", source, metric, torch, "", 1 << 30, {"gpu": "NVIDIA H100 80GB HBM3"} | columns
    )


def test_a_speed_run_is_the_head_of_its_log(tmp_path: Path) -> None:
    checkout, folder = tmp_path / "checkout", tmp_path / "folder"
    (checkout / "records" / "several").mkdir(parents=True)
    folder.mkdir()
    code = "import torch\nprint('=' * 10)\n"
    for log in ("one.txt", "several/b.txt", "several/a.txt"):
        (checkout / "records" / log).write_text(
            f"{code}{'=' * 100}\nRunning Python\n{'=' * 100}\n", encoding="utf-8"
        )
    of_one = row(modded_nanogpt.SOURCE, path="records/one.txt")
    used = replace(of_one, metric="nvidia-smi used of GPU 1")
    rows = [
        of_one,
        row(modded_nanogpt.SOURCE, path="records/several"),
        replace(of_one, metric="peak reserved"),
        used,
    ]
    one, several = modded_nanogpt.runs(rows, checkout, folder)
    assert [each.metric for each in one.rows] == ["peak allocated", "peak reserved"]
    for run in (one, several):
        assert (run.folder / "train_gpt.py").read_text(encoding="utf-8") == code
    tokens = sorted((one.folder / "data" / "fineweb10B").glob("fineweb_train_*.bin"))
    assert len(tokens) == 9
    magic, version, count = struct.unpack("<3i", tokens[0].read_bytes()[:12])
    assert (magic, version) == (20240520, 1)
    assert tokens[0].stat().st_size == 256 * 4 + 2 * count
    assert tokens[0].stat().st_blocks * 512 < 1 << 20, "the files are holes"


def test_torchtitan_is_what_its_page_says_that_ran(tmp_path: Path) -> None:
    checkout, folder = tmp_path / "checkout", tmp_path / "folder"
    checkout.mkdir()
    folder.mkdir()

    def git(*words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", "-C", checkout, *who, *words], check=True, capture_output=True, text=True
        ).stdout

    git("init", "-q")
    for name in ("train.py", "tests/assets/data.bin"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("then", encoding="utf-8")
    git("add", "-A")
    git("commit", "-qm", "then")
    then = git("rev-parse", "HEAD").strip()
    (checkout / "train.py").write_text("now", encoding="utf-8")
    (checkout / "page.md").write_text(
        f"[x](https://github.com/pytorch/torchtitan/commit/{then})", encoding="utf-8"
    )
    about = {"path": "page.md", "model": "Llama 3.1 8B", "parallelism": "FSDP2 128"}
    release = "main@1963fc8 (2.7.0.dev20241223)"
    other = row(torchtitan.SOURCE, torch=release, **{**about, "parallelism": "FSDP 4, CP 2"})
    (run,) = torchtitan.runs(
        [row(torchtitan.SOURCE, torch=release, **about), other], checkout, folder
    )
    assert run.torch == "2.7.0.dev20241223"
    assert "--nodes=16" in run.script
    assert "--nnodes 16 --nproc_per_node 8" in run.script
    assert (folder / "train.py").read_text(encoding="utf-8") == "then"
    assert not (folder / "tests" / "assets" / "data.bin").exists()
    words = (
        (folder / "tests" / "assets" / "test_tiktoken.model")
        .read_text(encoding="ascii")
        .splitlines()
    )
    assert len({word.split()[0] for word in words}) == 128_000
