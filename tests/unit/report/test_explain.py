"""An estimate that was made is read again in any form, and compared with another, with nothing
run."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.harness.told import messages
from tests.unit.cli import test_first_hour
from tests.unit.report.test_largest import with_sites
from tests.unit.report.test_report import GPUS, SIZING
from xmem_slurm.cli.main import app
from xmem_slurm.decision import stopped_by
from xmem_slurm.dryrun import dispatch, evidence
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.errors import NoEstimate, Refused
from xmem_slurm.estimating import by_dry_run
from xmem_slurm.report import html, terminal
from xmem_slurm.report import json as json_report
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers

folder = test_first_hour.folder
command = test_first_hour.command


def keep(
    *argv: str, sized: Sizing = SIZING, files: Sequence[Evidence] | None = None
) -> Mapping[int, answers.Said]:
    job = Submission(argv, {}, b"#!/bin/sh\n")
    return answers.keep_estimate(answers.key(job, []), job, {0: sized}, {}, rests_on=files)


@pytest.mark.usefixtures("folder")
def test_what_is_kept_says_in_every_form_what_was_said() -> None:
    sized = Sizing(estimate([with_sites()], "l4", GPUS["l4"]), SIZING.placement, 8.25)
    keep("job.sh", sized=sized)
    (again,) = answers.newest()
    assert (
        again.sized()[0].estimate.largest.trace.allocations
        == sized.estimate.largest.trace.allocations
    )
    assert terminal.estimate_lines(again.sized()[0].estimate) == terminal.estimate_lines(
        sized.estimate
    )
    assert json_report.estimate_object(again.sized()[0]) == json_report.estimate_object(sized)
    assert html.render(again.sized()[0]) == html.render(sized)


def test_the_last_estimate_is_explained_and_that_of_a_script(folder: Path) -> None:
    assert "no estimate is kept; `xmem-slurm estimate SCRIPT`" in str(command("explain").exception)
    command("estimate", "train.py", "--lr", "1")
    command("estimate", "job.sh")
    done = command("explain")
    assert messages(done.stderr).startswith(f"xmem-slurm: job.sh, in {folder}, ")
    assert done.stdout.splitlines()[1].startswith("at the peak: activations ")
    assert messages(command("explain", "train.py").stderr).startswith(
        "xmem-slurm: python3 train.py --lr 1, in "
    )
    assert "no estimate of other.py is kept" in str(command("explain", "other.py").exception)
    assert (
        json.loads(command("explain", "--json", "--html", "a.html", str(folder / "job.sh")).stdout)[
            "choice"
        ]
        == "l4"
    )
    assert Path("a.html").is_file()
    later = time.time() + 10
    assert "has changed since" not in messages(command("explain", "train.py").stderr)
    os.utime(folder / "train.py", (later, later))
    assert "xmem-slurm: train.py has changed since that estimate" in messages(
        command("explain", "train.py").stderr
    )


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("answers_others", [False, True])
def test_a_submission_without_an_estimate_is_spoken_of_first(
    *, refused: bool, answers_others: bool
) -> None:
    bad = Submission(("bad.sh",), {}, b"#!/bin/sh\n")
    error = Refused if refused else NoEstimate
    decision = stopped_by(error("it is likely to fail: no such file"), bad)

    def keep_why() -> None:
        if answers_others:
            answers.keep_decision(answers.key(bad, []), decision, [], 1)
        else:
            answers.keep_unanswered(decision)

    keep_why()
    told = "the last submission, bad.sh ("
    outcome = "submitted" if refused else "estimated"
    why = f"), was not {outcome}: it is likely to fail: no such file"
    for words in (["explain"], ["explain", "bad.sh"]):
        error = str(command(*words).exception)
        assert told in error
        assert error.endswith(why)
    keep("good.sh")
    assert told not in messages(command("explain").stderr)
    assert told not in messages(command("explain", "good.sh").stderr)
    keep_why()
    first, second, *_ = messages(command("explain").stderr).splitlines()
    assert told in first
    assert first.endswith(f"{why}; what follows is an earlier estimate")
    assert second.startswith("xmem-slurm: good.sh, in ")
    assert told not in messages(command("explain", "good.sh").stderr)


@pytest.mark.usefixtures("folder")
def test_an_estimate_is_out_of_date_where_a_file_that_was_read_has_changed(tmp_path: Path) -> None:
    read = tmp_path / "config.json"
    read.write_text("{}")
    keep("job.sh", files=[evidence.as_it_is(read)])
    (kept,) = answers.newest()
    assert kept.outdated_by() is None
    read.write_text("{ }")
    assert kept.outdated_by() == str(read)


@pytest.mark.usefixtures("folder")
def test_an_estimate_is_made_again_only_where_something_has_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = []

    def count(*_: object, **__: object) -> dict[int, Sizing]:
        runs.append(1)
        return {0: SIZING}

    monkeypatch.setattr(dispatch, "one", count)
    monkeypatch.setattr(by_dry_run, "_lasting", lambda *_: [Evidence("A", 0, 0, "/no/such/file")])
    first = command("estimate", "train.py")
    again = command("estimate", "--verbose", "train.py")
    assert len(runs) == 1
    assert again.stdout.startswith(first.stdout.split(";", maxsplit=1)[0])
    assert "xmem-slurm: known since " in messages(again.stderr)
    for argv in (["--fresh", "train.py"], ["--gpu", "l4", "train.py"], ["train.py", "--lr", "1"]):
        command("estimate", *argv)
    assert len(runs) == 4
    monkeypatch.setattr(by_dry_run, "_lasting", lambda *_: [Evidence("R", 1, 1, "/etc/passwd")])
    command("estimate", "--fresh", "train.py")
    command("estimate", "train.py")
    assert len(runs) == 6


@pytest.mark.usefixtures("folder")
def test_no_more_than_there_is_room_for_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "STORE", answers.STORE._replace(most=3))
    for number in range(5):
        keep(f"{number}.sh")
    assert len(list(answers.newest())) == 3
    assert answers.find(["0.sh"], Path.cwd()) is None
    assert answers.find(["4.sh"], Path.cwd()) is not None


@pytest.mark.usefixtures("folder")
def test_two_estimates_are_compared() -> None:
    larger = Sizing(estimate([with_sites()], "l4", GPUS["l4"]), SIZING.placement, 8.25)
    document = json_report.estimate_object(larger)
    rank = document["ranks"][0]
    rank["breakdown"]["ACT"] -= 1 << 30
    rank["largest"][0]["blocks"] -= 12
    document["required_bytes"] -= 1 << 30
    document["options"][1]["fits"] = True
    Path("a.json").write_text(json.dumps(document))
    keep("job.sh", sized=larger)
    done = CliRunner().invoke(app, ["compare", "a.json", "job.sh", "--html", "diff.html"])
    words = [line.split() for line in done.stdout.splitlines()]
    assert words[0] == ["a.json", "job.sh", "difference"]
    assert words[1] == ["GPU", "memory", "needed", "14.35", "GiB", "15.35", "GiB", "+1.00", "GiB"]
    assert ["activations", "7.15", "GiB", "8.15", "GiB", "+1.00", "GiB"] in words
    assert any(
        "(h.*.mlp, model.py:88)" in line and line.endswith("+1.12 GiB")
        for line in done.stdout.splitlines()
    )
    assert any(
        line.startswith("a100_40") and line.endswith("*") for line in done.stdout.splitlines()
    )
    found = json.loads(CliRunner().invoke(app, ["compare", "--json", "a.json", "job.sh"]).stdout)
    assert found["required_bytes"] == {
        "before": document["required_bytes"],
        "after": larger.estimate.required_bytes,
    }
    assert "h.*.mlp, model.py:88" in Path("diff.html").read_text()
    Path("b.json").write_text("{}")
    assert "b.json: no estimate that can be read" in str(
        CliRunner().invoke(app, ["compare", "a.json", "b.json"]).exception
    )


@pytest.mark.usefixtures("folder")
def test_a_word_that_is_no_text_costs_no_estimate() -> None:
    assert keep("job.sh", "\udcff")[0].brief
    (kept,) = answers.newest()
    assert kept.command == ["job.sh", "\udcff"]


@pytest.mark.usefixtures("folder")
def test_of_a_script_that_is_not_there_no_estimate_is_offered() -> None:
    Path("there.py").touch()
    words = "no estimate of {} is kept; "
    assert str(command("explain", "there.py").exception).startswith(
        words.format("there.py") + "`xmem-slurm estimate there.py` makes one"
    )
    assert str(command("explain", "gone.py").exception) == (
        words.format("gone.py") + "and there is no such file here"
    )
