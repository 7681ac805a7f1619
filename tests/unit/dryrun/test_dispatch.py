"""Jobs that are sized together: each dry run that one wants is made once, and no job is asked
without end."""

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from xmem_slurm.dryrun import array_job, cpu_node, dispatch
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult, Orders, SharedBudget, drive
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, SandboxError, SlurmError
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns

WHERE = DryRuns(where="srun", partition="cpu")
CATALOGUE = load_catalogue()
NAMES = {gpu.description: name for name, gpu in CATALOGUE.items()}
clock = itertools.count()


def order(job: str, gpu: str) -> DryRunOrder:
    environ = {"JOB": job, "SLURM_JOB_START_TIME": str(next(clock))}
    return DryRunOrder(
        Job(b"", (), Path("/"), environ), CATALOGUE[gpu], Budget(seconds=60 + next(clock))
    )


def said(order: DryRunOrder) -> str:
    return f"{order.job.environ['JOB']}:{NAMES[order.gpu.description]}"


def wants(job: str, *gpus: str) -> Orders[str]:
    """Stand for a sizing that looks at one GPU after the other."""
    found = []
    for gpu in gpus:
        result = yield order(job, gpu)
        found.append(str(result.answer))
    return " ".join(found)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    seen: list[list[str]] = []

    def run(orders: Sequence[DryRunOrder], _where: DryRuns) -> list[DryRunResult | SlurmError]:
        seen.append(list(map(said, orders)))
        return [
            SlurmError("its node died") if what == "broken:l4" else DryRunResult(NoEstimate(what))
            for what in seen[-1]
        ]

    def run_one(order: DryRunOrder, where: DryRuns) -> DryRunResult:
        (found,) = run([order], where)
        if isinstance(found, SlurmError):
            raise found
        return found

    monkeypatch.setattr(array_job, "run", run)
    monkeypatch.setattr(cpu_node, "run", run_one)
    return seen


def fails() -> Orders[str]:
    raise NoEstimate("no script")
    yield


def test_each_dry_run_is_made_once_and_all_that_are_wanted_at_once(rounds: list[list[str]]) -> None:
    several = [
        wants("a", "l4"),
        wants("b", "l4", "h200"),
        wants("a", "l4"),
        wants("broken", "l4", "h200"),
        fails(),
    ]
    found = dispatch.together(several, WHERE)
    assert found[:3] == ["a:l4", "b:l4 b:h200", "a:l4"]
    assert list(map(str, found[3:])) == ["its node died", "no script"]
    assert rounds == [["a:l4", "b:l4", "broken:l4"], ["b:h200"]]


def test_what_another_wanted_before_is_known_and_goes_on_at_once(rounds: list[list[str]]) -> None:
    found = dispatch.together([wants("a", "h200", "l4"), wants("a", "l4", "h200", "l40s")], WHERE)
    assert found == ["a:h200 a:l4", "a:l4 a:h200 a:l40s"]
    assert rounds == [["a:h200", "a:l4"], ["a:l40s"]]


def test_a_job_that_wants_ever_more_is_given_up(rounds: list[list[str]]) -> None:
    def without_end() -> Orders[str]:
        for number in itertools.count():
            yield from wants(f"a{number}", "l4")
        return "never"

    endless, other = dispatch.together([without_end(), wants("b", "l4")], WHERE)
    assert isinstance(endless, SlurmError)
    assert other == "b:l4"
    assert len(rounds) == dispatch.MOST_ROUNDS


def test_where_dry_runs_are_made_here_each_goes_its_whole_way_some_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def here(order: DryRunOrder) -> DryRunResult:
        (tmp_path / f"{said(order)} {os.getpid()}").touch()
        if order.job.environ["JOB"] == "broken":
            raise SandboxError("no namespaces")
        return DryRunResult(NoEstimate(said(order)))

    monkeypatch.setattr(dispatch, "here", here)
    found = dispatch.together(
        [wants("a", "l4", "h200"), fails(), wants("broken", "l4"), wants("a", "l4")], DryRuns()
    )
    assert [str(each) for each in found] == ["a:l4 a:h200", "no script", "no namespaces", "a:l4"]
    asked = [path.name.split() for path in tmp_path.iterdir()]
    assert sorted(name for name, _ in asked) == ["a:h200", "a:l4", "a:l4", "broken:l4"]
    assert len({process for _, process in asked}) == 4
    assert list(map(str, dispatch.together([wants("broken", "l4")], DryRuns()))) == [
        "no namespaces"
    ]


def test_several_runs_share_a_budget_and_the_time_between_them_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall, left = 1000.0, []
    monkeypatch.setattr("time.monotonic", lambda: wall)
    budget = SharedBudget(Budget(seconds=60))

    def run(order: DryRunOrder) -> DryRunResult:
        nonlocal wall
        left.append((order.budget.seconds, order.budget.longest))
        wall += 100
        return DryRunResult([] if len(left) == 1 else NoEstimate("it stopped"), Spent(20))

    def several() -> Orders[None]:
        nonlocal wall
        assert (yield from budget.run(order("a", "l4"))) == []
        wall += 7  # what is made of it
        with pytest.raises(NoEstimate, match="it stopped"):
            yield from budget.run(order("a", "l4"))
        with pytest.raises(NoEstimate, match="it stopped"):
            yield from budget.run(order("a", "l4"), seconds=5)

    drive(several(), run)
    assert left == [(60, 600), (40, 500), (5, 393)]
    assert (budget.spent, budget.left.seconds) == (Spent(60, 307), 1)
