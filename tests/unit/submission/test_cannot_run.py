"""A job that cannot run: its user is told so first, and whoever wants that has it not submitted."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.unit.report.test_report import GPT2, GPUS
from tests.unit.sizing.test_sizing import LARGE
from xmem_slurm.dryrun import dispatch, runner
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.errors import NoEstimate, Refused
from xmem_slurm.report import decided
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import answers
from xmem_slurm.submission.answer import Wishes, answer
from xmem_slurm.trace import ScriptFailure, Trace, cannot_run

FAILS = NoEstimate(
    "the script ended with code 1: No module named 'jax'", [], on_any_gpu=True, fails=True
)
WISHES = Wishes(site=str(EXAMPLE_SITE))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def job(kind: str, script: bytes = b"") -> Submission:
    """Return a job for a type of GPU; held, so that Slurm is not asked whether it would take it."""
    return Submission(
        ("--hold", f"--gres=gpu:{kind}:1", "job.sh"), {"PATH": "/usr/bin"}, b"#!/bin/sh\n" + script
    )


def fails(monkeypatch: pytest.MonkeyPatch, error: NoEstimate = FAILS) -> None:
    def one(*_: object) -> Mapping[int, NoEstimate]:
        return {0: error}

    monkeypatch.setattr(dispatch, "one", one)


def finds(monkeypatch: pytest.MonkeyPatch, trace: Trace) -> None:
    monkeypatch.setattr(runner, "run", lambda _order: DryRunResult([trace]))


def site(tmp_path: Path) -> Wishes:
    """Return a site that refuses them."""
    path = tmp_path / "site.toml"
    path.write_text(
        EXAMPLE_SITE.read_text().replace("[policy]\n", '[policy]\ncannot_run = "refuse"\n', 1)
    )
    assert "cannot_run" in path.read_text()
    return Wishes(site=str(path))


def test_one_that_fails_by_itself_is_likely_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    fails(monkeypatch)
    with pytest.raises(
        NoEstimate,
        match="it is likely to fail: the script ended with code 1: No module named 'jax'",
    ):
        answer(job("l4"), WISHES, lambda _: None)
    offline = NoEstimate("the hub was not reached", [], on_any_gpu=True)
    fails(monkeypatch, offline)
    with pytest.raises(NoEstimate, match=r"^the hub was not reached"):
        answer(job("l4", b"other\n"), WISHES._replace(strict=True), lambda _: None)


def test_whoever_wants_that_has_it_not_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails(monkeypatch)
    for wishes in (WISHES._replace(strict=True), site(tmp_path)):
        with pytest.raises(
            Refused, match=r"it is likely to fail: .*; XMEM_OFF=1 submits it anyway"
        ):
            answer(job("l4"), wishes, lambda _: None)
    with pytest.raises(NoEstimate):
        answer(job("l4"), site(tmp_path)._replace(advise=True), lambda _: None)


def test_one_that_will_run_out_of_memory_is_told_so_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert LARGE.recorded
    finds(monkeypatch, LARGE)
    decision = answer(job("l4"), WISHES._replace(keep_type=True), lambda _: None)
    first = decided.lines(decision)[0]
    assert first.startswith("this job will run out of GPU memory: it needs ")
    assert first.endswith("and l4, which it asks for, has 21.95 GiB")
    with pytest.raises(Refused, match="this job will run out of GPU memory"):
        answer(job("l4", b"2\n"), WISHES._replace(keep_type=True, strict=True), lambda _: None)


def test_one_that_is_given_a_larger_gpu_will_not(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, LARGE)
    for wishes in (WISHES, WISHES._replace(strict=True)):
        decision = answer(job("l4"), wishes, lambda _: None)
        assert not any("run out" in line for line in decided.lines(decision))


def test_one_that_is_too_large_for_every_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = dataclasses.replace(
        GPT2, allocations=[each._replace(size=each.size * 20) for each in GPT2.allocations]
    )
    finds(monkeypatch, huge)
    lines = decided.lines(answer(job("h200"), WISHES, lambda _: None))
    assert "and h200, which it asks for, has 139.71 GiB" in lines[0]
    untyped = Submission(("--hold", "--gres=gpu:1", "job.sh"), {"PATH": "/usr/bin"}, b"#!/bin/sh\n")
    lines = decided.lines(answer(untyped, WISHES, lambda _: None))
    assert f"the largest GPU open to it has {GPUS['h200'].total_bytes / 2**30:.2f} GiB" in lines[0]


@pytest.mark.parametrize(
    ("words", "it_cannot"),
    [
        ("ModuleNotFoundError: No module named 'jax' (train.py:3)", True),
        (
            (
                "the script ended with code 1 before any GPU memory was used: SyntaxError: invalid "
                "syntax (train.py:2)"
            ),
            True,
        ),
        ("python: can't open file '/home/ada/train.py': [Errno 2] No such file or directory", True),
        (
            (
                "SyntaxError: invalid syntax "
                "(/opt/xmem/lib/python3.11/site-packages/xmem_slurm/probe/_xm"
            ),
            False,
        ),
        ("ModuleNotFoundError: No module named '_xmem.patches'", False),
        ("ImportError: cannot import name 'apply' from '_xmem.patches' (unknown location)", False),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/scratch/data' (train.py:9)",
            False,
        ),
        ("ImportError: libmkl_rt.so.2: cannot open shared object file (train.py:1)", False),
        ("srun: command not found", False),
        ("EOFError: EOF when reading a line (train.py:9)", True),
        ("EOFError: Ran out of input (train.py:9)", False),
        ("AcceleratorError: CUDA error: invalid device ordinal (train.py:5)", True),
        ("AcceleratorError: CUDA error: an illegal memory access (train.py:5)", False),
    ],
)
def test_what_may_be_otherwise_on_a_node_is_no_reason(words: str, *, it_cannot: bool) -> None:
    assert cannot_run(words) is it_cannot


def stopped(words: str, **changes: object) -> Trace:
    """Return the trace of a process that stopped before it used a GPU."""
    failure = ScriptFailure(words, words.partition(":")[0])
    untouched = dataclasses.replace(GPT2, failure=failure, allocations=[], events=[], marks=[])
    return dataclasses.replace(untouched, recorded={}, seen=None, **changes)


EOF = "EOFError: EOF when reading a line (train.py:3)"


def test_input_is_what_a_batch_job_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, stopped(EOF))
    with pytest.raises(NoEstimate) as failed:
        answer(job("l4"), WISHES, lambda _: None)
    lacks = "it waits for input, which a batch job does not have"
    assert str(failed.value) == f"it is likely to fail: {lacks}; the script stopped with {EOF}"
    with_input = job("l4").but(argv=("--input=answers.txt", *job("l4").argv))
    with pytest.raises(NoEstimate) as failed:
        answer(with_input, WISHES._replace(strict=True), lambda _: None)
    assert str(failed.value) == f"the script stopped with {EOF}; a dry run has no input (--input)"


def test_input_is_lacked_before_torch_is_loaded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    before = NoEstimate(f"the script ended with code 1: {EOF}", [], on_any_gpu=True, fails=True)
    monkeypatch.setattr(runner, "run", lambda _order: DryRunResult(before))
    with pytest.raises(NoEstimate, match="it is likely to fail: it waits for input, which a batch"):
        answer(job("l4"), WISHES, lambda _: None)


@pytest.mark.parametrize(
    ("words", "it_cannot"),
    [
        ("AcceleratorError: CUDA error: invalid device ordinal (train.py:5)", True),
        ("ModuleNotFoundError: No module named 'jax' (train.py:3)", True),
        ("ValueError: no such shard (train.py:3)", False),
        ("FileNotFoundError: [Errno 2] No such file: '/scratch/2' (train.py:9)", False),
    ],
)
def test_a_rank_that_dies_counts_by_what_it_died_of(
    words: str, *, it_cannot: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a script that stops by itself does: what may be otherwise on a node is no reason."""
    traces = [dataclasses.replace(GPT2, world_size=4), stopped(words, rank=2, world_size=4)]
    monkeypatch.setattr(runner, "run", lambda _order: DryRunResult(traces))
    died = f"rank 2 of 4 stopped with {words}"
    with pytest.raises(NoEstimate) as failed:
        answer(job("l4"), WISHES, lambda _: None)
    assert str(failed.value) == (f"it is likely to fail: {died}" if it_cannot else died)
    with pytest.raises(Refused if it_cannot else NoEstimate):
        answer(job("l4"), WISHES._replace(strict=True), lambda _: None)


@pytest.mark.parametrize("strict", [False, True])
def test_explain_knows_which_went_without_an_estimate(
    monkeypatch: pytest.MonkeyPatch, *, strict: bool
) -> None:
    fails(monkeypatch)
    of_service = Submission(("--gres=gpu:1", "serve.sh"), {}, b"#!/bin/sh\njupyter lab\n")
    for script, submission in (("serve.sh", of_service), ("job.sh", job("l4"))):
        with pytest.raises((NoEstimate, Refused)) as stopped:
            answer(submission, WISHES._replace(strict=strict), lambda _: None)
        unanswered = answers.unanswered(script)
        assert unanswered is not None
        assert unanswered.why == str(stopped.value)
        assert unanswered.refused is isinstance(stopped.value, Refused)


def test_explain_has_what_a_job_needs_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    finds(monkeypatch, LARGE)
    with pytest.raises(Refused):
        answer(job("l4"), WISHES._replace(keep_type=True, strict=True), lambda _: None)
    (kept,) = answers.newest()
    assert "GPU memory needed: " in kept.said[0].full[0]
