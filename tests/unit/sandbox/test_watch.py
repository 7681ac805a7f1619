"""What counts as a dry run's memory: of real processes, below this one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from xmem_slurm.sandbox import watch
from xmem_slurm.units import MIB

SIZE = 4 * MIB
"""Most users may lock 8 MiB at least."""
LOCK = """
import ctypes, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
with open(sys.argv[1], "rb") as file:
    at = libc.mmap(None, ctypes.c_size_t(SIZE), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
print("ready", flush=True)
input()
assert libc.mlock(ctypes.c_void_p(at), ctypes.c_size_t(SIZE)) == 0, ctypes.get_errno()
print("locked", flush=True)
input()
"""


@contextmanager
def child(code: str, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """Run a program that says each time how far it is, and goes on when it is told to."""
    argv = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def step(process: "subprocess.Popen[str]", word: str) -> int:
    """Wait until it is so far, and return what all below this process use then."""
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"
    return watch.usage(os.getpid()).memory_bytes


def test_pages_of_files_count_where_they_are_locked(tmp_path: Path) -> None:
    """They cannot go where memory is short; sites for MPI let everybody lock as much as they
    like."""
    (tmp_path / "file").write_bytes(bytes(SIZE))
    with child(LOCK.replace("SIZE", str(SIZE)), tmp_path / "file") as process:
        before = step(process, "ready")
        print(file=process.stdin, flush=True)
        assert step(process, "locked") - before > 0.9 * SIZE


def test_only_the_file_system_that_was_listed_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container that starts changes its root between the two looks: a path leads to a disk."""
    number = Path("/").stat().st_dev
    there = f"{os.major(number)}:{os.minor(number)}"
    monkeypatch.setattr(watch, "_in_memory", lambda of: [] if of == "self" else [(there, "/")])
    monkeypatch.setattr(watch.Path, "readlink", lambda path: path)
    disk = os.statvfs("/")
    most = disk.f_blocks * disk.f_frsize
    assert 0 < watch.elsewhere([os.getpid()]) <= most
    monkeypatch.setattr(watch, "_in_memory", lambda of: [] if of == "self" else [("0:0", "/")])
    assert watch.elsewhere([os.getpid()]) == 0


MAPS = """
import mmap
memory = mmap.mmap(-1, 4096)
print("ready", flush=True)
input()
"""


@pytest.mark.parametrize("grown", [0, SIZE])
def test_shared_memory_that_grew_may_be_that_of_others(
    grown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has one figure of it for the whole machine: what is taken for theirs is said."""
    machine_s = iter([SIZE, SIZE + grown])
    monkeypatch.setattr(watch, "_machine_s_shared", lambda: next(machine_s))
    monkeypatch.setattr(watch, "_sockets", lambda: 0)
    unseen = watch.Unseen(0)
    with child(MAPS) as process:
        step(process, "ready")
        used = replace(watch.usage(os.getpid()), shared_bytes=0, filters=0, open_files=0)
        held = unseen.held(used, SIZE - 1)
    assert unseen.may_be_others is bool(grown)
    assert held // SIZE == grown // SIZE
