"""The README's figures are those of docs/figures.md, and of the pages that are made of the data."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TABLE = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How good it is\n")[2]
ROWS = dict(re.findall(r"^\| (.*) \| (.*python -m.*) \|$", TABLE, re.MULTILINE))
ALL_FIGURES = (ROOT / "docs" / "figures.md").read_text(encoding="utf-8").splitlines()
NUMBER = r"(?<![\w.])\d+(?:\.\d+)?"


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def numbers(module: str) -> list[str]:
    """Return the figures of the README's row that is measured by a module, in their order."""
    (row,) = (row for row, command in ROWS.items() if re.search(rf"\.{module}\b", command))
    return re.findall(NUMBER, row)


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_readme_is_in_the_list_of_all_figures(row: str) -> None:
    commands = re.findall(r"`(python -m [^`]+)`", ROWS[row])
    listed = [line for line in ALL_FIGURES if any(f"`{command}`" in line for command in commands)]
    if "published_runs" in ROWS[row]:  # its parts have rows of their own, below the command's
        listed += [line for line in ALL_FIGURES if line.startswith("| of these, ")]
    assert set(re.findall(NUMBER, row)) <= set(re.findall(NUMBER, "\n".join(listed)))


def test_the_medians_of_published_runs_are_those_of_the_data() -> None:
    runs, transformers, cnns, xmem_transformers, xmem_cnns = numbers("published_runs")
    accuracy = page("accuracy")
    for row in (
        f"| xmem-slurm | {runs} | ",
        f"| xmem-slurm | 37 | {transformers} | ",
        f"| xmem | 37 | {xmem_transformers} | ",
        f"| xmem-slurm | 59 | {cnns} | ",
        f"| xmem | 59 | {xmem_cnns} | ",
    ):
        assert row in accuracy
    assert int(runs) == 37 + 59


def test_high_estimates_are_as_near_to_public_figures_as_the_data_have_it() -> None:
    estimates, percent = numbers("real_runs")
    said = f"Of {estimates} estimates of high confidence, 0 are more than {percent} % too low."
    assert said in page("real-runs")


def test_what_survived_a_cap_on_a_gpu_is_what_the_data_have() -> None:
    jobs, scripts = numbers("ground_truth")
    accuracy = page("accuracy")
    assert f"{jobs} of {jobs} runs lived" in accuracy
    assert f"{scripts} of {scripts} scripts lived" in accuracy


def test_what_public_scripts_did_is_what_the_data_have() -> None:
    scripts, _budget_seconds, ran, ended, high = map(int, numbers("coverage"))
    lists = re.findall(r"^\| \d \|(.*)\|$", page("coverage"), re.MULTILINE)
    columns = zip(*([int(cell) for cell in each.split("|")] for each in lists), strict=True)
    _scripts, _repositories, _broken, *counts, _seconds = map(sum, columns)
    assert counts == [scripts, ran, ended, high]


def test_what_a_dry_run_takes_is_what_the_data_have() -> None:
    seconds = numbers("dryrun_cost")[-3:]
    coverage = page("coverage")
    for job, cost in zip(("GPT-2 small", "ResNet-50", "Llama 8B, FSDP2"), seconds, strict=True):
        assert re.search(rf"^\| {job}, [^|]*\| {cost} \|", coverage, re.MULTILINE), job
