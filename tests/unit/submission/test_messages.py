"""What xsbatch says in each situation that its users meet, word for word.

The dry runs are those of `Ran`: how the sandbox's command ended, what it printed, and the traces
that it left. All that is made of them, up to the lines on stderr, is real. A word that changes on
purpose: `--snapshot-update`.
"""

import dataclasses
import gzip
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.conftest import EXAMPLE_SITE
from tests.unit.dryrun.test_runner import GPT2_FILE
from xmem_slurm import trace
from xmem_slurm.decision import stopped_by
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.dryrun.shims import launchers
from xmem_slurm.errors import NoEstimate
from xmem_slurm.sandbox import sandbox
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import submit
from xmem_slurm.submission.answer import Wishes, answer

PYTHON = "/usr/bin/python3"
NO_EVENTS: dict[str, list[object]] = {"action": [], "address": [], "size": [], "stream": []}
UNTOUCHED = {"events": NO_EVENTS, "marks": [], "tags": [], "sites": {}, "recorded": {}}
"""Of a process that used no GPU."""
TRAINED: dict[str, Any] = {}
"""What is other in the trace of a process that trains GPT-2, which needs 15 GiB: nothing."""


class Ran(NamedTuple):
    """How a dry run ended: its exit code, what it printed first and last, its processes' traces."""

    code: int | None = 0
    said: str = ""
    set_up: str = ""
    traces: Sequence[dict[str, Any]] = ()
    stopped: str | None = None
    lacking: str = ""
    """The Python that lacked a module."""
    without: str = ""
    """The launcher that was not on PATH."""
    changed: Callable[[trace.Trace], trace.Trace] = lambda found: found
    spent: float = 0.0

    def result(self, folder: Path) -> DryRunResult:
        """Return what is made of it, from what it leaves in `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        written = json.loads(gzip.decompress(GPT2_FILE.read_bytes()))
        for number, changes in enumerate(self.traces):
            text = json.dumps(written | changes).encode()
            (folder / f"{number}.json.gz").write_bytes(gzip.compress(text, 1))
        if self.lacking:
            (folder / "lacking").write_text(self.lacking)
        if self.without:
            (folder / launchers.NOT_HERE).write_text(self.without)
        head = f"slurm_script: {self.set_up}\n".encode()
        ended = sandbox.Outcome(self.code, self.stopped, 60.0, 0, self.said.encode())
        ended = dataclasses.replace(ended, spent_seconds=60.0, output_head=head)
        try:
            traces = [self.changed(each) for each in runner._traces(folder, ended)]
            return DryRunResult(traces, Spent(self.spent))
        except NoEstimate as error:
            return DryRunResult(error)


def failed(words: str, **changes: object) -> dict[str, object]:
    """Return the trace of a process that ended with these words before it used a GPU."""
    return UNTOUCHED | {"error": words} | changes


def doubting(*noted: trace.Noted) -> Callable[[trace.Trace], trace.Trace]:
    return lambda found: dataclasses.replace(found, doubts=noted)


def times(factor: int) -> Callable[[trace.Trace], trace.Trace]:
    """Have a process need so many times what it needs."""

    def larger(found: trace.Trace) -> trace.Trace:
        sizes = [each._replace(size=each.size * factor) for each in found.allocations]
        return dataclasses.replace(found, allocations=sizes)

    return larger


WELL = Ran(traces=[TRAINED])
DOUBTS = doubting(
    trace.Noted(Doubt.NCCL, "", 2),
    trace.Noted(Doubt.NOT_REACHED, "the script's own end (719 steps seen)"),
)
THRICE = WELL._replace(changed=times(3))
DOUBTFUL = WELL._replace(changed=DOUBTS)
NO_PYHTON = "line 3: pyhton: command not found"
NO_CONDA = "line 3: conda: command not found"
NO_LAUNCHER = "line 3: accelerate: command not found"
MISSING = "ModuleNotFoundError: No module named"
EOF = "EOFError: EOF when reading a line (train.py:2)"
ORDINAL = "AcceleratorError: CUDA error: invalid device ordinal (train.py:5)"
HOST = WELL._replace(changed=lambda found: dataclasses.replace(found, host_bytes=24 << 30))
OFFLINE = "OSError: gpt2 is no local folder (train.py:9); a dry run has no network"
NOT_SEEN = "python: can't open file '/home/ada/train.py': [Errno 2] No such file or directory"


class Situation(NamedTuple):
    """A dry run, what of sbatch's options is typed beside a GPU of this type, and of xsbatch's."""

    ran: Ran
    gpu: str = "h200:1"
    options: Sequence[str] = ()
    wishes: Wishes = Wishes()
    script: bytes = b"python train.py\n"
    twice: bool = False


SITUATIONS = {
    "a smaller GPU is enough": Situation(WELL),
    "the GPU is right": Situation(WELL, "l4:1"),
    "the type is kept": Situation(WELL, wishes=Wishes(keep_type=True)),
    "it is only advised": Situation(WELL, wishes=Wishes(advise=True)),
    "several reasons": Situation(DOUBTFUL),
    "several reasons, verbose": Situation(DOUBTFUL, wishes=Wishes(verbose=True)),
    "the GPU is too small": Situation(THRICE, "l4:1", wishes=Wishes(keep_type=True)),
    "every GPU is too small": Situation(WELL._replace(changed=times(20)), "1"),
    "tasks that did not run may need more": Situation(
        WELL._replace(spent=19.0),
        "1",
        ["--array=0-5"],
        script=b"python train.py $SLURM_ARRAY_TASK_ID\n",
    ),
    "the host's memory is too small": Situation(HOST, options=["--mem=8G"]),
    "its request is raised": Situation(HOST, options=["--mem=8G"], wishes=Wishes(raise_mem=True)),
    "its request is raised, and the GPU is right": Situation(
        DOUBTFUL._replace(changed=lambda found: DOUBTS(HOST.changed(found))),
        "l4:1",
        options=["--mem-per-cpu=3G", "-c2"],
        wishes=Wishes(raise_mem=True),
    ),
    "its request is raised, and the type is kept": Situation(
        HOST, options=["--mem-per-gpu=8G"], wishes=Wishes(raise_mem=True, keep_type=True)
    ),
    "no node has so much host memory": Situation(
        WELL._replace(changed=lambda found: dataclasses.replace(found, host_bytes=2 << 40)),
        options=["--mem=8G"],
        wishes=Wishes(raise_mem=True),
    ),
    "the environment is not there": Situation(
        Ran(traces=[{"python": PYTHON}], set_up=NO_CONDA),
    ),
    "nor is its module": Situation(
        Ran(
            traces=[{"python": PYTHON}],
            set_up=f"line 2: module: command not found\nslurm_script: {NO_CONDA}",
        ),
    ),
    "the environment is not there, nor its modules": Situation(
        Ran(1, f"{MISSING} 'numpy'", NO_CONDA, lacking=PYTHON),
    ),
    "no torch": Situation(Ran(1, f"{MISSING} 'torch'", lacking=PYTHON)),
    "a script without torch": Situation(Ran(said="hello\n")),
    "a script without torch that fails": Situation(Ran(3)),
    "torch is imported, and no GPU used": Situation(Ran(traces=[UNTOUCHED])),
    "no such script": Situation(Ran(2, NOT_SEEN)),
    "a misspelt command": Situation(
        Ran(127, f"slurm_script: {NO_PYHTON}", set_up=NO_PYHTON), wishes=Wishes(strict=True)
    ),
    "a misspelt command, and the script goes on": Situation(Ran(set_up=NO_PYHTON)),
    "a launcher without its environment": Situation(
        Ran(127, NO_LAUNCHER, set_up=NO_LAUNCHER), wishes=Wishes(strict=True)
    ),
    "nor are its modules": Situation(
        Ran(
            127,
            NO_LAUNCHER,
            set_up=f"line 2: module: command not found\nslurm_script: {NO_LAUNCHER}",
        )
    ),
    "no MPI": Situation(WELL._replace(without="mpirun")),
    "no MPI, verbose": Situation(WELL._replace(without="mpirun"), wishes=Wishes(verbose=True)),
    "a syntax error": Situation(Ran(1, "SyntaxError: invalid syntax (train.py:2)")),
    "a module is not there": Situation(Ran(1, traces=[failed(f"{MISSING} 'jax' (train.py:2)")])),
    "a module is not there, strict": Situation(
        Ran(1, traces=[failed(f"{MISSING} 'jax' (train.py:2)")]), wishes=Wishes(strict=True)
    ),
    "it waits for input": Situation(Ran(1, traces=[failed(EOF)])),
    "ranks without a GPU": Situation(
        Ran(1, traces=[{"world_size": 4}, failed(ORDINAL, rank=2, world_size=4)]), "h200:2"
    ),
    "a rank that dies": Situation(
        Ran(1, traces=[{"world_size": 4}, failed("ValueError: x", rank=2, world_size=4)]),
    ),
    "what a dry run cannot reach": Situation(Ran(1, traces=[failed(OFFLINE)])),
    "no time": Situation(Ran(None, stopped="time")),
    "no estimate, the second time": Situation(Ran(3, "no data\n"), twice=True),
    "no estimate, only looked at": Situation(Ran(3, "no data\n"), wishes=Wishes(dry_run=True)),
    "a service": Situation(WELL, script=b"jupyter lab\n"),
    "another user's": Situation(WELL, options=["--uid=1"]),
}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", SITUATIONS)
def test_what_xsbatch_says(
    name: str,
    snapshot: SnapshotAssertion,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    situation = SITUATIONS[name]
    result = situation.ran.result(tmp_path / "traces")
    monkeypatch.setattr(runner, "run", lambda _order: result)
    # Held, so that no Slurm is asked whether it would take the job.
    argv = ("--hold", f"--gres=gpu:{situation.gpu}", *situation.options, "train.sh")
    job = Submission(argv, {"PATH": "/usr/bin"}, b"#!/bin/sh\n" + situation.script)
    wishes = situation.wishes._replace(site=str(EXAMPLE_SITE))
    for _ in range(1 + situation.twice):
        capsys.readouterr()
        try:
            decision = answer(job, wishes, lambda line: submit.tell([line]))
        except Exception as error:  # as `submit` does
            decision = stopped_by(error, job)
        submit._tell_of(decision, wishes, is_queued=not wishes.dry_run)
    told = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "TODAY", capsys.readouterr().err)
    assert told == snapshot
