"""What a listener takes of Python's audit events comes to it, by the filter in C or without one,
and nothing else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import xmem_slurm
from xmem_slurm.device import preload

PROBE = Path(xmem_slurm.__file__).parent / "probe"
CODE = """
import json, os, sys, threading
sys.path.insert(0, os.environ["XMEM_PROBE"])  # its own sitecustomize has left it
from _xmem.process.audit import Listener

calls, hear = [], Listener._heard
def heard(listener, event, arguments):
    calls.append(event)
    hear(listener, event, arguments)
Listener._heard = heard

taken, other = [], []
first, second = Listener(), Listener()
first.take(("open",), lambda path, *_: taken.append(path))
second.take(("os.listdir", "open"), lambda path="", *_: other.append(path))
first.take(("os.rename",), lambda old, new, *_: taken.append(new))
calls.clear()
for _ in range(1000):
    id(taken)
by_id = len(calls)
open("a", "w").close()
thread = threading.Thread(target=os.rename, args=("a", "b"))
thread.start(), thread.join()
os.listdir(".")
def fails(*_):
    raise KeyError("what a taker raises")
second.take(("os.rmdir",), fails)
try:
    os.rmdir("nowhere")
except KeyError as error:
    other.append(str(error))
print(json.dumps([taken, other, by_id]))
"""


@pytest.mark.parametrize("by_filter", [True, False])
def test_a_listener_hears_what_it_takes(by_filter: bool, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PROBE), "XMEM_PROBE": str(PROBE)}
    if by_filter:
        environ["LD_PRELOAD"] = str(preload.build(tmp_path))
    command = [sys.executable, "-c", CODE]
    ran = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    taken, other, by_id = json.loads(ran.stdout)
    assert (taken, other) == (["a", "b"], ["a", ".", "'what a taker raises'"])
    assert by_id == (0 if by_filter else 2000)
