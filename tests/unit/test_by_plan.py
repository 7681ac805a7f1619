"""xsbatch --xmem-plan submits what a plan found and says what that changes; without one the job is as written."""

import pytest

from tests.unit.test_plan import SCRIPT, gpu, planned, site_of
from xmem_slurm.decision import Kind
from xmem_slurm.errors import NoEstimate
from xmem_slurm.planning import on_site
from xmem_slurm.planning.on_site import Planned
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission.answer import Wishes, answer

JOB = Submission(("job.sh",), {}, SCRIPT.encode())


def found(mib: int) -> Planned:
    gpus = {"small": gpu(mib)}
    return Planned(planned(SCRIPT, site_of(small=8), gpus)[0], site_of(small=8), gpus)


def test_the_best_way_is_submitted_and_what_it_changes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = found(3000)
    monkeypatch.setattr(on_site, "plan", lambda *_: plan)
    decision = answer(JOB, Wishes(plan=True), print)
    assert decision.kind is Kind.REWRITTEN
    assert decision.ready == plan.submission(plan.best)
    assert decision.ready.script != JOB.script
    assert decision.brief[0].startswith(f"planned: {plan.best.candidate}; ")
    assert any(line.startswith("this changes ") for line in decision.brief)


def test_where_no_way_fits_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the job submitted as it was written (`submission.submit`)."""
    plan = found(150)
    monkeypatch.setattr(on_site, "plan", lambda *_: plan)
    with pytest.raises(NoEstimate, match="none of the ways that were looked at fits"):
        answer(JOB, Wishes(plan=True), print)
