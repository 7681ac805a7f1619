"""What is made of how a dry run ended, and what is left of a budget."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from xmem_slurm import trace_file
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import budget as budget_of
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.errors import NoEstimate
from xmem_slurm.sandbox import sandbox
from xmem_slurm.site.schema import DryRuns

GPT2_FILE = Path(__file__).parents[2] / "data" / "gpt2-small.json.gz"
GPT2 = trace_file.read(GPT2_FILE)


def test_of_a_run_that_was_stopped_by_its_time_the_trace_so_far_stands() -> None:
    last = dataclasses.replace(GPT2, state="running", failure=None)
    found = runner._with_end(last, sandbox.Outcome(None, "time", 60.0, 0, b""), "")
    assert (found.state, found.error, found.growing) == ("budget", None, True)
    for stopped, error in (
        ("memory", "the dry run's memory limit"),
        (None, "a crash or a kill: Killed"),
    ):
        assert (
            runner._with_end(last, sandbox.Outcome(-9, stopped, 60.0, 0, b"Killed\n"), "").error
            == error
        )


def test_a_process_that_the_script_itself_killed_has_not_failed() -> None:
    """Its trace is as it was when it was written last."""
    last = dataclasses.replace(GPT2, state="running", failure=None, doubts=[])
    found = runner._with_end(last, sandbox.Outcome(0, None, 60.0, 0, b""), "")
    assert (found.state, found.error) == ("exit", None)
    assert [noted.doubt for noted in found.doubts] == [Doubt.KILLED]
    untrained = dataclasses.replace(last, marks=[], seen=None)
    crashed = runner._with_end(untrained, sandbox.Outcome(0, None, 60.0, 0, b""), "")
    assert crashed.error == "a crash or a kill", "`python train.py; echo done`, before any step"
    disturbed = sandbox.Outcome(0, None, 60.0, 0, b"", disturbed="SIGKILL ended it")
    assert runner._with_end(last, disturbed, "").error == "a crash or a kill"


@pytest.mark.parametrize(
    ("stopped", "spent", "expected"), [("time", 20, True), ("time", 60, False), (None, 1, False)]
)
def test_a_run_that_a_busy_machine_had_no_time_for_is_told_from_one_that_took_it(
    stopped: str | None, spent: float, expected: bool
) -> None:
    outcome = sandbox.Outcome(-9, stopped, 60.0, 0, b"", spent_seconds=spent)
    assert runner._is_no_fact(outcome) is expected
    assert runner._is_no_fact(dataclasses.replace(outcome, disturbed="SIGKILL ended it"))
    failed = sandbox.Outcome(1, None, 1.0, 0, b"")
    assert runner._is_no_fact(failed, "gcc: fatal error: No space left on device")
    assert runner._is_no_fact(failed, "ModuleNotFoundError: No module named '_xmem.patches'")


def test_a_budget_is_used_up_by_what_was_spent_and_by_the_wall_far_behind() -> None:
    budget, spent = Budget(seconds=60), Spent(45, 100)
    assert budget.longest == 600
    left = budget.less(spent)
    assert (left.seconds, left.longest) == (15, 500)
    assert not left.has_room_for(spent)
    assert left.has_room_for(Spent(15, 500))
    assert not left.has_room_for(Spent(1, 501))
    assert Budget(seconds=5).longest == budget_of.LEAST_WALL_SECONDS


def test_a_site_bounds_both_and_whoever_waits_bounds_the_wall() -> None:
    site = DryRuns(seconds=30, wall_seconds=90)
    assert (Budget(seconds=60).within(site).seconds, Budget(seconds=60).within(site).longest) == (
        30,
        90,
    )
    assert Budget(wall_seconds=28).within(site).longest == 28
    assert Budget(wall_seconds=28).within(DryRuns()).longest == 28
    assert Budget(seconds=60).within(DryRuns(seconds=40)).longest == 400


TRACEBACK = """Traceback (most recent call last):
  File "/home/u/job/train.py", line 7, in <module>
    data.load()
    ~~~~~~~~~^^
  File "/home/u/job/data.py", line 3, in load
    return numpy.load("x")
  File "/opt/env/lib/python3.11/site-packages/numpy/lib/_npyio_impl.py", line 455, in load
    fid = stack.enter_context(open(file, "rb"))
FileNotFoundError: [Errno 2] No such file or directory: 'x'
"""


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (
            TRACEBACK,
            ": FileNotFoundError: [Errno 2] No such file or directory: 'x' (/home/u/job/data.py:3)",
        ),
        (TRACEBACK + "failed, giving up\n", ": failed, giving up"),
        ("no such command\n", ": no such command"),
        ("", ""),
    ],
)
def test_last_words_of_python_name_the_line_of_the_users_own(tail: str, said: str) -> None:
    assert runner._last_words(sandbox.Outcome(1, None, 1.0, 0, tail.encode())) == said


FAILED_LINE = "line 2: conda: command not found"


def left(folder: Path, **changes: object) -> None:
    """Leave the trace of a process in a dry run's folder, as its Python would."""
    written = json.loads(gzip.decompress(GPT2_FILE.read_bytes()))
    (folder / "1.json.gz").write_bytes(gzip.compress(json.dumps(written | changes).encode()))


@pytest.mark.parametrize(
    ("python", "told"),
    [
        ("/usr/bin/python3", f"{FAILED_LINE}; the script went on with /usr/bin/python3"),
        ("", FAILED_LINE),
    ],
)
def test_after_a_line_that_failed_the_python_that_ran_the_script_is_told(
    python: str, told: str, tmp_path: Path
) -> None:
    """The environment's own it was not, perhaps: that of a release before this one is not known."""
    said = f"slurm_script: {FAILED_LINE}\n".encode()
    ended = sandbox.Outcome(0, None, 1.0, 0, b"", output_head=said)
    left(tmp_path, python=python)
    (found,) = runner._traces(tmp_path, ended)
    assert [noted.detail for noted in found.doubts if noted.doubt is Doubt.SET_UP] == [told]
    nothing = {"action": [], "address": [], "size": [], "stream": []}
    left(tmp_path, python=python, events=nothing, marks=[], tags=[], bounds=[], sites={})
    with pytest.raises(NoEstimate) as failed:
        runner._traces(tmp_path, dataclasses.replace(ended, returncode=1, output_tail=b"no data\n"))
    assert str(failed.value).endswith(f": no data; before that failed {told}")


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (
            "torch",
            (
                "; /usr/bin/python3 has none; is the job's environment activated, here or in the "
                "script?"
            ),
        ),
        ("numpy", ""),
    ],
)
def test_a_python_without_the_jobs_modules_is_told(module: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "lacking").write_text("/usr/bin/python3")
    head = f"slurm_script: {FAILED_LINE}\n".encode()
    words = f"ModuleNotFoundError: No module named '{module}'"
    ended = sandbox.Outcome(1, None, 1.0, 0, words.encode(), output_head=head)
    with pytest.raises(NoEstimate) as failed:
        runner._traces(tmp_path, ended)
    went_on = "" if told else "; the script went on with /usr/bin/python3"
    assert str(failed.value).endswith(f": {words}{told}; before that failed {FAILED_LINE}{went_on}")


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, "the script did not load torch, so no GPU memory was estimated"),
        (1, "the script ended with code 1 before any GPU memory was used; it did not load torch"),
    ],
)
def test_a_script_without_torch_is_said_to_be_that_before_what_may_hide_it(
    code: int, told: str, tmp_path: Path
) -> None:
    with pytest.raises(NoEstimate) as failed:
        runner._traces(tmp_path, sandbox.Outcome(code, None, 1.0, 0, b""))
    assert str(failed.value) == f"{told} (if it did, python -I, python -E or env -i hid that)"
