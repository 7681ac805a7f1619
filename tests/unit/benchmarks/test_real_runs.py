"""Figures of real GPUs: read, answered, scored; and where a real history and a dry run's first
part."""

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real_runs import answers, histories, page, promise, rows, runs, scores
from benchmarks.real_runs.__main__ import known
from benchmarks.text_table import text_table
from tests.traces import trace_of
from xmem_slurm.units import MIB

COLUMNS = "source,commit,path,command_or_config,model,batch,seq_len,precision,parallelism,gpu,torch,metric,value_MiB"
ROW = (
    "someone/code (+ more@1),abc,a.pickle,python a.py,m,4,128,bf16,1 GPU,H100,2.6.0,peak "
    "allocated,{}"
)


def write(folder: Path, *values: object) -> Path:
    """Write a CSV of rows that differ in their value, and in their batch so that they are not the
    same."""
    lines = [
        COLUMNS,
        *(ROW.format(value).replace(",4,", f",{number},") for number, value in enumerate(values)),
    ]
    (folder / "runs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "runs.csv"


def result(key: str, estimated: int, **fields: Any) -> runs.Result:
    about = runs.Result(
        key,
        "someone/code",
        "peak allocated",
        10_000,
        "2026-01-01",
        "2.6.0",
        "1",
        "h100-sxm5-80gb",
        1.0,
    )
    return replace(
        about,
        **{"estimated_bytes": estimated, "required_bytes": estimated, "confidence": "high"}
        | fields,
    )


def test_a_row_has_its_repository_and_whole_bytes(tmp_path: Path) -> None:
    (first, second), refused = rows.read(write(tmp_path, "1.5", "2", "much", ""))
    assert (first.source, first.ground_bytes, first.torch) == ("someone/code", 3 << 19, "2.6.0")
    assert first.key != second.key
    assert [str(each).rpartition(": ")[2] for each in refused] == [
        "value_MiB 'much' is no size",
        "value_MiB '' is no size",
    ]
    (tmp_path / "short.csv").write_text("source,commit\n", encoding="utf-8")
    with pytest.raises(rows.RowError, match="no column path"):
        rows.read(tmp_path / "short.csv")


def test_equal_rows_of_another_commit_or_line_are_told_apart(tmp_path: Path) -> None:
    lines = [
        COLUMNS,
        *[ROW.format(1)] * 2,
        ROW.format(1).replace("abc", "75da365c40 (code of 87b086417e)"),
    ]
    (tmp_path / "runs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    found, _ = rows.read(tmp_path / "runs.csv")
    assert len({row.key for row in found}) == 3
    assert [row.commit for row in found] == ["", "", "87b086417e"]


@pytest.mark.parametrize(
    ("wanted", "release"),
    [
        ("2.6.0.dev20241231+cu126", "2.6.0"),
        ("2.7.1", "2.8.0"),
        ("2.10.0", "2.11.0"),
        ("2.1", "2.4.1"),
        ("", "2.11.0"),
    ],
)
def test_the_nearest_torch_is_taken(wanted: str, release: str) -> None:
    assert runs.nearest(wanted, ["2.4.1", "2.6.0", "2.8.0", "2.11.0"]) == release


def test_scores_count_what_is_exact_too_low_and_not_answered() -> None:
    known = [result("a", 10_004), result("b", 9_800, confidence="medium"), result("c", 12_000)]
    found = [*known, result("d", 0, reason="no time")]
    (title,) = scores.by_metric(found)
    cells = dict(zip(scores.HEADINGS, scores.cells(title, found), strict=True))
    assert (cells["rows"], cells["no answer"], cells["exact"], cells["under"]) == (
        "4",
        "1",
        "1",
        "1",
    )
    assert (cells["median %"], cells["max %"], cells["required below"]) == ("2.00", "20.00", "1")
    assert (cells["high"], cells["medium"]) == ("2", "1")
    far = scores.far_off(found, {"b": "an operator", "": "all of them"})
    assert [(line[0], line[-1]) for line in far] == [("c", "all of them"), ("b", "an operator")]
    again = [*found, result("e", 0, reason="no time")]
    assert "- d and 1 more: no time. Why" in scores.lines(again, {"d": "Why"}, text_table)


def test_rows_of_one_command_and_one_cause_stand_in_one_line() -> None:
    found = [result(f"s | p | c | {number}", 10_000 + 1_000 * number) for number in range(1, 4)]
    assert len(scores.far_off(found, {})) == 3
    ((name, *_, errors, _, cause),) = scores.far_off(found, {"s": "why"})
    assert (name, errors, cause) == ("s ; p ; c ; 3 rows", "+10.00 to +30.00", "why")


def test_no_published_row_is_far_too_low_with_high_confidence_and_the_stated_margins_hold() -> None:
    found = [each for each in page.results(page.DATA) if each.reason is None]
    assert [
        each.key for each in found if each.confidence == "high" and each.error < -scores.FAR_OFF
    ] == []
    *_, stated, _ = promise.table(found)
    rows_below, highest, excess = float(stated[3]), float(stated[5]), float(stated[6])
    assert rows_below <= highest
    assert excess < 5


class Someone:
    """Knows to run the rows whose batch is even; cannot lay out that of batch 2; one of batch 4
    ends in an error."""

    @staticmethod
    def runs(found: Sequence[rows.Row], checkout: Path, folder: Path) -> Iterator[runs.Run]:
        for row in found:
            if row.columns["batch"] == "2":
                raise KeyError("shape")
            if int(row.columns["batch"]) % 2 == 0:
                yield runs.Run(
                    f"job {row.columns['batch']}", [row], str(folder), checkout, "h100", row.torch
                )


def test_each_row_has_an_answer_or_the_reason_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def size(run: runs.Run, _pythons: object) -> list[runs.Result]:
        if run.key == "job 4":
            return [result(row.key, 0, reason="no time") for row in run.rows]
        return [result(row.key, 10_000) for row in run.rows]

    monkeypatch.setattr(runs, "size", size)
    asked, _ = rows.read(write(tmp_path, *range(1, 6)))
    means = answers.Means(tmp_path, {}, tmp_path, 1)

    def said(module: Any) -> list[str | None]:
        by_key = {each.key: each.reason for each in answers.of_source(asked, module, means)}
        return [by_key[row.key] for row in asked]

    assert said(None) == ["its repository is not known here"] * 5
    assert said(Someone) == [f"no checkout in {tmp_path}/someone+code"] * 5
    (tmp_path / "someone+code").mkdir()
    laid_out = "its job cannot be laid out: KeyError: 'shape'"
    assert said(Someone) == [None, answers.NO_JOB, laid_out, answers.NO_JOB, "no time"]
    assert said(None)[0] is None, "what was answered before stays answered"


def test_what_lies_outside_the_allocator_is_required_only_where_it_was_measured() -> None:
    both = result("a", 9_000, required_bytes=10_500, outside_allocator_bytes=1_000)
    assert both.falls_short
    assert not replace(both, metric="nvidia-smi used of GPU 0").falls_short


def test_runs_are_resumed_and_a_failed_one_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [runs.Run(key, [], "", tmp_path, "h100", "2.6.0") for key in "ab"]
    answered, _ = rows.read(write(tmp_path, 1, 2))
    jobs = [replace(job, rows=[row]) for job, row in zip(jobs, answered, strict=True)]
    asked: list[str] = []
    reasons = iter([None, "no time", None])

    def size(run: runs.Run, _pythons: object) -> list[runs.Result]:
        asked.append(run.key)
        return [result(run.rows[0].key, 10_000, reason=next(reasons))]

    monkeypatch.setattr(runs, "size", size)
    for _ in range(3):
        list(runs.run_missing(jobs, {}, tmp_path / "out.jsonl", 1))
    assert asked == ["a", "b", "b"]
    assert set(runs.load(tmp_path / "out.jsonl")) == {row.key for row in answered}


def test_every_source_says_whose_figures_it_answers() -> None:
    assert all(
        source.count("/") == 1 and callable(module.runs) for source, module in known().items()
    )


def test_the_page_is_the_one_that_the_data_give() -> None:
    written = page.PAGE.read_text(encoding="utf-8")
    assert written == page.page(page.results(page.DATA)), (
        "run `python -m benchmarks.real_runs.page`"
    )


def events(*sizes: int) -> Iterator[dict[str, Any]]:
    """Yield a history: a positive size is allocated, a negative one freed, each for line 7 of
    a.py."""
    frames = [
        {"name": "at::_ops::mm::call(at::Tensor const&)", "filename": "??", "line": 0},
        {"name": "forward", "filename": "/x/a.py", "line": 7},
    ]
    for size in sizes:
        yield {
            "action": "alloc" if size > 0 else "free_completed",
            "size": abs(size) * MIB,
            "frames": frames,
        }


def _said(size: int, live: int) -> str:
    return f"{size * MIB} with {live * MIB} live"


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((300, 200), "nowhere in 2 allocations"),
        (
            (300, 200, 9),
            f"allocation 2 of 3: {_said(9, 500)} in mm for a.py:7; the dry run ends before it",
        ),
        (
            (100, 200),
            f"allocation 1 of 2: {_said(200, 100)} in mm for a.py:7; dry {_said(300, 100)}",
        ),
    ],
)
def test_the_first_place_where_two_histories_part_has_its_operator(
    sizes: Sequence[int], said: str
) -> None:
    assert (
        histories.first_parting(list(events(-50, *sizes)), trace_of("+a:100 +b:300 +c:200")) == said
    )


def test_a_snapshot_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pickle").write_bytes(pickle.dumps(Path))
    with pytest.raises(pickle.UnpicklingError, match="has no pathlib"):
        histories.read(tmp_path / "a.pickle")
