"""What a later version has kept is read as far as it is known here, or passed over, and never an
error: who goes back to an earlier version loses nothing but some dry runs.

Made of what this one keeps (`tests/data/kept`): with keys, words and numbers of forms that there
are not yet.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.test_first_hour import command
from tests.unit.outcomes.test_kept_by_earlier_versions import JOB, KEPT, put_into
from xmem_slurm.errors import UsageError
from xmem_slurm.outcomes import learned, records
from xmem_slurm.report import totals
from xmem_slurm.submission import answers

LATEST = KEPT[-1]
LATER = "99.0.0"


@pytest.fixture(autouse=True)
def nothing_else_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the user folders of their own, with nothing in them."""
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    monkeypatch.delenv("XMEM_SITE", raising=False)
    monkeypatch.chdir(tmp_path)


def later_answer(kind: str, tmp_path: Path) -> Path:
    """Return a file of an answer as a later version may keep it."""
    head, _, parts = (LATEST / kind).read_bytes().partition(b"\n")
    content, lengths = json.loads(head)
    content |= {"version": LATER, "notes": {"of": "later"}}
    if content["decision"] is not None:
        content["decision"] |= {"kind": "of a later version"}
    file = tmp_path / f"later-{kind}"
    file.write_bytes(json.dumps([content, lengths]).encode() + b"\n" + parts)
    return file


def test_an_answer_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    kinds = ("answer-of-an-estimate", "answer-of-a-submission")
    names = [put_into(answers.STORE, later_answer(kind, tmp_path)) for kind in kinds]
    assert list(answers.newest()) == []
    assert [answers.look_up_estimate(name, JOB) for name in names] == [None, None]
    assert [answers.look_up(name, JOB) for name in names] == [None, None]
    assert isinstance(command("explain").exception, UsageError)


@pytest.mark.parametrize(("what", "value"), [("__version__", LATER), ("SCHEMA_VERSION", 99)])
def test_a_later_version_looks_for_its_answers_under_other_names(
    what: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = answers.key(JOB, [])
    monkeypatch.setattr(answers, what, value)
    assert answers.key(JOB, []) != here


def test_answers_from_before_an_upgrade_hold_again_for_who_goes_back(tmp_path: Path) -> None:
    name = put_into(answers.STORE, LATEST / "answer-of-an-estimate")
    put_into(answers.STORE, later_answer("answer-of-an-estimate", tmp_path))
    assert answers.look_up_estimate(name, JOB) is not None
    assert len(list(answers.newest())) == 1
    assert command("explain").stdout.startswith("GPU memory needed: 902.00 MiB")


def test_what_later_recorders_wrote_counts_as_far_as_it_is_known() -> None:
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (LATEST / "outcomes.jsonl").read_text().splitlines() if line
    ]
    known = {line["job"] for line in lines}
    for line in lines:
        line |= {"v": 2, "watts": 300.5}
        for device in line["devices"]:
            device["sms"] = [1, 2]
        line["prediction"]["seconds"] = {"step": 0.25}
    suspended = lines[0] | {"job": "4711", "state": "suspended"}
    place = records.make_folder()
    file = place / f"{os.getuid()}-vm.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, suspended]))
    outcomes = records.outcomes(place)
    assert {outcome.job for outcome in outcomes} == known
    assert all(outcome.prediction is not None for outcome in outcomes)
    assert f"{len(known)} jobs recorded" in command("trust").stdout


@pytest.mark.parametrize(("renamed", "margins"), [(False, 1), (True, 0)])
def test_margins_that_a_later_version_learned_hold_or_are_left_out_with_a_word(
    renamed: bool, margins: int
) -> None:
    text = (LATEST / "margins.toml").read_text().replace("schema_version = 1", "schema_version = 2")
    text = text.replace("share =", "share_of_peak =") if renamed else f"{text}of_two = true\n"
    learned.own_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    learned.own_file().write_text(text)
    learned.own_file().chmod(0o600)
    complaints: list[str] = []
    assert len(learned.margins(None, complaints.append)) == margins
    assert ["until `xmem-slurm learn` writes it again" in line for line in complaints] == [
        True
    ] * renamed


def test_what_a_later_version_counted_of_a_site_s_record_goes_on(tmp_path: Path) -> None:
    counted = json.loads((LATEST / "totals.json").read_text())
    jobs = dict(counted["jobs"])
    counted["jobs"]["a later outcome"] = 7
    file = tmp_path / totals.NAME
    file.write_text(json.dumps(counted | {"schema_version": 2, "weeks": {"1": 2}}))
    file.chmod(0o600)
    found, failure = totals.count(tmp_path, {"h200", "l4"})
    assert failure is None
    assert {name: found.jobs[name] for name in jobs} == jobs
