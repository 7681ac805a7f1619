"""xsbatch --xmem-plan submits what a plan found and says what that changes; without one the job is
as written."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.planning.test_plan import SCRIPT, gpu, planned, site_of
from xmem_slurm.decision import Kind
from xmem_slurm.dryrun import evidence
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.planning import on_site
from xmem_slurm.planning.on_site import Planned
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission.answer import Wishes, answer

JOB = Submission(("job.sh",), {"XMEM_SITE": str(EXAMPLE_SITE)}, SCRIPT.encode())
WISHES = Wishes(plan=True, dry_run=True)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def found(mib: int) -> Planned:
    gpus = {"small": gpu(mib)}
    return Planned(planned(SCRIPT, site_of(small=8), gpus)[0], site_of(small=8), gpus)


def having_read(estimate: Estimate | None, path: Path) -> Estimate | None:
    if estimate is None:
        return None
    read = [evidence.as_it_is(path)]
    return replace(
        estimate,
        ranks=[replace(rank, trace=replace(rank.trace, files=read)) for rank in estimate.ranks],
    )


def test_the_best_way_is_submitted_and_what_it_changes_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = found(3000)
    monkeypatch.setattr(on_site, "plan", lambda *_: plan)
    decision = answer(JOB, WISHES, print)
    assert decision.kind is Kind.REWRITTEN
    assert decision.ready == plan.submission(plan.best)
    assert decision.ready.script != JOB.script
    assert decision.brief[0].startswith(f"planned: {plan.best.candidate}; ")
    assert any(line.startswith("this changes ") for line in decision.brief)


def test_where_no_way_fits_there_is_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the job submitted as it was written (`submission.submit`)."""
    plan = found(150)
    monkeypatch.setattr(on_site, "plan", lambda *_: plan)
    with pytest.raises(NoEstimate, match="none of the ways that were considered fits"):
        answer(JOB, WISHES, print)


def test_a_plan_is_made_once_until_what_its_dry_runs_read_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan, data, asked = found(3000), tmp_path / "data", []
    data.write_text("1")
    rows = [replace(row, estimate=having_read(row.estimate, data)) for row in plan.plan.rows]
    base = replace(
        plan.plan.base, trace=replace(plan.plan.base.trace, files=[evidence.as_it_is(data)])
    )
    whole = replace(plan, plan=replace(plan.plan, rows=rows, base=base))
    monkeypatch.setattr(on_site, "plan", lambda *_: asked.append("") or whole)
    first, second = (answer(JOB, WISHES, print) for _ in range(2))
    assert second.known_since is not None
    assert (second.ready, second.brief) == (first.ready, first.brief)
    assert len(asked) == 1
    data.write_text("other")
    answer(JOB, WISHES, print)
    assert len(asked) == 2


def site_with(policy: str, path: Path) -> str:
    """Write the example site with these lines in place of its policy; return its path."""
    text = EXAMPLE_SITE.read_text()
    before, _, rest = text.partition("[policy]\n")
    path.write_text(f"{before}[policy]\n{policy}\n{rest[rest.index('# What a job can request') :]}")
    return str(path)


@pytest.mark.parametrize(
    ("policy", "words", "wishes", "on", "kind"),
    [
        ("", "", {}, [], Kind.REWRITTEN),
        ("rewrite = false", "", {}, [], Kind.ADVISED),
        ("", "#XMEM keep-type\n", {}, ["h200"], Kind.REWRITTEN),
        ("keep_type = true", "", {}, ["h200"], Kind.REWRITTEN),
        ("", "", {"keep_type": True, "advise": True}, ["h200"], Kind.ADVISED),
    ],
)
def test_the_words_of_the_site_and_of_the_user_hold(
    policy: str,
    words: str,
    wishes: dict[str, bool],
    on: list[str],
    kind: Kind,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    site = site_with(policy, tmp_path / "site.toml")
    plan, wanted = found(3000), []
    monkeypatch.setattr(on_site, "plan", lambda _job, want, *_: wanted.append(want) or plan)
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:h200:2\n{words}{SCRIPT.partition(chr(10))[2]}"
    job = JOB.but(script=script.encode(), environ={"XMEM_SITE": site})
    decision = answer(job, WISHES._replace(budget=90, margin=10, policy="memory", **wishes), print)
    assert (wanted[0].on, wanted[0].seconds, wanted[0].margin, wanted[0].policy) == (
        on,
        90,
        10,
        "memory",
    )
    assert decision.kind is kind
    assert (decision.ready == job) == (kind is Kind.ADVISED)


def test_a_type_that_is_to_be_kept_and_that_the_site_does_not_name_is_not_planned_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = site_with("keep_type = true", tmp_path / "site.toml")
    monkeypatch.setattr(on_site, "plan", lambda *_: pytest.fail("it was planned for"))
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:a40:2\n{SCRIPT.partition(chr(10))[2]}"
    with pytest.raises(UsageError, match="a40 must be kept, and site example names no such GPU"):
        answer(JOB.but(script=script.encode(), environ={"XMEM_SITE": site}), WISHES, print)
