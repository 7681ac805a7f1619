"""The tree of what is alive at the peak: the script's own lines, in the order of their sizes, and
it adds up."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.unit.cli import test_first_hour
from tests.unit.report.test_explain import keep
from tests.unit.report.test_report import GPT2, GPUS, SIZING
from xmem_slurm import trace
from xmem_slurm.report.tree import tree_lines
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.trace import NOWHERE, Category, Origin, Trace

folder = test_first_hour.folder
command = test_first_hour.command

LIBRARY = "/v/lib/python3.11/site-packages/nn.py"
SITES = [
    NOWHERE,
    Origin("/u/train.py", 30, "<module>", ""),
    Origin("/u/train.py", 7, "main", ""),
    Origin(LIBRARY, 3, "forward", "h.0"),
    Origin(LIBRARY, 3, "forward", "h.1"),
    Origin("/u/model.py", 5, "forward", "net"),
]
CALLERS = [0, 0, 1, 2, 2, 3]


def trace_with(*blocks: tuple[int, int]) -> Trace:
    """Return a run of blocks of MiB, each asked for at the place in SITES."""
    return dataclasses.replace(
        GPT2,
        allocations=[trace.Allocation(size << 20, 0, Category.ACT) for size, _ in blocks],
        events=[trace.Event(trace.Op.ALLOC, number) for number in range(len(blocks))],
        sites=SITES,
        callers=CALLERS,
        made_at=[site for _, site in blocks],
    )


def lines_of(found: Trace) -> list[str]:
    return tree_lines(estimate([found], "l4", GPUS["l4"]).largest)


def test_lines_of_libraries_are_left_out_and_what_they_asked_for_is_not() -> None:
    assert lines_of(trace_with((100, 3), (100, 4), (500, 5), (300, 1))) == [
        "1000.00 MiB 100.0%  alive at the peak",
        "  1000.00 MiB 100.0%  <module> (train.py:30)",
        "    700.00 MiB 70.0%  main (train.py:7)",
        "      500.00 MiB 50.0%  forward (model.py:5)",
        "        500.00 MiB 50.0%  activations (net, model.py:5)",
        "      200.00 MiB 20.0%  activations (h.*, nn.py:3): 2 x 100.00 MiB",
        "    300.00 MiB 30.0%  activations (train.py:30)",
    ]


def test_what_is_small_stands_together() -> None:
    lines = lines_of(trace_with((990, 2), (4, 1), (6, 5)))
    assert lines[2:] == [
        "    996.00 MiB 99.6%  main (train.py:7)",
        "      990.00 MiB 99.0%  activations (train.py:7)",
        "      6.00 MiB 0.6%  1 smaller block",
        "    4.00 MiB 0.4%  1 smaller block",
    ]


def test_without_lines_it_is_a_list_and_of_several_ranks_the_largest() -> None:
    lines = lines_of(dataclasses.replace(GPT2, rank=1, world_size=4))
    assert lines[0].endswith("  alive at the peak, rank 1 of 4")
    assert lines[1].endswith("  activations: 36 x 96.00 MiB")
    assert not any(line.startswith("    ") for line in lines)


def test_explain_shows_it_of_the_last_estimate(folder: Path) -> None:
    sized = Sizing(estimate([trace_with((1000, 3))], "l4", GPUS["l4"]), SIZING.placement, 8.25)
    keep("job.sh", sized=sized)
    done = command("explain", "--tree", "--report", "a.json", "job.sh")
    assert done.stdout.splitlines()[-1] == "      1000.00 MiB 100.0%  activations (h.0, nn.py:3)"
    assert json.loads((folder / "a.json").read_text())["choice"] == "l4"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("has_lines", [True, False])
def test_explain_says_where_an_estimate_has_no_lines_and_what_records_them(
    *, has_lines: bool
) -> None:
    found = trace_with((1000, 3)) if has_lines else dataclasses.replace(GPT2, sites=[NOWHERE])
    keep(
        "job.sh",
        sized=Sizing(estimate([found], "l4", GPUS["l4"]), SIZING.placement, 8.25),
    )
    told = command("explain", "--tree", "job.sh").stderr
    assert ("that estimate has no lines" in told) is not has_lines
    assert ("`xmem-slurm estimate` always" in told) is not has_lines


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "message"), [(["--json"], "one of them"), (["4711"], "name its script")]
)
def test_explain_says_where_there_is_no_tree(words: list[str], message: str) -> None:
    assert message in str(command("explain", "--tree", *words).exception)
