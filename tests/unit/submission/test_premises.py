"""What a sizing starts from is put together in one way, and is what its answer rests on."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.cli import test_first_hour
from tests.unit.planning.test_plan import SCRIPT
from tests.unit.report.test_report import SIZING
from tests.unit.submission.test_by_plan import found, having_read, site_with, whole
from xmem_slurm.decision import Kind
from xmem_slurm.dryrun import admission, dispatch
from xmem_slurm.errors import Busy, NoEstimate
from xmem_slurm.estimating import asked
from xmem_slurm.estimating.asked import Wanted
from xmem_slurm.planning import on_site
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission.answer import Wishes, answer

folder = test_first_hour.folder
command = test_first_hour.command
JOB = Submission(("job.sh",), {"XMEM_SITE": str(EXAMPLE_SITE)}, SCRIPT.encode())
PLAN = Wishes(plan=True, dry_run=True)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """How long a turn was waited for, each time."""
    waited = list[float | None]()

    @contextmanager
    def turn(_: object, seconds: float | None, __: object) -> Iterator[None]:
        waited.append(seconds)
        yield

    monkeypatch.setattr(admission, "turn", turn)
    return waited


def changing(site_file: Path, answered: Callable[[], object]) -> Callable[..., object]:
    """Stand for what takes a while: meanwhile somebody edits the site file."""

    def run(*_: object, **__: object) -> object:
        site_file.write_text(site_file.read_text() + "# edited\n")
        return answered()

    return run


def test_an_estimate_during_which_the_site_file_changed_is_not_given_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_file, read = Path(site_with("", folder / "site.toml")), folder / "train.py"
    estimate = having_read(SIZING.estimate, read)
    assert estimate is not None
    sized = dataclasses.replace(SIZING, estimate=estimate)
    job = asked.job_of(["train.py"], {"PATH": str(folder / "bin")})
    wanted = Wanted(Wishes(site=str(site_file)))
    known = []
    for run in (lambda *_: {0: sized}, changing(site_file, lambda: {0: sized})):
        monkeypatch.setattr(dispatch, "one", run)
        fresh = wanted._replace(wishes=wanted.wishes._replace(fresh=True))
        asked.estimate(job, fresh, print)
        known.append(asked.estimate(job, wanted, print).known_since is not None)
    assert known == [True, False]


def test_a_plan_during_which_the_site_file_changed_is_not_given_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site_file, read = Path(site_with("", folder / "site.toml")), folder / "train.py"
    job, plan = JOB.but(environ={"XMEM_SITE": str(site_file)}), whole(found(3000), read)
    known = []
    for make in (lambda *_: plan, changing(site_file, lambda: plan)):
        monkeypatch.setattr(on_site, "plan", make)
        answer(job, PLAN._replace(fresh=True), print)
        known.append(answer(job, PLAN, print).known_since is not None)
    assert known == [True, False]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("plan", [True, False])
def test_a_submission_waits_once_for_its_turn_and_no_longer_than_it_may(
    plan: bool, turns: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*_: object, **__: object) -> None:
        raise NoEstimate("that is enough")

    monkeypatch.setattr(on_site.Search, "plan", ends)
    monkeypatch.setattr(dispatch, "one", ends)
    with pytest.raises(NoEstimate, match="that is enough"):
        answer(JOB, PLAN._replace(plan=plan, queue_seconds=5), print)
    (seconds,) = turns
    assert seconds is not None
    assert 0 < seconds <= 5


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "words",
    [
        ("estimate", "job.sh"),
        ("estimate", "--max-batch", "job.sh"),
        ("plan", "job.sh"),
        ("generate", "--", "python", "train.py"),
    ],
    ids=" ".join,
)
def test_who_asks_for_nothing_but_an_answer_waits_an_hour_for_its_turn(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = []

    def turn(_: object, seconds: float | None, __: object) -> None:
        waited.append(seconds)
        raise Busy("it is not its turn")

    monkeypatch.setattr(admission, "turn", turn)
    assert isinstance(command(*words).exception, Busy)
    assert waited == [3600]


def test_a_job_that_asks_for_no_gpu_is_not_planned_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it would use one is to be told within seconds."""
    site = site_with('unasked = "advise"', folder / "site.toml")
    monkeypatch.setattr(on_site, "plan", lambda *_: pytest.fail("it was planned for"))
    monkeypatch.setattr(dispatch, "one", lambda *_: {0: SIZING})
    job = JOB.but(script=b"#!/bin/sh\npython train.py\n", environ={"XMEM_SITE": site})
    assert answer(job, PLAN, print).kind is Kind.UNASKED_GPU
