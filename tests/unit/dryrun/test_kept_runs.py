"""A dry run that was made is given again only where it would find the same."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.report.test_largest import with_sites
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import evidence, kept_runs
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult, result_to_json
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, UnusedGpu
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.trace import File, Noted, ScriptFailure, Seen, Trace
from xmem_slurm.units import GIB

CATALOGUE = load_catalogue()
Change = Callable[[DryRunOrder], DryRunOrder]


class Runner:
    """Stands for what makes dry runs: it counts them, and finds what it is told to."""

    def __init__(
        self, result: DryRunResult, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        self.result, self.meanwhile, self.count = result, meanwhile, 0
        self.give = kept_runs.made_or_kept(self._make)

    def _make(self, _order: DryRunOrder) -> DryRunResult:
        self.count += 1
        self.meanwhile()
        return self.result


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.py").write_text("layers = 1\n")
    return tmp_path / "model.py"


@pytest.fixture
def order(tmp_path: Path) -> DryRunOrder:
    job = Job(
        b"#!/bin/sh\n#SBATCH -J one -n1\npython3 train.py\n",
        (),
        tmp_path,
        {"A": "1", "SHLVL": "2"},
        material=b"#SBATCH -n1\n",
    )
    return DryRunOrder(job, CATALOGUE["l4"], Budget(seconds=60))


def as_read(path: Path) -> File:
    """Return what the probe notes of a file."""
    return File(*evidence.as_it_is(path)[:4])


def trace_of(*read: Path, end: bool = True, failure: ScriptFailure | None = None) -> Trace:
    return replace(
        with_sites(), files=[*map(as_read, read)], seen=Seen(10, end=end), failure=failure
    )


def test_the_same_dry_run_is_made_once(order: DryRunOrder, model: Path) -> None:
    result = DryRunResult([trace_of(model), trace_of(model)], Spent(10.0), None, "memory", 20.0)
    runner = Runner(result)
    first, again = runner.give(order), runner.give(order)
    assert runner.count == 1
    assert (again.stopped, again.made_in_seconds) == ("memory", 20.0)
    assert result_to_json(again) == result_to_json(first)
    assert again.spent.seconds == 10.0, "what it took then: what follows from that is the same"


def test_what_the_script_sources_and_somebody_edits_while_it_runs_is_read_anew(
    order: DryRunOrder, model: Path
) -> None:
    set_up = model.with_name("setup.sh")
    set_up.write_text("export LAYERS=1\n")
    script = b"#!/bin/sh\n. ./setup.sh\npython3 train.py\n"
    sourcing = replace(order, job=replace(order.job, script=script, material=None))
    runner = Runner(
        DryRunResult([trace_of(model)]), lambda: set_up.write_text("export LAYERS=12\n")
    )
    for _ in range(2):
        runner.give(sourcing)
    assert runner.count == 2


@pytest.mark.parametrize(
    ("change", "made"),
    [
        (
            lambda order: replace(
                order, job=replace(order.job, environ={"A": "1", "SHLVL": "3", "EDITOR": "vi"})
            ),
            1,
        ),
        (
            lambda order: replace(
                order, job=replace(order.job, environ={**order.job.environ, "A": "2"})
            ),
            2,
        ),
        (
            lambda order: replace(
                order, job=replace(order.job, environ={**order.job.environ, "XMEM_SITE": "x"})
            ),
            1,
        ),
        (
            lambda order: replace(
                order,
                job=replace(order.job, environ={**order.job.environ, "SLURM_PRIO_PROCESS": "10"}),
            ),
            1,
        ),
        (
            lambda order: replace(
                order, job=replace(order.job, environ=dict(reversed(order.job.environ.items())))
            ),
            1,
        ),
        (lambda order: replace(order, budget=Budget(seconds=300)), 1),
        (lambda order: replace(order, budget=replace(order.budget, memory_bytes=1 << 30)), 2),
        (lambda order: replace(order, gpu=CATALOGUE["h200"]), 2),
        (lambda order: replace(order, origins="hook"), 2),
        (lambda order: replace(order, fresh=True), 2),
        (
            lambda order: replace(
                order,
                job=replace(order.job, script=b"#!/bin/sh\npython3 other.py\n", material=None),
            ),
            2,
        ),
        (
            lambda order: replace(
                order, job=replace(order.job, script=order.job.script.replace(b"one", b"two"))
            ),
            1,
        ),
        (
            lambda order: replace(
                order, job=replace(order.job, material=b"#!/bin/sh\n#SBATCH -n2\n")
            ),
            2,
        ),
        (
            lambda order: replace(
                order,
                job=replace(order.job, environ={**order.job.environ, "SBATCH_JOB_NAME": "two"}),
            ),
            1,
        ),
    ],
)
def test_another_dry_run_is_made(
    order: DryRunOrder, model: Path, change: Change, made: int
) -> None:
    runner = Runner(DryRunResult([trace_of(model)], Spent(10.0)))
    runner.give(order)
    runner.give(change(order))
    assert runner.count == made


PROFILED = Noted(Doubt.PROFILE_ENGINE, "")


@pytest.mark.parametrize(
    ("doubts", "stopped", "first", "then", "made"),
    [
        ([], None, 16, 8, 1),
        ([], None, 8, 16, 1),
        ([], "memory", 16, 8, 1),
        ([], "memory", 8, 16, 2),
        ([PROFILED], None, 8, 16, 2),
        ([PROFILED], None, 16, 8, 1),
    ],
)
def test_more_memory_counts_where_it_may_be_wanted(
    doubts: list[Noted],
    stopped: str | None,
    first: int,
    then: int,
    made: int,
    order: DryRunOrder,
    model: Path,
) -> None:
    found = [replace(trace_of(model), doubts=doubts)]
    runner = Runner(DryRunResult(found, Spent(10.0), None, stopped))
    for gib in (first, then):
        runner.give(replace(order, budget=replace(order.budget, memory_bytes=gib * GIB)))
    assert runner.count == made


def test_that_there_is_no_estimate_with_less_memory_says_nothing_of_more(
    order: DryRunOrder, model: Path
) -> None:
    runner = Runner(DryRunResult(NoEstimate("it ran out of memory", [as_read(model)])))
    for gib, made in ((8, 1), (16, 2), (8, 2)):
        runner.give(replace(order, budget=replace(order.budget, memory_bytes=gib * GIB)))
        assert runner.count == made


def named(order: DryRunOrder, name: str, script: bytes | None = None) -> DryRunOrder:
    """Return the order of a job of this name, with an output file of its own."""
    environ = {**order.job.environ, "SLURM_JOB_NAME": name}
    job = replace(order.job, environ=environ, outputs=(f"{name}.out",))
    return replace(order, job=job if script is None else replace(job, script=script, material=None))


@pytest.mark.parametrize(
    ("script", "code", "made"),
    [
        (None, "layers = 1\n", 1),
        (b"#!/bin/sh\npython3 $SLURM_JOB_NAME.py\n", "layers = 1\n", 2),
        (b"#!/bin/sh\npython3 $(squeue -ho %j).py\n", "layers = 1\n", 2),
        (None, "import os\nlayers = int(os.environ['SLURM_JOB_NAME'])\n", 2),
    ],
)
def test_the_name_of_the_job_counts_where_it_may_be_read(
    order: DryRunOrder, model: Path, script: bytes | None, code: str, made: int
) -> None:
    model.write_text(code)
    runner = Runner(DryRunResult([trace_of(model)], Spent(10.0)))
    runner.give(named(order, "one", script))
    runner.give(named(order, "two", script))
    runner.give(named(order, "two", script))
    assert runner.count == made


def test_the_name_counts_where_slurm_was_asked_about_the_job(
    order: DryRunOrder, model: Path
) -> None:
    asked = [replace(trace_of(model), doubts=[Noted(Doubt.OWN_SCRIPT, "")])]
    runner = Runner(DryRunResult(asked, Spent(10.0)))
    runner.give(named(order, "one"))
    runner.give(named(order, "two"))
    assert runner.count == 2


def test_one_that_names_lines_says_what_one_says_that_does_not(
    order: DryRunOrder, model: Path
) -> None:
    runner = Runner(DryRunResult([trace_of(model)], Spent(10.0)))
    runner.give(replace(order, origins="hook"))
    runner.give(order)
    assert runner.count == 1


def test_what_was_read_and_has_changed_ends_it(order: DryRunOrder, model: Path) -> None:
    runner = Runner(DryRunResult([trace_of(model)], Spent(10.0)))
    runner.give(order)
    model.write_text("layers = 100\n")
    runner.give(order)
    assert runner.count == 2


def test_a_shell_script_that_is_named_and_has_changed_ends_it(
    order: DryRunOrder, model: Path
) -> None:
    (model.parent / "train.py").write_text("import model\n")
    runner = Runner(DryRunResult([trace_of(model)], Spent(10.0)))
    runner.give(order)
    (model.parent / "train.py").write_text("import model, other\n")
    runner.give(order)
    assert runner.count == 2


def test_an_answer_from_one_lasts_though_a_file_was_touched(
    order: DryRunOrder, model: Path
) -> None:
    """Its traces say of the file what it is now: whoever keeps an answer looks whether it is so."""
    runner = Runner(DryRunResult([trace_of(model)], Spent(10.0)))
    runner.give(order)
    os.utime(model, (1000, 1000))
    (trace,) = runner.give(order).traces
    assert runner.count == 1
    assert evidence.lasting(trace.files) is not None


@pytest.mark.parametrize("seconds", [31.0, 60.0])
def test_one_that_used_half_of_its_budget_is_for_who_has_no_more(
    order: DryRunOrder, model: Path, seconds: float
) -> None:
    runner = Runner(DryRunResult([trace_of(model, end=seconds < 60)], Spent(seconds)))
    for budget, made in ((60, 1), (60, 1), (20, 1), (61, 2)):
        runner.give(replace(order, budget=Budget(seconds=budget)))
        assert runner.count == made


@pytest.mark.parametrize(("most", "made"), [(1, [1, 1, 2, 2]), (1 << 40, [1, 1, 1, 1])])
def test_one_that_was_over_as_it_needed_too_much_is_for_who_wants_no_more(
    order: DryRunOrder, model: Path, most: int, made: list[int]
) -> None:
    """Where it needed no more it was whole, and is for all."""
    runner = Runner(DryRunResult([trace_of(model, end=most > 1)], Spent(5.0)))
    counts = []
    for asked in (replace(order, most_bytes=most), replace(order, most_bytes=most), order, order):
        runner.give(asked)
        runner.result = DryRunResult([trace_of(model)], Spent(5.0))
        counts.append(runner.count)
    assert counts == made


NOTHING = trace_of()


@pytest.mark.parametrize(
    "find",
    [
        lambda model: [trace_of(model, end=False)],  # the clock on the wall, or a signal
        lambda model: [
            trace_of(model, failure=ScriptFailure("ConnectionError: hub", "ConnectionError"))
        ],
        lambda _: [trace_of()],  # it was not seen what it read
        lambda model: [replace(trace_of(model), files=[as_read(model), File("T", 0, 0, "")])],
        lambda _: NoEstimate("no GPU memory was used"),
        lambda model: NoEstimate("no space left", [as_read(model)], busy=True),
    ],
)
def test_what_may_be_otherwise_another_time_is_not_kept(
    order: DryRunOrder, model: Path, find: Callable[[Path], list[Trace] | NoEstimate]
) -> None:
    runner = Runner(DryRunResult(find(model), Spent(10.0)))
    runner.give(order)
    runner.give(order)
    assert runner.count == 2


def test_that_there_is_no_estimate_is_known_too(order: DryRunOrder, model: Path) -> None:
    runner = Runner(
        DryRunResult(
            UnusedGpu("no GPU memory was used", [as_read(model)], on_any_gpu=True), Spent(5.0)
        )
    )
    runner.give(order)
    found = runner.give(order).answer
    assert runner.count == 1
    assert isinstance(found, UnusedGpu)
    assert (str(found), found.on_any_gpu, found.files) == (
        "no GPU memory was used",
        True,
        [as_read(model)],
    )


def test_after_a_week_and_after_damage_it_is_made_again(
    order: DryRunOrder, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = Runner(DryRunResult([trace_of(model)], Spent(10.0)))
    runner.give(order)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + kept_runs.MOST_SECONDS + 1)
    runner.give(order)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(model.parent / "cache"))
    (path,) = kept_runs.STORE.folder.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    runner.give(order)
    assert runner.count == 3
