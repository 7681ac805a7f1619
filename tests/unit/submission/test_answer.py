"""What is known of a job that could not be estimated: it is paid for once, unless only the machine
was at fault."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from xmem_slurm.dryrun import dispatch
from xmem_slurm.errors import Busy, NoEstimate
from xmem_slurm.estimating import asked
from xmem_slurm.estimating.asked import Wanted
from xmem_slurm.report import decided
from xmem_slurm.sizing.margins import RanOut
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers
from xmem_slurm.submission.answer import Wishes, answer
from xmem_slurm.trace import File

JOB = Submission(
    ("--hold", "--gres=gpu:h200:1", "job.sh"), {"PATH": "/usr/bin"}, b"#!/bin/sh\npython train.py\n"
)
"""Held: Slurm is not asked whether it would take the job."""
UNREADABLE = JOB.but(script=b'#!/bin/sh\nsource "$(date)"\npython train.py\n')
WISHES = Wishes(site=str(EXAMPLE_SITE))


class DryRuns:
    """Stands for dry runs that give no estimate, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.error = NoEstimate("its script failed")

    def __call__(self, *_: object, **__: object) -> dict[int, NoEstimate]:
        self.count += 1
        return {0: self.error}


@pytest.fixture
def dry_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DryRuns:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    found = DryRuns()
    monkeypatch.setattr(dispatch, "one", found)
    return found


def submit_twice(job: Submission, wishes: Wishes = WISHES) -> Sequence[str]:
    with pytest.raises(NoEstimate):
        answer(job, wishes, lambda _: None)
    try:
        return decided.lines(answer(job, wishes, lambda _: None))
    except NoEstimate:
        return []


@pytest.mark.parametrize(
    ("job", "files", "days"),
    [
        (JOB, [], answers.DAYS_WITHOUT_ESTIMATE),
        (JOB, None, answers.DAYS_UNSEEN),
        (UNREADABLE, [], answers.DAYS_UNSEEN),
    ],
)
def test_a_job_without_an_estimate_is_paid_for_once_and_told_why(
    dry_runs: DryRuns, tmp_path: Path, job: Submission, files: list[File] | None, days: float
) -> None:
    dry_runs.error = NoEstimate("its script failed", files)
    lines = submit_twice(job)
    assert dry_runs.count == 1
    assert lines[0] == "submitted as written: its script failed [XMEM_FRESH=1 tries again]"
    del tmp_path
    kept = {record.head["days"] for record in answers.STORE.newest()}
    assert kept == {days, answers.FOR_WHO_WAITS}
    assert submit_twice(job, WISHES._replace(fresh=True)) == []


def test_what_only_a_busy_machine_stopped_is_no_fact_about_the_job(dry_runs: DryRuns) -> None:
    dry_runs.error = NoEstimate("the dry run was stopped at its time limit", [], busy=True)
    assert submit_twice(JOB) == []
    assert dry_runs.count == 2


def test_a_job_whose_turn_does_not_come_goes_as_written_and_nothing_is_known_of_it(
    dry_runs: DryRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def waits(*_: object, **__: object) -> dict[int, NoEstimate]:
        with pytest.raises(
            Busy, match="another submission of it is being dry-run, and had no answer within 0 s"
        ):
            answer(JOB, WISHES._replace(queue_seconds=0.2), told.append)
        return dry_runs()

    monkeypatch.setattr(dispatch, "one", waits)
    with pytest.raises(NoEstimate):
        answer(JOB, WISHES._replace(queue_seconds=0.2), told.append)
    assert dry_runs.count == 1
    assert len(told) == 1


def test_more_that_is_learned_of_an_oom_ends_the_answer_of_before(
    dry_runs: DryRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same words: who ran out at 38 GiB took 70 the next time, or that was too little of
    another estimate."""
    names: list[str] = []
    monkeypatch.setattr(
        "xmem_slurm.estimating.by_dry_run.estimate",
        lambda _job, _wanted, name, *_: names.append(name),
    )
    dry_runs.error = NoEstimate("its script failed", [])
    for expected, known_of_it in enumerate([(0.3, 38), (1.3, 38), (1.3, 70), (None, 70)], start=1):
        ran_out = RanOut("job 7 ran out of memory on l4 at 38.00 GiB", *known_of_it)
        monkeypatch.setattr("xmem_slurm.submission.answer.ran_out", lambda _, known=ran_out: known)
        submit_twice(JOB)
        asked.estimate(JOB, Wanted(), lambda _: None)
        assert (dry_runs.count, len(set(names))) == (expected, expected)
