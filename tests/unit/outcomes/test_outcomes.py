"""Outcomes: what is read of jobs' records, what is learned from them, and what that does to the
next estimate."""

import dataclasses
import json
import math
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.conftest import EXAMPLE_SITE
from xmem_slurm.cli.main import app
from xmem_slurm.cluster import client
from xmem_slurm.errors import SlurmError
from xmem_slurm.outcomes import history, learned, learning, on_host, records
from xmem_slurm.outcomes.learning import Lesson
from xmem_slurm.outcomes.prediction import Prediction
from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.outcomes.trust import track_record
from xmem_slurm.report import outcomes as told
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.margins import Experience, LearnedMargin, Margin
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.units import GIB, MIB

PREDICTED: dict[str, Any] = {
    "script": "abc", "run": "abcd", "gpu": "NVIDIA L4", "capability": "8.9", "engine": "device", "unseen": [],
    "margin": 0.04, "promise": 0.9, "reserved_bytes": 10 * GIB, "allocated_bytes": 9 * GIB, "fits_in_bytes": 10 * GIB,
    "outside_bytes": GIB, "required_bytes": 12 * GIB, "uses_bytes": 11 * GIB, "asked": ["gpu:h200:1"],
    "given": ["gpu:l4:1"], "sampled": False,
}  # fmt: skip
LINE: dict[str, Any] = {
    "v": 1, "job": "7", "array": "", "host": "n1", "process": 5, "rank": 0, "world": 1, "began": 100.0, "time": 200.0,
    "state": "exit", "torch": "2.11.0", "cuda": "13.0", "python": "3.11.7", "prediction": PREDICTED,
    "devices": [
        {"name": "NVIDIA L4", "total": 22 * GIB, "capability": "8.9", "reserved": 10 * GIB, "allocated": 9 * GIB,
         "retries": 0, "ooms": 0, "used": 11 * GIB, "limit": 21 * GIB}
    ],
}  # fmt: skip


def line(
    reserved: float = 10 * GIB, predicted: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    device = {**LINE["devices"][0], "reserved": int(reserved), **fields.pop("device", {})}
    return {**LINE, **fields, "devices": [device], "prediction": {**PREDICTED, **(predicted or {})}}


def written(folder: Path, *lines: Any, user: int | None = None) -> list[JobOutcome]:
    folder.mkdir(exist_ok=True)
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    (folder / f"{os.getuid() if user is None else user}-n1.jsonl").write_text(
        "\n".join([*texts, ""])
    )
    return records.outcomes(folder)


def test_the_last_line_of_a_process_counts_and_a_job_has_several(tmp_path: Path) -> None:
    lines = [
        line(state="running", time=150.0),
        line(),
        line(11 * GIB, process=6),
        line(job="8", time=900.0),
    ]
    first, second = written(tmp_path, *lines)
    assert (first.job, len(first.processes), first.device.reserved, first.finished) == (
        "7",
        2,
        11 * GIB,
        True,
    )
    assert (second.job, second.ended) == ("8", 900.0)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", "{", "[" * 100_000, "{}", "null", "[1]"),
        *(json.dumps({**LINE, **wrong}) for wrong in ({"job": "7; rm"}, {"state": "fine"}, {"began": "x"})),
        *(json.dumps({**LINE, **wrong}) for wrong in ({"devices": 3}, {"devices": []}, {"prediction": {"margin": []}})),
        *(json.dumps({**LINE, **wrong}) for wrong in ({"rank": math.inf}, {"world": 1 << 63}, {"process": True})),
        *(json.dumps({**LINE, **wrong}) for wrong in ({"began": math.nan}, {"time": 1e300}, {"time": 99.0})),
        *(json.dumps(line(device=wrong)) for wrong in ({"name": "\x1b"}, {"reserved": 10**400}, {"ooms": -1})),
        *(json.dumps(line(device=wrong)) for wrong in ({"used": math.nan}, {"limit": 1.5}, {"total": "9"})),
        *(json.dumps(line(predicted=wrong)) for wrong in ({"gpu": "A\n"}, {"engine": 'd"'}, {"unseen": ['"']})),
        *(json.dumps(line(predicted=wrong)) for wrong in ({"promise": math.nan}, {"margin": math.inf}, {"given": [1]})),
        *(json.dumps(line(predicted=wrong)) for wrong in ({"reserved_bytes": 10**400}, {"sampled": "no"})),
    ],
)  # fmt: skip
def test_a_line_that_is_none_is_passed_over(tmp_path: Path, wrong: str) -> None:
    assert [each.job for each in written(tmp_path, wrong, line(job="9"))] == ["9"]


@pytest.mark.parametrize(
    "wrong",
    [{"state": "fine"}, {"devices": 3}, {"prediction": []}, {"rank": "x"}, {"time": math.nan}],
)
def test_a_later_line_that_is_none_leaves_what_was_said_before(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    lines = [line(GIB, time=120.0), line(3 * GIB, time=160.0), line(2 * GIB, time=150.0)]
    (outcome,) = written(tmp_path, *lines, {**LINE, "time": 300.0, **wrong})
    assert (outcome.ended, outcome.device.reserved) == (160.0, 3 * GIB)


def test_of_lines_at_one_time_the_last_counts_and_of_two_files_the_later(tmp_path: Path) -> None:
    (outcome,) = written(tmp_path, line(GIB), line(3 * GIB), line(2 * GIB, time=150.0))
    assert outcome.device.reserved == 3 * GIB
    (tmp_path / f"{os.getuid()}-n2.jsonl").write_text(json.dumps(line(5 * GIB, time=300.0)))
    (outcome,) = records.outcomes(tmp_path)
    assert (len(outcome.processes), outcome.device.reserved) == (1, 5 * GIB)


def test_a_prediction_that_many_lines_share_is_checked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process of a long job there are many lines, and its ranks have the same prediction."""
    checked: list[str] = []

    def parse(content: dict[str, Any]) -> Prediction:
        checked.append(content["run"])
        return predictions.parse(content)

    predictions = records.prediction
    monkeypatch.setattr(records, "prediction", SimpleNamespace(parse=parse))
    sized = [line(process=rank, time=200.0 + n) for rank in range(4) for n in range(5)]
    other = [line(predicted={"run": "other"}, job="8", time=300.0 + n) for n in range(5)]
    first, second = written(tmp_path, *sized, *other)
    assert sorted(checked) == ["abcd", "other"]
    assert all(process.prediction == first.prediction for process in first.processes)
    assert second.prediction is not None
    assert second.prediction.run == "other"


def test_a_file_of_somebody_else_s_name_a_link_and_a_pipe_are_not_read(tmp_path: Path) -> None:
    assert written(tmp_path / "a", LINE, user=12345) == []
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / f"{os.getuid()}-n1.jsonl").symlink_to(tmp_path / "a" / "12345-n1.jsonl")
    os.mkfifo(tmp_path / "b" / f"{os.getuid()}-n2.jsonl")
    assert records.outcomes(tmp_path / "b") == []


def test_a_script_is_known_by_what_nobody_else_can_guess(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    job = Submission(("--gres=gpu:1", "job.sh", "a"), {}, b"#!/bin/sh\ntrain\n")
    script, run = keys(job, tmp_path)
    assert keys(job.but(argv=("--mem=1G", "job.sh", "a")), tmp_path) == (script, run)
    assert keys(job.but(argv=("job.sh", "b")), tmp_path)[0] == script
    assert keys(job.but(argv=("job.sh", "b")), tmp_path)[1] != run
    (tmp_path / "salt").unlink()
    assert keys(job, tmp_path)[0] != script


def keys(job: Submission, place: Path) -> tuple[str, str]:
    return records.key_of_script(job, place), records.key_of_run(job, place)


def test_a_sweep_is_one_script_of_many_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    wrapped = [Submission(("--wrap", f"python train.py --lr {lr}"), {}, None) for lr in range(25)]
    documents = [
        Submission((), {}, f"#!/bin/sh\n#SBATCH -t {lr}\npython train.py {lr}\n".encode())
        for lr in range(25)
    ]
    scripts, runs = zip(*(keys(job, tmp_path) for job in [*wrapped, *documents]), strict=True)
    assert (len(set(scripts)), len(set(runs))) == (1, 50)
    python = Submission((), {}, b"#!/usr/bin/python3\nprint(1)\n")
    assert (
        keys(python, tmp_path)[0]
        != keys(python.but(script=b"#!/usr/bin/python3\nprint(2)\n"), tmp_path)[0]
    )


OOM = {"state": "oom", "device": {"limit": 8 * GIB, "ooms": 1}}


def test_a_script_that_ran_out_needs_more_than_there_was(tmp_path: Path) -> None:
    ran_out = history.of_script(written(tmp_path, line(7 * GIB, **OOM)))
    assert ran_out is not None
    assert ran_out.words == "job 7 ran out of memory on l4 at 8.00 GiB"
    # that GPU was thought to have 21 GiB for it
    assert ran_out.share == (11 * GIB + 2 * MIB) / (10 * GIB)


def test_an_oom_is_over_once_the_script_ran_in_less_and_known_once_it_ran_in_more(
    tmp_path: Path,
) -> None:
    oom = line(7 * GIB, **OOM)
    assert history.of_script(written(tmp_path, oom, line(9 * GIB, job="8", time=300.0))) is None
    ran_out = history.of_script(written(tmp_path, oom, line(30 * GIB, job="8", time=300.0)))
    assert ran_out is not None
    assert ran_out.share == 2.0
    failed = line(9 * GIB, job="8", time=300.0, state="error")
    # as recorders once wrote of `except: sys.exit(1)`
    caught = line(9 * GIB, job="8", time=300.0, device={"ooms": 1})
    early = line(6 * GIB, job="8", time=300.0)
    for unknown in (failed, caught, early):
        assert history.of_script(written(tmp_path, oom, unknown)) is not None
    edited = line(6 * GIB, {"reserved_bytes": 6 * GIB}, job="8", time=300.0)
    assert history.of_script(written(tmp_path, oom, edited)) is None


def test_what_a_retry_took_is_known_where_nothing_was_predicted_of_it(tmp_path: Path) -> None:
    """It ran on another kind of GPU than the dry run."""
    nothing = {"gpu": "", "capability": "", "reserved_bytes": 0, "fits_in_bytes": 0}
    h200 = {"name": "NVIDIA H200", "capability": "9.0", "total": 140 * GIB}
    retry = line(30 * GIB, nothing, job="8", time=300.0, device=h200)
    ran_out = history.of_script(written(tmp_path, line(7 * GIB, **OOM), retry))
    assert ran_out is not None
    assert ran_out.share == 2.0
    assert ran_out.least_bytes == 30 * GIB


def test_without_a_prediction_what_there_was_is_the_least(tmp_path: Path) -> None:
    nothing = {"reserved_bytes": 0, "fits_in_bytes": 0, "outside_bytes": 0}
    ran_out = history.of_script(written(tmp_path, line(7 * GIB, nothing, **OOM)))
    assert ran_out is not None
    assert ran_out.share is None
    assert ran_out.share_of(4 * GIB) > (8 * GIB + 2 * MIB) / (4 * GIB) - 1


def lesson(shortfall: float, script: object, *, censored: bool = False, gpu: str = "A") -> Lesson:
    return Lesson(shortfall, censored, 0, str(script), "device", gpu, frozenset(), 0.04, 0.9)


def test_one_can_see_how_far_estimates_can_be_trusted(tmp_path: Path) -> None:
    """Exact, a little and much above, run out, failed, and one that nobody estimated."""
    nothing = {"reserved_bytes": 0, "fits_in_bytes": 0, "outside_bytes": 0}
    found = written(
        tmp_path,
        line(),
        line(10.3 * GIB, job="8"),
        line(12 * GIB, job="9"),
        line(7 * GIB, job="10", **OOM),
        line(job="11", state="error"),
        line(9 * GIB, nothing, job="12"),
    )
    record = track_record(found)
    assert told.trust_lines(record, 400) == [
        "6 jobs recorded in 400 days; 4 of them can be compared with their estimates",
        "2 of 4 (50%) needed no more than was estimated with its margin; 1 ran out of GPU memory",
        (
            "what torch reserved, compared with its estimate: 1 within 1%, 2 within 5%; farthest off: "
            "job 9, 20.0% above the estimate"
        ),
        "1 job cannot: failed, or was not seen to end",
        "1 job cannot: nothing was predicted",
    ]
    document = told.trust_document(record, 400)
    assert (document["compared"], document["enough"], document["ran_out"]) == (4, 2, 1)
    assert document["farthest"] == {"job": "9", "share": pytest.approx(0.2)}
    assert told.trust_lines(track_record([]), 400)[0].startswith(
        "no job of yours was recorded in 400 days"
    )


DISTRIBUTIONS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda draw: draw.gauss(0, 0.05),
    "skewed": lambda draw: draw.expovariate(30) - 0.02,
    "two kinds": lambda draw: (
        draw.uniform(-0.01, 0.01) if draw.random() < 0.8 else draw.uniform(0.1, 0.3)
    ),
}


@pytest.mark.parametrize("error", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_a_learned_margin_covers_the_jobs_that_follow_as_often_as_it_promises(
    error: Callable[[random.Random], float],
) -> None:
    """Of 500 jobs of as many scripts a margin, and 500 jobs more: over 40 draws the share covered
    is the promise.

    The bound is four standard errors of the mean of 40 shares: of one, the variance is that of a
    Beta distribution (n + 1 - l, l with l = floor((n + 1) (1 - 0.95))) and of 500 draws."""
    draw, covered = random.Random(21), []
    for _ in range(40):
        margin = learning.margin([lesson(error(draw), script) for script in range(500)])
        assert margin is not None
        assert (margin.probability, margin.runs, margin.models) == (0.95, 500, 500)
        covered.append(sum(error(draw) <= margin.share for _ in range(500)) / 500)
    variance = 0.95 * 0.05 * (1 / 502 + 1 / 500) / 40
    assert abs(sum(covered) / 40 - 0.95) < 4 * math.sqrt(variance) + 1 / 501


def test_many_jobs_of_a_script_widen_no_margin_and_weigh_no_more_than_one() -> None:
    """A job that is above 4 % is one of 50 of each script: enough for 95 % of jobs is less."""
    said = [lesson(0.08 if job == 0 else 0.0004 * n, n) for n in range(100) for job in range(50)]
    margin = learning.margin(said)
    assert margin is not None
    assert (margin.share, margin.runs, margin.models) == (pytest.approx(0.0388), 5000, 100)


def test_a_script_has_one_vote_and_too_few_teach_nothing() -> None:
    sweep = [lesson(0.5, "sweep") for _ in range(1000)]
    assert learning.margin(sweep) is None
    known = learning.margin([*sweep, *(lesson(0.01 * n / 40, n) for n in range(39))])
    assert known is not None
    assert (known.share, known.runs, known.models) == (0.0095, 1039, 40)  # the 39th of 40


def test_who_ran_out_is_never_covered_and_lowers_the_promise() -> None:
    fine = [lesson(0.01, n) for n in range(38)]
    margin = learning.margin(
        [*fine, lesson(0.2, "a", censored=True), lesson(0.1, "b", censored=True)]
    )
    assert margin == Margin(0.1, 0.92, 40, 40)  # the 39th of 40 needed that at the least
    assert learning.margin([lesson(0.2, n, censored=True) for n in range(40)]) is None


def test_where_many_ran_out_the_worst_job_does_not_decide() -> None:
    """Of 50 jobs of each of 100 scripts 5 ran out, and one needed by far the most: it is 2 %, and
    the margin is that of 95 % of the jobs, with those that ran out where they did.
    """
    said = [lesson(0.5 if job == 0 else 0.0004 * n, n) for n in range(100) for job in range(45)]
    said += [lesson(0.02, n, censored=True) for n in range(100) for _ in range(5)]
    # Up to 3.88 % are 98 scripts' 44 jobs of 50; of 101 scripts, one of them to come, that is 85 %.
    assert learning.margin(said) == Margin(0.0388, 0.85, 5000, 100)


def test_of_too_few_scripts_for_a_coverage_the_worst_job_does_not_decide_either() -> None:
    """The most that 20 scripts support is 20 of 21: 99 % of that, without one job of 200 of each."""
    said = [lesson(0.5 if job == 0 else 0.001 * n, n) for n in range(20) for job in range(200)]
    assert learning.margin(said, 0.99) == Margin(0.019, 0.94, 4000, 20)


@pytest.mark.parametrize("jobs", [1, 5])
@pytest.mark.parametrize("error", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_where_many_ran_out_no_more_is_promised_than_holds_nor_much_less(
    error: Callable[[random.Random], float], jobs: int
) -> None:
    """Each GPU has room for four jobs of five: the margin is that room, and is enough for four of
    five, of which a hundredth is lost by rounding and the script to come.

    The bound is four standard errors of 40 shares of 500 jobs, and a fifth of one part in 101, by
    which `conformal.margin_of_groups` may promise too much.
    """
    draw = random.Random(22)
    room = sorted(error(draw) for _ in range(20_000))[16_000]
    covered, promised = [], []
    for _ in range(40):
        needs = [(error(draw), script) for script in range(100) for _ in range(jobs)]
        margin = learning.margin(
            [lesson(min(need, room), script, censored=need > room) for need, script in needs]
        )
        assert margin is not None
        assert margin.probability is not None
        assert margin.share == math.ceil(max(0.0, room) * 1e4) / 1e4
        promised.append(margin.probability)
        covered.append(sum(error(draw) <= margin.share for _ in range(500)) / 500)
    excess = sum(covered) / 40 - sum(promised) / 40
    variance = 0.8 * 0.2 * (1 / 100 + 1 / 500) / 40
    assert -4 * math.sqrt(variance) - 0.2 / 101 < excess < 4 * math.sqrt(variance) + 0.02


def test_margins_are_of_a_gpu_where_it_has_enough_jobs_and_of_all_where_not() -> None:
    said = [lesson(0.01, n) for n in range(30)] + [lesson(0.3, f"b{n}", gpu="B") for n in range(5)]
    found = Experience(learning.learn(said))
    of_a, of_b = found.of("device", "A", frozenset()), found.of("device", "B", frozenset())
    assert of_a == Margin(0.01, 0.95, 30, 30)
    assert of_b == Margin(0.3, 0.95, 35, 35)
    assert found.of("device", "C", frozenset()) is None  # what it does otherwise was not seen
    assert found.of("profile", "A", frozenset()) is found.of("device", "A", {"cudnn-plan"}) is None


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (line(11 * GIB), (0.1, False)),
        (line(5 * GIB, **OOM), (-0.2 + 2 / 10240, True)),
        (line(9 * GIB, {"reserved_bytes": 20 * GIB}, device={"retries": 3}), (-0.1, False)),
        (line(state="error"), "failed, or was not seen to end"),
        (line(9 * GIB, device={"ooms": 1, "retries": 1}), "ran out of GPU memory, and caught that"),
        (line(predicted={"reserved_bytes": 0}), "nothing was predicted"),
        (
            line(predicted={"capability": "9.0"}),
            "ran on another kind of GPU than was estimated for",
        ),
        (line(11 * GIB, {"capability": "9.0", "sampled": True}), (0.1, False)),
    ],
)
def test_what_a_job_says(tmp_path: Path, what: dict[str, Any], expected: Any) -> None:
    said = learning.lesson(written(tmp_path, what)[0])
    if isinstance(said, str):
        assert said == expected
    else:
        assert (said.shortfall, said.censored) == (pytest.approx(expected[0]), expected[1])


def test_a_job_that_slurm_has_as_failed_says_no_more_than_that_it_ran_out(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        line(GIB),
        line(7 * GIB, job="8", **OOM),
        line(predicted={"run": "other"}, job="9"),
    )
    said, nothing = learning.lessons(found, {"7", "8"})
    assert [each.censored for each in said] == [True, False]
    assert nothing == {"failed, or was not seen to end": 1}


def test_a_run_that_ended_well_on_a_larger_gpu_says_how_much_it_needed(tmp_path: Path) -> None:
    more = line(12 * GIB, job="8", began=300.0, time=400.0)
    said, nothing = learning.lessons(written(tmp_path, line(7 * GIB, **OOM), more))
    assert [(each.censored, each.shortfall) for each in said] == [(False, pytest.approx(0.2))]
    assert nothing == {learning.RAN_AGAIN: 1}
    other = line(12 * GIB, {"run": "other"}, job="8", began=300.0, time=400.0)
    earlier = line(12 * GIB, job="6", began=10.0, time=20.0)
    said, _ = learning.lessons(written(tmp_path, line(7 * GIB, **OOM), other, earlier))
    assert [each.censored for each in said] == [False, True, False]


H200 = {"name": "NVIDIA H200", "capability": "9.0", "total": 140 * GIB, "limit": 139 * GIB}
L40S = {"name": "NVIDIA L40S", "total": 45 * GIB, "limit": 44 * GIB}
NOTHING = {"gpu": "", "capability": "", "reserved_bytes": 0, "fits_in_bytes": 0}


def retried(folder: Path, *retries: dict[str, Any]) -> list[Lesson]:
    """A run of which 10 GiB were predicted ran out at 8 GiB, and was run again."""
    later = ({**retry, "job": f"{8 + n}", "began": 300.0} for n, retry in enumerate(retries))
    again = [{**each, "time": 400.0 + n} for n, each in enumerate(later)]
    return learning.lessons(written(folder, line(7 * GIB, **OOM), *again))[0]


def test_a_run_that_was_predicted_on_another_gpu_teaches_there_and_is_not_forgotten_here(
    tmp_path: Path,
) -> None:
    """Else margins of the smaller GPU would be of those jobs that did not run out on it."""
    there = {"gpu": "NVIDIA H200", "capability": "9.0", "given": ["gpu:h200:1"]}
    here, on_h200 = retried(
        tmp_path, line(12 * GIB, {**there, "reserved_bytes": 12 * GIB}, device=H200)
    )
    assert (on_h200.gpu, on_h200.censored, on_h200.shortfall) == ("NVIDIA H200", False, 0.0)
    assert (here.gpu, here.censored, here.shortfall) == ("NVIDIA L4", True, pytest.approx(0.2))
    here, on_l40s = retried(tmp_path, line(12 * GIB, {"gpu": "NVIDIA L40S"}, device=L40S))
    assert (on_l40s.gpu, on_l40s.censored) == ("NVIDIA L40S", False)
    assert (here.gpu, here.censored, here.shortfall) == ("NVIDIA L4", False, pytest.approx(0.2))


def test_a_retry_without_a_prediction_says_what_was_needed_where_kernels_are_the_same(
    tmp_path: Path,
) -> None:
    """On an L40S as on the L4 that ran out, which have one compute capability."""
    (said,) = retried(tmp_path, line(12 * GIB, NOTHING, device=L40S))
    assert (said.gpu, said.censored, said.shortfall) == ("NVIDIA L4", False, pytest.approx(0.2))
    freed_cache = {**L40S, "retries": 2}
    smaller = {"reserved_bytes": 15 * GIB}
    found = written(tmp_path, line(7 * GIB, smaller, **OOM), line(12 * GIB, NOTHING, job="8",
        time=400.0, device=freed_cache))  # fmt: skip
    assert learning.lessons(found)[0][0].shortfall == pytest.approx(0.2)  # of what it fits in


def test_a_retry_on_other_kernels_says_what_may_have_been_needed_at_the_least(
    tmp_path: Path,
) -> None:
    (said,) = retried(tmp_path, line(12 * GIB, NOTHING, device=H200))
    assert (said.gpu, said.censored, said.shortfall) == ("NVIDIA L4", True, pytest.approx(0.2))
    (said,) = retried(tmp_path, line(12 * GIB, device=H200))  # estimated for an L4
    assert (said.censored, said.shortfall) == (True, pytest.approx(0.2))


@pytest.mark.parametrize("gpu", [H200, L40S])
def test_a_retry_that_took_no_more_than_was_too_little_says_nothing(
    tmp_path: Path, gpu: dict[str, Any]
) -> None:
    (said,) = retried(tmp_path, line(8 * GIB, NOTHING, device=gpu))
    assert (said.censored, said.shortfall) == (True, pytest.approx(-0.2 + 2 / 10240))
    failed = line(12 * GIB, NOTHING, device=gpu, state="error")
    caught = line(12 * GIB, NOTHING, device={**gpu, "ooms": 1})
    (said,) = retried(tmp_path, failed, caught)
    assert (said.censored, said.shortfall) == (True, pytest.approx(-0.2 + 2 / 10240))


def test_of_several_runs_that_came_to_their_end_the_one_that_took_the_most_counts(
    tmp_path: Path,
) -> None:
    runs = [line(taken * GIB, NOTHING, device=L40S) for taken in (11, 13, 12)]
    (said,) = retried(tmp_path, *runs)
    assert said.shortfall == pytest.approx(0.3)
    earlier_oom = line(7 * GIB, job="6", began=10.0, time=20.0, **OOM)
    found = written(
        tmp_path, earlier_oom, line(7 * GIB, **OOM), {**runs[0], "job": "8", "time": 400.0}
    )
    _, nothing = learning.lessons(found)
    assert nothing == {"nothing was predicted": 1, learning.RAN_AGAIN: 1}


def test_drift_is_said_where_promises_no_longer_hold() -> None:
    fine = [lesson(0.01, n) for n in range(90)]
    assert not learning.drift([*fine, *(lesson(0.1, f"x{n}") for n in range(10))]).is_one
    found = learning.drift([*fine, *(lesson(0.1, f"x{n}") for n in range(30))])
    assert (found.scripts, found.enough, found.is_one) == (100, pytest.approx(0.7), True)
    assert not learning.drift([]).is_one
    sweep = [lesson(0.1, "sweep") for _ in range(1000)]
    # one script, however many of its jobs were above it
    assert not learning.drift([*fine, *sweep]).is_one


def test_margins_are_read_as_they_were_written_and_nothing_from_a_file_of_another_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = frozenset({"NVIDIA L4", 'A"]\\', "Ü \U0001f600"})
    found = [LearnedMargin("device", gpus, frozenset({"nccl"}), Margin(0.0312, 0.95, 312, 40))]
    text = learned.text(found, "jobs of this site", "2026-11-23")
    of = "jobs of this site (2026-11-23)"
    assert learned.parse(text) == [
        dataclasses.replace(found[0], margin=Margin(0.0312, 0.95, 312, 40, of=of))
    ]
    assert learned.parse(learned.text([], "jobs of this site", "2026-11-23")) == []
    file = tmp_path / "margins.toml"
    monkeypatch.setattr(learned, "own_file", lambda: file)
    told: list[str] = []
    assert learned.margins(None, told.append) == told == []
    for wrong in ("[[learned]]", "x", text.replace("share = ", "share = nan  # ")):
        file.write_text(wrong)
        file.chmod(0o600)
        assert learned.margins(None, told.append) == []
        assert told.pop().startswith(
            f"{file}: its margins are left out until `xmem-slurm learn` writes it again: "
        )


def told_of(outcome: JobOutcome, slurm_state: str = "") -> list[str]:
    return told.job_lines(outcome, {"l4": load_catalogue()["l4"]}, slurm_state)


@pytest.mark.parametrize(
    ("fields", "slurm_state", "became"),
    [
        ({"state": "running"}, "", "was not seen to end"),
        ({"state": "running"}, "RUNNING", "is running"),
        ({"state": "running"}, "FAILED", "ended without a last record (Slurm reports FAILED)"),
        ({"state": "error"}, "FAILED", "failed"),
        ({"state": "exit"}, "", "ran to its end"),
    ],
)
def test_a_job_whose_gpu_nobody_saw_is_told_all_the_same(
    tmp_path: Path, fields: dict[str, Any], slurm_state: str, became: str
) -> None:
    """Its only line is that of CUDA's start, or its counters could not be read."""
    assert written(tmp_path, {**LINE, "devices": [], **fields}) == []
    (outcome,) = records.begun(tmp_path)
    first, estimated, used = told_of(outcome, slurm_state)
    assert first.startswith(f"job 7 {became}, 0.0 h from ")
    assert first.endswith(", 1 process")
    assert estimated.startswith("estimated: 12.00 GiB with its margin")
    assert used.startswith("used: no GPU memory" if fields["state"] == "exit" else "used: not kn")
    assert told.job_document(outcome)["processes"][0]["devices"] == []


def test_a_rank_that_was_killed_at_once_leaves_what_the_others_used(tmp_path: Path) -> None:
    """The job was not seen to end, so that it teaches nothing."""
    killed = {**LINE, "process": 6, "rank": 1, "state": "running", "devices": []}
    (outcome,) = written(tmp_path, line(), killed)
    assert (len(outcome.processes), outcome.device.reserved) == (2, 10 * GIB)
    assert learning.lesson(outcome) == "failed, or was not seen to end"
    assert "was not seen to end" in told_of(outcome)[0]
    ran_out = {**killed, "state": "oom"}
    (outcome,) = written(tmp_path, line(), ran_out)
    assert (outcome.ran_out, outcome.device.reserved) == (True, 10 * GIB)


HOST = {"process": 3 * GIB, "children": GIB, "step": 5 * GIB, "asked": 16 * GIB}


@pytest.mark.parametrize(
    ("host_memory", "said"),
    [
        (
            HOST,
            (
                "used 5.00 GiB of 16.00 GiB requested, cached files included; its largest process "
                "3.00 GiB"
            ),
        ),
        (
            {"process": GIB, "children": 2 * GIB},
            "used 2.00 GiB, by the largest of its processes alone",
        ),
        (
            {"process": GIB, "asked": GIB},
            "used 1.00 GiB of 1.00 GiB requested, by the largest of its processes alone",
        ),
    ],
)
def test_what_a_job_took_of_host_memory_is_told_beside_what_it_asked_for(
    tmp_path: Path, host_memory: dict[str, int], said: str
) -> None:
    small = line(process=6, rank=1, host_memory={"process": 5})
    (outcome,) = written(tmp_path, line(host_memory=host_memory), small)
    assert f"host memory: {said}" in told_of(outcome)
    (shown,) = (each["host_memory"] for each in told.job_document(outcome)["processes"][:1])
    assert shown == {**dict.fromkeys(HOST), **host_memory}
    (estimated,) = written(tmp_path, line(host_memory=host_memory, predicted={"host_bytes": GIB}))
    words = f"host memory: {said}; estimated 1.00 GiB on a node, without CUDA's own"
    assert words in told_of(estimated)
    predicted = {"host_bytes": GIB, "host_cuda_bytes": 2 * GIB}
    (estimated,) = written(tmp_path, line(host_memory=host_memory, predicted=predicted))
    words = f"{said}; estimated 1.00 GiB on a node, and up to 2.00 GiB more for CUDA"
    assert f"host memory: {words}" in told_of(estimated)
    killed = line(host_memory=host_memory, state="running")
    assert f"host memory: {said}, when last heard of" in told_of(written(tmp_path, killed)[0])


HOST_TOLD = (
    "host memory, cached files included: 2 of 4 jobs took no more of a node than was estimated with "
    "CUDA; half took up to 1.00 times that, the most 2.00 times (job 3)"
)


def test_what_jobs_took_of_the_host_is_held_against_what_was_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On its fullest node. One that was killed shows what is too little, and never what is enough;
    an older prediction has nothing of CUDA."""

    def taking(job: str, *steps: float, cuda: int = GIB, **fields: Any) -> list[dict[str, Any]]:
        predicted = {"host_bytes": 3 * GIB, "host_cuda_bytes": cuda}
        return [
            line(
                job=job,
                host=f"n{number}",
                rank=number,
                host_memory={"process": GIB, "step": int(step * GIB)},
                predicted=predicted,
                **fields,
            )
            for number, step in enumerate(steps)
        ]

    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    found = written(
        records.make_folder(),
        *taking("1", 3, 4),
        *taking("2", 2),
        *taking("3", 8, 1),
        *taking("4", 6, state="running"),
        *taking("5", 2, state="running"),
        *taking("6", 9, cuda=0),
        line(job="7", predicted={"host_bytes": GIB, "host_cuda_bytes": GIB}),
    )
    record = on_host.record(found)
    assert [(each.job, each.share) for each in record.compared] == [
        ("1", 1.0),
        ("2", 0.5),
        ("3", 2.0),
        ("4", 1.5),
    ]
    assert told.trust_lines(track_record(found), 400)[-1] == HOST_TOLD
    assert told.trust_document(track_record(found), 400)["host"] == {
        "compared": 4,
        "enough": 2,
        "median": 1.0,
        "farthest": {"job": "3", "share": 2.0},
    }
    nothing = told.trust_document(track_record([]), 400)["host"]
    assert nothing == {"compared": 0, "enough": 0, "median": None, "farthest": None}

    def no_accounting(command: Sequence[str], seconds: float) -> str:
        raise SlurmError("there is no accounting")

    monkeypatch.setattr(client, "run", no_accounting)
    done = CliRunner().invoke(app, ["learn", "--since", "99999d"])
    assert HOST_TOLD in " ".join(done.stdout.split())


def test_a_line_without_host_memory_is_of_an_older_recorder(tmp_path: Path) -> None:
    assert "host_memory" not in LINE
    old, none = written(tmp_path, line(), line(job="8", time=300.0, host_memory=None))
    for outcome in (old, none):
        assert outcome.processes[0].host_memory is None
        assert not any("host memory" in each for each in told_of(outcome))
        assert told.job_document(outcome)["processes"][0]["host_memory"] is None
    for wrong in ([], "x", {"process": -1}, {"step": 1.5}, {"asked": math.nan}):
        assert written(tmp_path, line(host_memory=wrong)) == []


def test_explain_asks_slurm_about_a_job_that_was_not_seen_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("XMEM_SITE", str(EXAMPLE_SITE))
    asked: list[str] = []

    def scontrol(command: Sequence[str], seconds: float) -> str:
        asked.append(command[0])
        if command[0] == "sacct":
            raise SlurmError("there is no accounting")
        return "JobId=7 JobName=x\n   JobState=OUT_OF_MEMORY Reason=OutOfMemory\n"

    monkeypatch.setattr(client, "run", scontrol)
    records.make_folder()
    written(records.folder(), line(state="running"), line(job="8"))
    shown = CliRunner().invoke(app, ["explain", "7"]).stdout
    assert "job 7 ended without a last record (Slurm reports OUT_OF_MEMORY), " in shown
    assert asked == ["sacct", "scontrol"]
    assert "job 8 ran to its end, " in CliRunner().invoke(app, ["explain", "8"]).stdout
    assert asked == ["sacct", "scontrol"]
