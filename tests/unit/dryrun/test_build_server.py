"""A dry run whose time went while its stand-ins were compiled is made again once they are there."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.dryrun.test_runner import GPT2_FILE
from xmem_slurm.dryrun import build_server, runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.build_server import Building
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.sandbox import sandbox
from xmem_slurm.site.loading import load_catalogue

GPU = load_catalogue()["l4"]


def test_what_another_process_builds_is_waited_for() -> None:
    building = Building()
    assert not building.goes_on
    beginning, begun = os.pipe()
    ending, end = os.pipe()
    child = os.fork()
    if child == 0:
        with building.noted():
            os.write(begun, b"x")
            os.read(ending, 1)
        os._exit(0)
    os.read(beginning, 1)
    threading.Timer(0.2, os.write, (end, b"x")).start()
    assert building.goes_on
    assert building.waited_for(time.monotonic())
    with building.noted():
        assert not building.waited_for(time.monotonic() - build_server.BUILD_SECONDS)
    os.waitpid(child, 0)
    assert not building.goes_on


@pytest.mark.parametrize(
    ("goes_on", "is_built", "runs"), [(True, True, 2), (True, False, 1), (False, True, 1)]
)
def test_a_dry_run_that_was_stopped_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool, is_built: bool, runs: int
) -> None:
    building = Building()
    monkeypatch.setattr(Building, "goes_on", goes_on)
    monkeypatch.setattr(Building, "waited_for", lambda _self, _since: is_built)

    @contextmanager
    def serving(_folder: Path) -> Iterator[Building]:
        yield building

    begun: list[list[Path]] = []

    def run(
        _command: object, *, results: Path, held_up: Callable[[], bool], **_others: Any
    ) -> sandbox.Outcome:
        assert held_up() is goes_on
        begun.append(list(results.iterdir()))
        if len(begun) == 1:
            (results / "left").write_bytes(b"of the first")
            return sandbox.Outcome(None, "time", 60.0, 0, b"", spent_seconds=60.0)
        (results / "1.json.gz").write_bytes(GPT2_FILE.read_bytes())
        return sandbox.Outcome(0, None, 9.0, 0, b"")

    monkeypatch.setattr(build_server, "serving", serving)
    monkeypatch.setattr(sandbox, "run", run)
    job = Job(b"#!/bin/sh\n", [], tmp_path, {"PATH": os.environ["PATH"]})
    result = runner.run(DryRunOrder.of(job, GPU, Budget()))
    assert begun == [[]] * runs
    if runs == 2:
        assert len(result.traces) == 1
        return
    with pytest.raises(NoEstimate, match="10 minutes" if goes_on else "--xmem-budget") as caught:
        assert result.traces
    assert caught.value.busy is goes_on
