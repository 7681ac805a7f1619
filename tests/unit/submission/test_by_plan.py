"""xsbatch --xmem-plan submits what a plan found and says what that changes; without one the job is
as written."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.planning.test_plan import SCRIPT, gpu, planned, site_of
from xmem_slurm.cli import plan as cli
from xmem_slurm.cli.xsbatch import parse
from xmem_slurm.decision import Decision, Kind
from xmem_slurm.dryrun import evidence
from xmem_slurm.dryrun.order import Asked
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


def found(mib: int, script: str = SCRIPT, memory_mib: int = 512000, **policy: bool) -> Planned:
    """Return the plan for a site of this policy, whose nodes have so much memory."""
    gpus, site = {"small": gpu(mib)}, site_of(memory_mib, small=8)
    policies = site.policy.model_copy(update=policy)
    site = site.model_copy(update={"policy": policies})
    return Planned(planned(script, site, gpus)[0], site, gpus)


def having_read(estimate: Estimate | None, path: Path) -> Estimate | None:
    if estimate is None:
        return None
    read = [evidence.as_it_is(path)]
    return replace(
        estimate,
        ranks=[replace(rank, trace=replace(rank.trace, files=read)) for rank in estimate.ranks],
    )


def whole(plan: Planned, path: Path) -> Planned:
    """Return a plan whose dry runs read this file, and came to their ends."""
    rows = [replace(row, estimate=having_read(row.estimate, path)) for row in plan.plan.rows]
    trace = replace(plan.plan.base.trace, files=[evidence.as_it_is(path)])
    base = replace(plan.plan.base, trace=trace)
    return replace(plan, plan=replace(plan.plan, rows=rows, base=base))


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
    data, asked = tmp_path / "data", []
    data.write_text("1")
    plan = whole(found(3000), data)
    monkeypatch.setattr(on_site, "plan", lambda *_: asked.append("") or plan)
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
    plan, calls = found(3000), []
    monkeypatch.setattr(on_site, "plan", lambda *call: calls.append(call) or plan)
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:h200:2\n{words}{SCRIPT.partition(chr(10))[2]}"
    job = JOB.but(script=script.encode(), environ={"XMEM_SITE": site})
    decision = answer(job, WISHES._replace(budget=90, margin=10, policy="memory", **wishes), print)
    (_, wanted, premises, _), *_ = calls
    assert (wanted.on, wanted.seconds) == (on, 90)
    assert (premises.site.policy.spare, premises.site.policy.order) == (0.1, "memory")
    assert decision.kind is kind
    assert (decision.ready == job) == (kind is Kind.ADVISED)


@pytest.mark.parametrize(("said", "seconds"), [((), 180), (("--xmem-budget=60",), 60)])
def test_a_budget_that_is_said_is_that_of_the_plan_also_where_it_is_the_default_of_a_sizing(
    said: tuple[str, ...], seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, calls = found(3000), []
    monkeypatch.setattr(on_site, "plan", lambda *call: calls.append(call) or plan)
    _, wishes, _ = parse(["--xmem-plan", "--xmem-dry-run", *said, "job.sh"], {})
    answer(JOB, wishes, print)
    assert [wanted.seconds for _, wanted, *_ in calls] == [seconds]


def test_what_is_asked_of_a_dry_run_is_asked_of_those_of_a_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And what a plan does not do is said."""
    plan, calls = found(3000), []
    monkeypatch.setattr(on_site, "plan", lambda *call: calls.append(call) or plan)
    job = JOB.but(environ={"XMEM_SITE": site_with("", tmp_path / "site.toml")})
    asked = Asked(engine="profile", ranks="last", array_tasks="3", fresh=True)
    wishes = WISHES._replace(
        engine="profile", ranks="last", array_tasks="3", fresh=True, html="report.html"
    )
    decision = answer(job, wishes, print)
    assert calls[0][2].run_options == asked
    assert "no report is drawn of a plan" in decision.brief


def test_a_type_that_is_to_be_kept_and_that_the_site_does_not_name_is_not_planned_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = site_with("keep_type = true", tmp_path / "site.toml")
    monkeypatch.setattr(on_site, "plan", lambda *_: pytest.fail("it was planned for"))
    script = f"#!/bin/bash\n#SBATCH --gres=gpu:a40:2\n{SCRIPT.partition(chr(10))[2]}"
    with pytest.raises(UsageError, match="a40 must be kept, and site example names no such GPU"):
        answer(JOB.but(script=script.encode(), environ={"XMEM_SITE": site}), WISHES, print)


ASKS_FOR_LESS = SCRIPT.replace("#SBATCH --ntasks=1", "#SBATCH --ntasks=1\n#SBATCH --mem=1536M")
"""The best way has two processes on a node, which hold 1 GiB each; 1 more for each is for CUDA."""
HELD = "2 x 1.00 GiB of host memory on each node"
RAISED = "--mem=1536M -> --mem=4G (line 4 of the script):\nin the dry run it held 1.00 GiB of host memory"
NO_NODE = "it is not raised, as no node of this site with small has 4.00 GiB for the job"
SHORT = f"{HELD}, of which the job asks for 1.50 GiB: ask for more"


def decided(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Planned, wishes: Wishes = WISHES
) -> Decision:
    policy = f"rewrite = {str(plan.site.policy.rewrite).lower()}"
    monkeypatch.setattr(on_site, "plan", lambda *_: plan)
    site = site_with(policy, tmp_path / "site.toml")
    return answer(plan.plan.base.job.but(environ={"XMEM_SITE": site}), wishes, print)


@pytest.mark.parametrize(
    ("wish", "by_site"), [(True, False), (None, True)], ids=["the user lets it", "the site does"]
)
def test_host_memory_is_raised_for_the_best_way_where_that_is_let(
    wish: bool | None, by_site: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = found(3000, ASKS_FOR_LESS, raise_mem=by_site)
    decision = decided(monkeypatch, tmp_path, plan, WISHES._replace(raise_mem=wish))
    assert decision.ready.request.value("mem") == "4G"
    assert decision.ready.script is not None
    assert b"--mem=1536M -> --mem=4G: planned" in decision.ready.script
    assert any(line.startswith(RAISED) for line in decision.brief)
    first, second = (
        next(at for at, line in enumerate(decision.lines) if re.match(rf"{number}\. \D", line))
        for number in (1, 2)
    )
    assert HELD not in "".join(decision.lines[first:second])


@pytest.mark.parametrize(
    ("asked", "raised"),
    [("--mem-per-gpu=768M", "--mem-per-gpu=2G"), ("--mem=4G", "--mem=4G"), ("", "")],
)
def test_what_a_way_asks_for_is_raised_in_its_own_spelling_and_never_lowered(
    asked: str, raised: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = found(3000, ASKS_FOR_LESS.replace("#SBATCH --mem=1536M", f"#SBATCH {asked}"))
    decision = decided(monkeypatch, tmp_path, plan, WISHES._replace(raise_mem=True))
    assert decision.ready.script is not None
    assert f"#SBATCH {raised}\n".encode() in decision.ready.script
    assert any("host memory" in line for line in decision.brief) == (raised != asked)


@pytest.mark.parametrize(
    ("plan", "wishes", "words"),
    [
        ({}, {}, f"this job may be killed: it holds {SHORT} [XMEM_RAISE_MEM=1 raises it]"),
        ({"raise_mem": True}, {"advise": True}, SHORT),
        ({"raise_mem": True, "rewrite": False}, {}, SHORT),
        (
            {"memory_mib": 3 << 10, "raise_mem": True},
            {},
            f"this job may be killed: it holds {SHORT}; {NO_NODE}",
        ),
    ],
    ids=["nobody lets it", "it is only advised", "the site changes nothing", "no node has it"],
)
def test_where_host_memory_is_not_raised_it_is_said_what_is_lacking(
    plan: dict[str, bool],
    wishes: dict[str, bool],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    decision = decided(
        monkeypatch, tmp_path, found(3000, ASKS_FOR_LESS, **plan), WISHES._replace(**wishes)
    )
    assert decision.ready.request.value("mem") == "1536M"
    assert words in decision.brief


def test_a_plan_that_is_written_asks_for_host_memory_as_one_that_is_submitted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, script = tmp_path / "plan.sh", ASKS_FOR_LESS.replace("\n", "\n#XMEM raise-mem\n", 1)
    (tmp_path / "job.sh").write_text(script)
    plan = found(3000, script)
    monkeypatch.setattr(on_site, "plan", lambda *_: plan)
    cli.plan([str(tmp_path / "job.sh")], site=str(EXAMPLE_SITE), write=path)
    assert "#SBATCH --mem=4G\n" in path.read_text()
    told = capsys.readouterr()
    assert SHORT in " ".join(told.out.split()), "the table has the job as it is"
    assert "xmem-slurm: --mem=1536M -> --mem=4G (line 5 of the script):" in told.err
