"""Jobs that are sized together: each dry run that one wants is made once, and no job is asked without end."""

import itertools
import json

import pytest

from xmem_slurm.dryrun import array_job, cpu_node
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.errors import NoEstimate, SlurmError
from xmem_slurm.site.schema import DryRuns

WHERE = DryRuns(where="srun", partition="cpu")
clock = itertools.count()


def order(job: str, gpu: str) -> str:
    environ = {"JOB": job, "SLURM_JOB_START_TIME": str(next(clock))}
    return json.dumps({"job": {"environ": environ}, "gpu": gpu, "budget": next(clock)})


def wants(job: str, *gpus: str) -> str:
    """Stand for a sizing that looks at one GPU after the other."""
    return " ".join(cpu_node.ask.get()(order(job, gpu), Budget(), WHERE).decode() for gpu in gpus)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    seen: list[list[str]] = []

    def run(orders: list[str], _budget: Budget, _where: DryRuns) -> list[bytes | SlurmError]:
        what = [json.loads(each) for each in orders]
        seen.append([f"{each['job']['environ']['JOB']}:{each['gpu']}" for each in what])
        return [SlurmError("its node died") if said == "broken:l4" else said.encode() for said in seen[-1]]

    monkeypatch.setattr(array_job, "run", run)
    monkeypatch.setattr(cpu_node, "by_srun", lambda *order: run([order[0]], Budget(), WHERE)[0])
    return seen


def test_each_dry_run_is_made_once_and_all_that_are_wanted_at_once(rounds: list[list[str]]) -> None:
    def fails() -> str:
        raise NoEstimate("no script")

    sizes = [
        lambda: wants("a", "l4"),
        lambda: wants("b", "l4", "h200"),
        lambda: wants("a", "l4"),
        lambda: wants("broken", "l4", "h200"),
        fails,
    ]
    found = array_job.together(sizes, WHERE)
    assert found[:3] == ["a:l4", "b:l4 b:h200", "a:l4"]
    assert list(map(str, found[3:])) == ["its node died", "no script"]
    assert rounds == [["a:l4", "b:l4", "broken:l4"], ["b:h200"]]


def test_a_job_that_wants_ever_more_is_given_up(rounds: list[list[str]]) -> None:
    more = itertools.count()
    endless, other = array_job.together(
        [lambda: wants("a", *(str(next(more)) for _ in range(100))), lambda: wants("b", "l4")], WHERE
    )
    assert isinstance(endless, SlurmError)
    assert other == "b:l4"
    assert len(rounds) == array_job.MOST_ROUNDS


def test_where_dry_runs_are_made_here_nothing_is_asked() -> None:
    assert array_job.together([lambda: "a", lambda: "b"], DryRuns()) == ["a", "b"]
