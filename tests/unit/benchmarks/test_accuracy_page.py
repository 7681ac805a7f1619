"""docs/accuracy.md is what the benchmarks' data say, and the plot and the tables can be read."""

import xml.etree.ElementTree as ET

from benchmarks.accuracy_page import PAGE, PLOTS, copy_of, page
from benchmarks.error_plot import Point, error_plot
from benchmarks.text_table import markdown_table, text_table


def test_the_page_is_the_one_that_the_data_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m benchmarks.accuracy_page`"


def test_the_page_shows_the_plots_that_the_benchmarks_drew() -> None:
    for plot in PLOTS:
        assert f"]({copy_of(plot).name})" in page()
        assert copy_of(plot).read_text(encoding="utf-8") == plot.read_text(encoding="utf-8"), (
            "as above"
        )
        ET.fromstring(plot.read_text(encoding="utf-8"))


def test_the_plot_has_every_point_and_escapes_labels() -> None:
    points = [Point(2**30, 0.05, "ours", "a<b"), Point(2**31, -0.5, "theirs", "c")]
    root = ET.fromstring(error_plot(points))
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == ["a<b: +5.0 %", "c: -50.0 %"]
    ET.fromstring(error_plot([]))


def test_tables_keep_their_columns() -> None:
    rows = [["short", "1"], ["a longer one", "22"]]
    assert text_table(("name", "n"), rows) == [
        "name           n",
        "short          1",
        "a longer one  22",
    ]
    assert markdown_table(("name", "n"), rows)[:3] == [
        "| name | n |",
        "| --- | ---: |",
        "| short | 1 |",
    ]
