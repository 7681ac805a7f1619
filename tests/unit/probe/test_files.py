"""The probe notes what a Python reads: sources of modules, data, folders, what was not there; and
what it wrote."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from xmem_slurm import probe, trace_file

SCRIPT = """
import helper
open("data.bin").read()
open(b"data.bin", "rb").read()
for name in ("missing.yaml", "made.txt"):
    try:
        open(name).read()
    except FileNotFoundError:
        pass
open("made.txt", "w").close()
open("made.txt").close()
import glob, os, pathlib, shutil, subprocess, sys
assert not os.path.exists("asked.json") and not pathlib.Path("asked/after.json").is_file()
assert not glob.glob("folder/*/deep.json") and not glob.glob("*alked/w.json") and os.path.lexists("data.bin")
assert os.stat in os.supports_dir_fd and os.stat in os.supports_follow_symlinks
os.listdir("folder")
list(pathlib.Path("walked").rglob("*"))
open("part", "w").close()
os.replace("part", "renamed")
os.close(os.open("low.bin", os.O_RDONLY))
os.close(os.open("walked", os.O_RDONLY))
os.makedirs("own/deep", exist_ok=True)
os.makedirs("folder", exist_ok=True)
os.makedirs("torchinductor_ada", exist_ok=True)
open("own/deep/data", "w").close()
os.mkfifo("own/pipe")
os.close(os.open("own/pipe", os.O_RDONLY | os.O_NONBLOCK))
os.listdir("own")
shutil.rmtree("own")
for odd in (None, 10**9, "a\\0b", "x" * 9999, "\\udcff"):
    try:
        open(odd)
    except (OSError, TypeError, ValueError):
        pass
subprocess.run([sys.executable, "child.py"], check=True)
if os.fork() == 0:
    open("forked.bin").close()
    os._exit(0)
os.wait()
"""


@pytest.fixture
def noted(tmp_path: Path) -> dict[str, tuple[str, int, int]]:
    """Run the script with the probe's folder first, as in a dry run; twice, so that its modules are
    compiled."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "walked").mkdir()
    for name in ("helper.py", "data.bin", "low.bin", "forked.bin", "other.py"):
        (tmp_path / name).write_text("1\n")
    (tmp_path / "child.py").write_text("import other\n")
    (tmp_path / "main.py").write_text(SCRIPT)
    traces = tmp_path / "scratch" / "traces"
    traces.mkdir(parents=True)
    environ = os.environ | {
        "PYTHONPATH": str(Path(probe.__file__).parent),
        "XMEM_TRACE_DIR": str(traces),
        "TMPDIR": str(tmp_path),
    }
    for _ in range(2):
        (traces / "files.log").unlink(missing_ok=True)
        (tmp_path / "made.txt").unlink(missing_ok=True)
        subprocess.run([sys.executable, "main.py"], cwd=tmp_path, env=environ, check=True)
    found: dict[str, tuple[str, int, int]] = {}
    for kind, size, mtime, path in trace_file.read_files(traces / "files.log"):
        if path.startswith(str(tmp_path)):
            found.setdefault(path.removeprefix(f"{tmp_path}/"), (kind, size, mtime))
    assert all(found[name][1:] == (status.st_size, status.st_mtime_ns) for name in ("helper.py", "data.bin", "other.py")
               for status in [(tmp_path / name).stat()])  # fmt: skip
    return found


def test_what_a_script_reads_is_noted(noted: dict[str, tuple[str, int, int]]) -> None:
    kinds = {name: each[0] for name, each in noted.items()}
    expected = {
        "main.py": "R", "helper.py": "R", "data.bin": "R", "missing.yaml": "A", "made.txt": "A", "asked.json": "A",
        "asked/after.json": "A", "walked/w.json": "A", "folder": "D",
        "walked": "D", "part": "W", "renamed": "W", "low.bin": "R", "child.py": "R", "other.py": "R", "forked.bin": "R",
    }  # fmt: skip
    assert {name: kinds.get(name) for name in expected} == expected
    assert not any(name.startswith("scratch") for name in kinds)
    assert {name: kind for name, kind in kinds.items() if name.startswith("own")} == {"own": "A"}
    assert not any(name.startswith("torchinductor") for name in kinds)


OUTSIDE = """
from _xmem.process.files import Outside, mounts
there = mounts([["0:9", "/images/i", "/scratch/i"], ["0:9", "/", "/scratch\\\\040x"], ["8:1", "/", "/"]])
here = [["0:50", "/", "/"], ["0:9", "/job", "/job"], ["0:9", "/data/a", "/data"], ["8:1", "/home", "/home"]]
outside = Outside(there, mounts([*here, ["0:7", "/", "/proc"], ["0:9", "/images/i", "/i"]]))
for path in ("/usr/lib/x.py", "/job/train.py", "/data/b/c", "/data", "/database", "/home/u/y.py", "/i/z"):
    print(path, outside.path(path))
"""


def test_files_of_a_container_have_the_paths_that_they_have_outside() -> None:
    found = subprocess.run(
        [sys.executable, "-c", OUTSIDE],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(probe.__file__).parent,
    ).stdout
    assert found.splitlines() == [
        "/usr/lib/x.py None",
        "/job/train.py /scratch x/job/train.py",
        "/data/b/c /scratch x/data/a/b/c",
        "/data /scratch x/data/a",
        "/database None",
        "/home/u/y.py /home/u/y.py",
        "/i/z /scratch/i/z",
    ]
