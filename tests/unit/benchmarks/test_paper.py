"""The paper's evaluation: its designs, its measures and its plot, on the data that are kept
here."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks import paper, published_rows
from benchmarks.published_runs import DATA
from benchmarks.quadrant_plot import Point, quadrant_plot

ROWS = published_rows.read(DATA / "published_runs.csv")


def test_anova_takes_every_combination_once() -> None:
    runs = list(paper.design("anova", 0, 0, ROWS))
    assert len(set(runs)) == len(runs) == 6 * 5 * 6 * 2 + 3 * 3 * 7 * 2
    assert {mode for *_, mode in runs} == {0, 1}


def test_monte_carlo_draws_what_its_seed_says() -> None:
    runs = list(paper.design("monte-carlo", 50, 3, ROWS))
    assert len(runs) == 50
    assert runs == list(paper.design("monte-carlo", 50, 3, ROWS))
    assert runs != list(paper.design("monte-carlo", 50, 4, ROWS))
    kinds = {row.model: row.kind for row in ROWS}
    for model, _, batch, _ in runs:
        batches = paper.ANOVA_BATCHES[kinds[model]]
        assert batches.start <= batch < batches.stop


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([[1.0, 2.0], [5.0, 6.0]], "32.0 (94 %)"),
        ([[1.0, 3.0], [1.0, 3.0]], "0.0 (0 %)"),
        ([[1.0, 2.0]], "-"),
    ],
)
def test_the_share_of_a_factor(groups: list[list[float]], said: str) -> None:
    assert paper._variance(groups) == said


def test_a_tool_is_in_the_table_for_the_runs_that_it_answered(tmp_path: Path) -> None:
    key = next(row.key for row in ROWS if not row.real_oom)
    half = next(row.ground_bytes for row in ROWS if row.key == key) // 2
    answer = (
        f'{{"key": "{key}", "memtracker": {half}, "accelerate": 1, "static": 1, "seconds": 2.5}}\n'
    )
    (tmp_path / f"rivals-{paper.RELEASE}.jsonl").write_text(answer)
    lines = {line[0]: line for line in paper.table(ROWS, paper.load(tmp_path))}
    assert lines["MemTracker"][1:4] == ["1", "50.00", "50.00"]
    assert lines["xMem"][1] == "96"
    assert "device engine" not in lines


def test_the_plot_is_a_picture_with_every_point() -> None:
    points = [Point(0.01, 0.1, "ours", "a & b"), Point(3.0, 1.0, "theirs", "c")]
    root = ET.fromstring(quadrant_plot(points))
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["ours, a & b: 1.0 %, 10 %", "theirs, c: 300.0 %, 100 %"]
