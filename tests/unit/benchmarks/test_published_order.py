"""In which order are published runs given to the profile engine, whose steps are dear?"""

from benchmarks import published_rows
from benchmarks.published_dry_runs import by_cost
from benchmarks.published_runs import DATA


def test_the_cheapest_run_of_each_model_without_one_comes_first() -> None:
    rows = published_rows.read(DATA / "published_runs.csv")
    models = {row.model for row in rows}
    done = {row.key for row in rows if row.model != "VGG16"}
    assert {row.model for row in by_cost(rows)[: len(models)]} == models
    first, second = by_cost(rows, done)[:2]
    assert (first.model, first.batch_size) == ("VGG16", 480)
    assert second.model != "VGG16"
