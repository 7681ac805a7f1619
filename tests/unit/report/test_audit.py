"""The site's record: a line a decision, nothing of the script in it, and nothing that its users
write is believed."""

import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import wait_until
from tests.harness.hung_mount import hung
from xmem_slurm import resources
from xmem_slurm.decision import Decision, Kind, stopped_by
from xmem_slurm.errors import NoEstimate, Refused, SlurmError
from xmem_slurm.report import audit, prometheus, totals
from xmem_slurm.slurm.submission import Submission

JOB = Submission(
    ("--gres=gpu:h200:2", "--job-name=a\nb", "job.sh", "--token=secret"),
    {},
    b"#!/bin/sh\npython train.py\n",
)
TYPES = {"h200", "l4"}


def record(folder: Path, ready: list[str] | None = None) -> None:
    tables = {"audit": {"folder": str(folder)}}
    outcome = audit.AuditOutcome("changed", "", ready or ["gpu:l4:2"])
    audit.record(tables, "xsbatch", JOB, outcome, began=time.monotonic() - 1)


def metrics(folder: Path) -> str:
    counted, failure = totals.count(folder, TYPES)
    assert failure is None
    return prometheus.text(counted)


def samples(folder: Path) -> dict[tuple[str, ...], float]:
    """Return what Prometheus reads of the metrics, by name and labels."""
    families = text_string_to_metric_families(metrics(folder))
    return {
        (each.name, *each.labels.values()): each.value
        for family in families
        for each in family.samples
    }


def file(folder: Path) -> Path:
    return folder / f"{os.getuid()}.jsonl"


def test_a_line_says_who_what_and_for_how_long_and_nothing_of_the_script(tmp_path: Path) -> None:
    record(tmp_path)
    (line,) = file(tmp_path).read_text().splitlines()
    said = json.loads(line)
    assert (said["uid"], said["job"], said["from"], said["to"]) == (
        os.getuid(),
        "a\nb",
        ["gpu:h200:2"],
        ["gpu:l4:2"],
    )
    assert (said["outcome"], said["command"]) == ("changed", "xsbatch")
    assert 1 <= said["seconds"] < 60
    assert not any(word in line for word in ("secret", "python", "train"))
    assert file(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (0o1733, None),
        (0o1770, None),
        (0o1755, "users cannot create files there"),
        (0o733, "users can remove each other's files there"),
        (None, "No such file or directory"),
    ],
)
def test_a_folder_where_users_cannot_keep_a_record_is_told(
    tmp_path: Path, mode: int | None, said: str | None
) -> None:
    folder = tmp_path / "record"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    told = audit.unusable(folder)
    assert told == (
        said and f"[audit] folder {folder}: {said}; `install -d -m 1733 {folder}` creates it"
    )
    (tmp_path / "file").touch()
    assert "no folder" in (audit.unusable(tmp_path / "file") or "")


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (
            Decision(Kind.REWRITTEN, JOB, JOB.but(argv=("--gres=gpu:l4:2",))),
            ("changed", "", ["gpu:l4:2"]),
        ),
        (
            Decision(Kind.FITS, JOB, JOB, lines=["submitted as written: words are not read"]),
            ("unchanged", "", ()),
        ),
        (Decision(Kind.NOTHING_FITS, JOB, JOB), ("as written", "", ())),
        (stopped_by(NoEstimate("secret"), JOB), ("as written", "NoEstimate", ())),
        (stopped_by(SlurmError("secret"), JOB), ("as written", "SlurmError", ())),
        (stopped_by(Refused("secret"), JOB), ("refused", "", ())),
        (Decision(Kind.LATE, JOB, JOB), ("late", "", ())),
    ],
)
def test_what_became_of_a_job_is_one_of_a_few_words(
    decision: Decision, expected: tuple[str, str, list[str]]
) -> None:
    assert audit.outcome(decision) == expected


@pytest.mark.parametrize("kind", Kind)
def test_every_decision_is_one_that_metrics_count(kind: Kind) -> None:
    assert audit.outcome(Decision(kind, JOB, JOB)).word in audit.OUTCOMES


@pytest.mark.parametrize(
    "what", ["missing", "a file", "a FIFO", "a link", "a second name of a file", "not ours"]
)
def test_what_cannot_be_written_is_not_and_nothing_is_raised(tmp_path: Path, what: str) -> None:
    folder, precious = tmp_path / "audit", tmp_path / "precious"
    precious.write_text("before")
    if what != "missing":
        folder.mkdir()
    if what == "a file":
        folder.rmdir()
        folder.touch()
    elif what == "a FIFO":
        os.mkfifo(file(folder))
    elif what == "a link":
        file(folder).symlink_to(precious)
    elif what == "a second name of a file":
        file(folder).hardlink_to(precious)
    elif what == "not ours":
        if os.getuid() != 0:
            pytest.skip("gives a file away")
        file(folder).write_text("before")
        os.chown(file(folder), 65534, 65534)
    record(folder)
    assert precious.read_text() == "before"
    assert what != "not ours" or file(folder).read_text() == "before"
    audit.record({}, "xsbatch", JOB, audit.AuditOutcome(), began=0)
    audit.record({"audit": 7}, "xsbatch", JOB, audit.AuditOutcome(), began=0)


def test_a_submission_goes_on_where_its_record_does_not_answer(tmp_path: Path) -> None:
    """What writes it has nothing of ours open: whoever reads our output to its end does not wait,
    either."""
    if os.getuid() != 0 or not os.access("/dev/fuse", os.W_OK):
        pytest.skip("mounts a file system that does not answer")
    script = f"""import pathlib, sys
sys.path[:0] = {sys.path!r}
from tests.unit.report import test_audit
from xmem_slurm.report import audit
tables = {{"audit": {{"folder": sys.argv[1]}}}}
audit.record_apart(tables, "xsbatch", test_audit.JOB, audit.AuditOutcome("late"), began=0)
"""
    silent = tmp_path / "silent"
    silent.mkdir()
    with hung(silent) as inside:
        for folder in (silent, tmp_path):
            command = [*inside, sys.executable, "-c", script, folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, "")
    wait_until(lambda: file(tmp_path).exists() and "late" in file(tmp_path).read_text())


def _write(folder: str) -> None:
    record(Path(folder), ["gpu:" + "x" * 3000 + ":1"])


def test_lines_of_many_at_once_stay_whole(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        pool.map(_write, [str(tmp_path)] * 200, chunksize=1)
    lines = file(tmp_path).read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 200


def test_metrics_count_jobs_seconds_and_gpus(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path)
    record(tmp_path, ["shard:any:3"])
    shown = metrics(tmp_path)
    assert 'xmem_jobs_total{outcome="changed"} 3\n' in shown
    assert 'xmem_jobs_total{outcome="refused"} 0\n' in shown
    assert 'xmem_gpus_total{from="h200",to="l4"} 4\n' in shown
    assert 'xmem_gpus_total{from="h200",to="shard"} 3\n' in shown
    (seconds,) = [
        line
        for line in shown.splitlines()
        if line.startswith('xmem_seconds_total{outcome="changed"}')
    ]
    assert 3 <= float(seconds.split()[-1]) < 60


def test_nothing_that_a_user_writes_makes_a_series_or_breaks_the_file(tmp_path: Path) -> None:
    record(tmp_path)
    good = json.loads(file(tmp_path).read_text())
    bad = [
        {"outcome": 'x"} 1\nxmem_jobs_total{outcome="changed'},
        {"seconds": "nan"},
        {"seconds": float("inf")},
        {"seconds": -1},
        {"from": ['gpu:"}\n:1'], "to": ["gpu:evil\n:1"]},
        {"to": ["gpu:l4:99999999999"]},
        {"to": ["gpu:l4:²"]},
        {"from": 7},
    ]
    lines = ["", "{", "[]", "7", "null", "\x00", *(json.dumps(good | each) for each in bad)]
    file(tmp_path).write_text("\n".join(lines) + "\n")
    (tmp_path / "1.jsonl").write_text(json.dumps(good))  # not uid 1's
    os.mkfifo(tmp_path / "2.jsonl")
    (tmp_path / "3.jsonl").symlink_to(file(tmp_path))
    shown = metrics(tmp_path)
    assert 'xmem_jobs_total{outcome="changed"} 3\n' in shown, "those whose GPUs alone are odd"
    labels = {line.partition(" ")[0] for line in shown.splitlines() if line.startswith("xmem_gpus")}
    assert labels <= {
        'xmem_gpus_total{from="other",to="other"}',
        'xmem_gpus_total{from="h200",to="l4"}',
    }
    assert "evil" not in shown


CHANGED = ("xmem_jobs_total", "changed")


def test_counters_never_fall_whatever_becomes_of_the_lines(tmp_path: Path) -> None:
    """Moved aside, as logrotate does, with lines that were not counted yet; removed; cut to
    nothing; begun anew."""
    for _ in range(3):
        record(tmp_path)
    assert samples(tmp_path)[CHANGED] == 3
    record(tmp_path)
    file(tmp_path).rename(tmp_path / f"{os.getuid()}.jsonl.1")
    assert samples(tmp_path)[CHANGED] == 4, "where there is no other file"
    record(tmp_path)
    record(tmp_path)
    assert samples(tmp_path)[CHANGED] == 6
    file(tmp_path).rename(tmp_path / f"{os.getuid()}.jsonl.0")
    record(tmp_path)
    record(tmp_path)
    file(tmp_path).rename(tmp_path / f"{os.getuid()}.jsonl-20261124")
    record(tmp_path)
    assert samples(tmp_path)[CHANGED] == 9, "moved aside twice since"
    file(tmp_path).write_text("")  # copytruncate
    record(tmp_path)
    assert samples(tmp_path)[CHANGED] >= 9
    for path in tmp_path.glob("*.jsonl*"):
        path.unlink()
    before = samples(tmp_path)
    assert samples(tmp_path) == before
    record(tmp_path)
    assert samples(tmp_path)[CHANGED] == before[CHANGED] + 1


def test_a_line_is_counted_once_it_is_whole(tmp_path: Path) -> None:
    record(tmp_path)
    line = file(tmp_path).read_text()
    for written, counted in ((line[:40], 0), (line, 1), (line + line[:-1], 1), (line * 2, 2)):
        file(tmp_path).write_text(written)
        assert samples(tmp_path)[CHANGED] == counted


def test_whoever_writes_more_than_is_read_at_once_is_counted_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path)
    line = file(tmp_path).read_text()
    file(tmp_path).write_text(line * 3 + "x" * 10 * len(line) + "\n" + line * 4)
    monkeypatch.setattr(audit, "MOST_BYTES", int(len(line) * 2.5))
    counted = [samples(tmp_path)[CHANGED] for _ in range(10)]
    assert counted == sorted(counted)
    assert counted[0] == 2
    assert counted[-1] == 7


def test_totals_that_a_user_has_put_there_are_not_ours(tmp_path: Path) -> None:
    record(tmp_path)
    record(tmp_path)
    assert samples(tmp_path)[CHANGED] == 2
    theirs = (tmp_path / totals.NAME).read_text().replace('"changed": 2', '"changed": 7000')
    (tmp_path / totals.NAME).unlink()
    (tmp_path / "theirs").write_text(theirs)
    (tmp_path / totals.NAME).symlink_to(tmp_path / "theirs")
    assert samples(tmp_path)[CHANGED] == 2
    assert (tmp_path / "theirs").read_text() == theirs
    (tmp_path / totals.NAME).write_text("{")
    assert samples(tmp_path)[CHANGED] == 2


@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("logrotate"), reason="logrotate is not here, or not for us"
)
def test_logrotate_takes_the_folder_as_it_is_documented_and_no_count_is_lost(
    tmp_path: Path,
) -> None:
    """By the example's own words, for users whose files nobody else can read; and a compressed file
    is history."""
    folder, conf = tmp_path / "record", tmp_path / "logrotate.conf"
    subprocess.run(["install", "-d", "-m", "1733", folder], check=True)
    example = (resources.tree("site-config") / "examples" / "logrotate.conf").read_text()
    conf.write_text(example.replace("/var/log/xmem-slurm", str(folder)))
    conf.chmod(0o644)
    command = ["logrotate", "--verbose", "--force", "--state", tmp_path / "state", conf]
    for turn in range(1, 4):
        record(folder)
        assert samples(folder)[CHANGED] == 2 * turn - 1
        record(folder)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "error" not in done.stderr
        assert not file(folder).exists()
        assert samples(folder)[CHANGED] == 2 * turn
    names = {f"{os.getuid()}.jsonl.{ending}" for ending in ("1", "2.gz", "3.gz")}
    assert {path.name for path in folder.iterdir()} == names | {totals.NAME}
