"""What the filter in every sbatch makes of a changed job: options alone."""

import json
import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import get_args

import pytest

from xmem_slurm.decision import left_alone
from xmem_slurm.errors import UsageError
from xmem_slurm.filter import caller, changes
from xmem_slurm.site.schema import Command
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Wishes


def job(script: str) -> Submission:
    return Submission(("job.sh",), {}, f"#!/bin/sh\n{script}".encode())


def test_what_is_set_in_the_script_is_an_option_to_the_hook() -> None:
    before, after = (
        job("#SBATCH --gres=gpu:h200:1\nsrun x"),
        job("#SBATCH --gres=gpu:l4:1\n# why\nsrun x"),
    )
    assert changes._changes(before, after) == {"gres": "gpu:l4:1"}


def test_a_hook_cannot_change_a_script() -> None:
    before = job("#SBATCH --gres=gpu:h200:1\nsrun --gres=gpu:h200:1 x")
    after = job("#SBATCH --gres=gpu:l4:1\n# why\nsrun --gres=gpu:l4:1 x")
    with pytest.raises(
        UsageError, match=r"line 3 of the script: srun --gres=gpu:h200:1 would have to be changed"
    ):
        changes._changes(before, after)


@pytest.mark.parametrize(
    ("command", "line", "environ", "argv"),
    [
        (
            "srun",
            "-N2 -n 4 --gres=gpu:h200:1 python t.py 'a b'",
            {},
            ["--nodes=2", "--ntasks=4", "--gres=gpu:h200:1"],
        ),
        ("salloc", "-G1 --exclusive --bell python t.py 'a b'", {}, ["--gpus=1", "--exclusive"]),
        ("srun", "-W0 --immediate -l python t.py 'a b'", {"SLURM_NNODES": "2"}, ["--nodes=2"]),
        ("salloc", "python t.py 'a b'", {"SLURM_JOB_ID": "5"}, []),
    ],
)
def test_srun_and_salloc_as_the_sbatch_that_asks_for_the_same(
    command: str, line: str, environ: dict[str, str], argv: list[str]
) -> None:
    found = caller.as_batch(command, shlex.split(line), environ)
    assert found is not None
    run = "python t.py 'a b'" if command == "salloc" else "srun python t.py 'a b'"
    assert list(found.argv) == [*argv, f"--wrap={run}"]


def test_the_variables_of_srun_and_salloc_count_and_those_of_sbatch_do_not() -> None:
    environ = {
        "SLURM_GRES": "gpu:l4:1",
        "SALLOC_GRES": "gpu:h200:2",
        "SBATCH_GRES": "gpu:a40:3",
        "HOME": "/",
    }
    for command, gres in (("srun", "gpu:l4:1"), ("salloc", "gpu:h200:2")):
        found = caller.as_batch(command, ["python", "t.py"], environ)
        assert found is not None
        assert (found.request.value("gres"), found.environ["HOME"]) == (gres, "/")


@pytest.mark.parametrize(
    ("line", "environ"),
    [
        ("", {}),
        ("--pty bash", {}),
        ("bash -l", {}),
        ("-G1 python a.py : -G1 python b.py", {}),
        ("--of-a-plugin 5 python t.py", {}),
        ("--jobid=7 python t.py", {}),
        ("python t.py", {"SLURM_JOB_ID": "7"}),
    ],
)
def test_an_srun_with_nothing_to_run_dry(line: str, environ: dict[str, str]) -> None:
    assert caller.as_batch("srun", shlex.split(line), environ) is None


def test_a_site_file_can_name_every_command_that_the_hook_runs_in() -> None:
    assert get_args(Command) == caller.COMMANDS


def test_every_line_of_a_message_begins_as_the_hook_knows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changes._tell("the first\nand the second", "another")
    assert (
        capsys.readouterr().err
        == "xmem-slurm: the first\nxmem-slurm:   and the second\nxmem-slurm: another\n"
    )


@pytest.mark.parametrize(
    ("value", "looked_at"), [("1", False), ("yes", False), ("", True), ("0", True), ("False", True)]
)
def test_a_variable_may_say_no(*, value: str, looked_at: bool) -> None:
    """In whatever case: as xsbatch has it."""
    off = job("#SBATCH --gres=gpu:h200:1\nsrun x").but(environ={"XMEM_OFF": value})
    submitting = caller.Caller(off, "sbatch")
    assert changes._is_covered(submitting, {"filter": {"mode": "rewrite"}}) is looked_at
    assert settings.values({"off": settings.OwnSetting(value, "XMEM_OFF")}) == {
        "off": not looked_at
    }


def test_the_wishes_of_xsbatch_s_users_hold_in_the_filter_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By variables, by #XMEM lines, by their file; what makes no sense is said, and as if it were
    not set."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "xmem-slurm").mkdir()
    (tmp_path / "xmem-slurm" / "settings.toml").write_text("engine = 'device'\nbudget = 30\n")
    asked = list[Wishes]()
    monkeypatch.setattr(
        changes, "answer_to", lambda _job, wishes, *_: asked.append(wishes) or left_alone(_job)
    )
    monkeypatch.setattr(changes.detached, "ask", lambda find, *_: find(print))
    script = job("#SBATCH --gres=gpu:h200:1\n#XMEM ranks=last\nsrun x")
    environ = {
        "XMEM_BUDGET": "300",
        "XMEM_MARGIN": "20",
        "XMEM_KEEP_TYPE": "false",
        "XMEM_POLICY": "nonsense",
    }
    submitting = caller.Caller(script.but(environ=environ), "sbatch")
    changes._answer("site.toml", submitting, 1, {}, inf)
    (wishes,) = asked
    assert (wishes.budget, wishes.margin, wishes.ranks, wishes.engine) == (
        300,
        20,
        "last",
        "device",
    )
    assert (wishes.keep_type, wishes.policy, wishes.advise) == (False, None, True)
    assert "XMEM_POLICY=nonsense" in capsys.readouterr().err


@pytest.fixture
def ended() -> Iterator[int]:
    """Return the number of a process that has ended, and that nobody has asked how."""
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        yield process.pid


@pytest.mark.parametrize(("waits", "recorded"), [(5, ["late"]), (500, [])])
def test_what_was_submitted_before_its_answer_is_late_and_what_was_ended_is_nothing(
    waits: float, recorded: list[str], ended: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    submitting = caller.Caller(job("#SBATCH --gres=gpu:h200:1"), "sbatch")
    monkeypatch.setattr(changes, "caller_of", lambda *_: submitting)
    monkeypatch.setattr(changes, "_answer", lambda *_: changes.Answer())
    monkeypatch.setattr(changes, "_give", lambda _: False)
    tables = {"filter": {"mode": "rewrite"}, "audit": {"folder": str(tmp_path)}}
    changes.main("site.toml", ended, tables, time.monotonic() - 10, waits)
    lines = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert [json.loads(line)["outcome"] for line in lines] == recorded


@pytest.mark.parametrize(
    "what", ["its script", "its options", "nothing: it is gone", "nothing: it ends"]
)
def test_a_submission_that_cannot_be_read_is_recorded_too(
    what: str, ended: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = os.getpid()
    if what in {"its script", "nothing: it ends"}:

        def unreadable(*_: object) -> None:
            raise PermissionError

        monkeypatch.setattr(changes, "caller_of", unreadable)
    elif what == "its options":
        unclosed = job("#SBATCH --gres=gpu:h200:1 --comment='")
        monkeypatch.setattr(changes, "caller_of", lambda *_: caller.Caller(unclosed, "sbatch"))
    if what == "nothing: it ends":
        process = ended
    elif what == "nothing: it is gone":
        process = 1 << 23  # more than there can be (PID_MAX_LIMIT, include/linux/threads.h)
    tables = {"filter": {"mode": "rewrite"}, "audit": {"folder": str(tmp_path)}}
    changes.main("site.toml", process, tables, time.monotonic(), inf)
    lines = [
        json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()
    ]
    told = [tuple(line[key] for key in ("command", "reason", "outcome", "to")) for line in lines]
    assert told == {
        "its script": [("", "PermissionError", "as written", [])],
        "its options": [("sbatch", "ScriptError", "as written", [])],
    }.get(what, [])
