"""What earlier versions have kept is used, or passed over, and never an error.

`tests/data/kept` has a folder for each of two of them, 0.2.0 by name: what the code itself wrote of
made-up jobs in a checkout of that day (76ae21f6 of 2026-11-27, e0e1fe26 of 2026-11-25). Where age
counts, the time is set anew.
"""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.unit.cli.test_first_hour import command
from xmem_slurm.dryrun import kept_runs
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.outcomes import history, learned, learning, records
from xmem_slurm.outcomes.trust import track_record
from xmem_slurm.report import audit, totals
from xmem_slurm.report import outcomes as told
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.margins import Margin
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state.store import Store
from xmem_slurm.submission import answers
from xmem_slurm.units import GIB

KEPT = sorted((Path(__file__).parents[2] / "data" / "kept").iterdir())
SCRIPT = b"#!/bin/bash\n#SBATCH --gres=gpu:h200:1\npython train.py\n"
JOB = Submission(("job.sh",), {}, SCRIPT)


@pytest.fixture(params=KEPT, ids=lambda folder: folder.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return what a version has kept, for a user who has nothing else."""
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "own"))
    monkeypatch.delenv("XMEM_SITE", raising=False)
    monkeypatch.chdir(tmp_path)
    folder: Path = request.param
    return folder


def put_into(store: Store, file: Path) -> str:
    """Have a store keep a record as it was written, but for its time; return its name there."""
    store.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    head, _, parts = file.read_bytes().partition(b"\n")
    (content, lengths) = json.loads(head)
    content["made"] = time.time()
    target = store.folder / file.name
    target.write_bytes(json.dumps([content, lengths]).encode() + b"\n" + parts)
    target.chmod(0o600)
    return file.name


def test_an_answer_of_another_version_is_passed_over(
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [put_into(answers.STORE, file) for file in kept.glob("answer-*")]
    assert len(names) == 2
    assert len(list(answers.newest())) == 2
    monkeypatch.setattr(answers, "__version__", "9.0.0")
    assert list(answers.newest()) == []
    assert [answers.look_up_estimate(name, JOB) for name in names] == [None, None]
    failed = command("explain")
    assert isinstance(failed.exception, UsageError)
    assert str(failed.exception).startswith("no estimate is kept; ")


def test_an_estimate_of_an_earlier_form_is_told_as_it_was(kept: Path) -> None:
    """A version that is being worked on has the same name from commit to commit."""
    name = put_into(answers.STORE, kept / "answer-of-an-estimate")
    estimate = answers.look_up_estimate(name, JOB)
    assert estimate is not None
    assert estimate.said[0].document["required_bytes"] == 945_815_552
    assert estimate.sized()[0].estimate.required_bytes == 945_815_552
    done = command("explain")
    assert (done.exit_code, done.stdout.split(" = ")[0]) == (0, "GPU memory needed: 902.00 MiB")


def test_a_decision_of_an_earlier_form_is_made_anew(kept: Path) -> None:
    """It had the changed script whole, with the options of whoever had asked."""
    assert answers.look_up(put_into(answers.STORE, kept / "answer-of-a-submission"), JOB) is None


def test_a_dry_run_of_an_earlier_form_is_used_or_made_again(
    kept: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its name has the program's own files in it: it is found here by another name alone."""
    put_into(kept_runs.STORE, kept / "dry-run")
    job = Job(b"#!/bin/sh\npython3 /nowhere/train.py\n", (), Path("/"), {})
    order = DryRunOrder(job, load_catalogue()["l4"], Budget(seconds=60))
    assert kept_runs.look_up(order) is None
    monkeypatch.setattr(kept_runs, "_key", lambda _order: "dry-run")
    result = kept_runs.look_up(order)
    assert result is None or not isinstance(result.answer, NoEstimate)


def test_what_earlier_recorders_wrote_counts(kept: Path) -> None:
    place = records.make_folder()
    shutil.copy(kept / "outcomes.jsonl", place / f"{os.getuid()}-vm.jsonl")
    found = records.outcomes(place)
    states = {each.job: each.processes[0].state for each in found}
    assert states.items() >= {"7": "exit", "8": "oom"}.items()
    assert set(states) <= {"7", "8", "9"}
    for outcome in found:
        assert outcome.processes[0].host_memory is None
        assert outcome.device.reserved == 2 * GIB
        assert told.job_lines(outcome, load_catalogue())[0].startswith(f"job {outcome.job} ")
        json.dumps(told.job_document(outcome))
    said, _ = learning.lessons(found)
    assert {each.gpu for each in said} == {"NVIDIA L4"}
    assert history.of_script(found) is not None
    assert track_record(found).jobs == len(found)
    assert "job 7 ran to its end" in command("explain", "7").stdout
    assert f"{len(found)} jobs recorded" in command("trust").stdout


def test_margins_that_an_earlier_version_learned_hold(kept: Path) -> None:
    learned.own_file().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copy(kept / "margins.toml", learned.own_file())
    learned.own_file().chmod(0o600)
    complaints: list[str] = []
    (margin,) = learned.margins(None, complaints.append)
    of = "jobs of this site (2026-11-23)"
    assert margin.margin == Margin(0.0312, 0.95, 312, 40, of=of)
    assert complaints == []


def test_what_was_counted_of_a_site_s_record_goes_on(kept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir()
    shutil.copy(kept / "totals.json", folder / totals.NAME)
    (folder / totals.NAME).chmod(0o600)
    tables = {"audit": {"folder": str(folder)}}
    written = JOB.but(argv=("--gres=gpu:h200:1", "job.sh"))
    outcome = audit.AuditOutcome("changed", asks_for=["gpu:l4:1"])
    audit.record(tables, "xsbatch", written, outcome, began=time.monotonic())
    counted, failure = totals.count(folder, {"h200", "l4"})
    assert failure is None
    assert (counted.jobs["changed"], counted.jobs["unchanged"]) == (3, 1)
    assert counted.gpus == {("h200", "l4"): 3, ("h200", "h200"): 1}
