"""docs/structure.md is true: a job goes from the command line to sbatch the way that it draws, and
that leads down."""

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

import pytest

from tests.unit.estimating.test_read_once import GPU, nothing_is_run, submit

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "xmem_slurm"
PAGE = (ROOT / "docs" / "structure.md").read_text(encoding="utf-8")
WAY = [
    tuple(line.split()[:2])
    for line in re.findall("```text\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
]
NOT_RUN_HERE = {
    "launchers/xsbatch",
    "cli/xsbatch_start",
    "dryrun/runner",
    "sandbox/sandbox",
    "probe/sitecustomize",
}
NOT_RUN_HERE |= {"trace_file", "submission/handover"}
"""The test begins after the first two, puts a trace in place of the dry run, and becomes no
sbatch."""

__all__ = ["nothing_is_run"]


class Way:
    """The functions of ours that are called, by when they first were, and the calls from a room to
    one above it."""

    def __init__(self) -> None:
        contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
            "importlinter"
        ]
        layers = next(each["layers"] for each in contracts["contracts"] if each["type"] == "layers")
        self.depth = {
            name.strip(): depth for depth, layer in enumerate(layers) for name in layer.split("|")
        }
        self.called: list[tuple[str, str]] = []
        self.up: set[tuple[str, str]] = set()
        self.noted: set[tuple[CodeType, CodeType | None]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call, as `sys.setprofile` has it: each function once for each that calls it."""
        if event != "call":
            return
        call = frame.f_code, frame.f_back.f_code if frame.f_back is not None else None
        if call in self.noted:
            return
        self.noted.add(call)
        module = _module(frame)
        if module is None:
            return
        self.called.append((module, frame.f_code.co_qualname))
        caller = next((each for each in map(_module, _callers(frame)) if each is not None), None)
        # it goes on, whoever it was called by
        is_sent_to = frame.f_code.co_flags & inspect.CO_GENERATOR
        if caller is not None and not is_sent_to and self._depth(module) < self._depth(caller):
            self.up.add((caller, module))

    def _depth(self, module: str) -> int:
        return self.depth[module.partition("/")[0]]


def _module(frame: FrameType) -> str | None:
    """Return the module of a function of ours, as the page has it; None of any other, and of a
    module as it loads."""
    path = Path(frame.f_code.co_filename)
    if frame.f_code.co_name == "<module>" or not path.is_relative_to(PACKAGE):
        return None
    if path == PACKAGE / "__init__.py":  # asked first by `from xmem_slurm import resources`
        return None
    return str(path.relative_to(PACKAGE).with_suffix(""))


def _callers(frame: FrameType) -> Iterator[FrameType]:
    caller = frame.f_back
    while caller is not None:
        yield caller
        caller = caller.f_back


def test_the_way_that_is_drawn_is_the_one_that_a_job_goes_and_no_call_leads_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    way = Way()
    sys.setprofile(way)
    try:
        submit(monkeypatch, GPU)
    finally:
        sys.setprofile(None)
    drawn = [(module, function) for module, function in WAY if module not in NOT_RUN_HERE]
    assert sorted(drawn, key=way.called.index) == drawn
    assert way.up == set()


def test_the_page_counts_the_files_to_open() -> None:
    files = {module for module, *_ in WAY}
    assert f"That is {len(files)} files" in PAGE
    for file in files:
        assert list((ROOT / "xmem_slurm").glob(f"{file}.py")) or (ROOT / file).is_file(), file
