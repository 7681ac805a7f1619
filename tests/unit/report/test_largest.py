"""What is alive at the peak: it adds up, like stands with like, and every report names the line and
the module."""

import dataclasses
import pickle
from pathlib import Path

import pytest

from xmem_slurm import resources, trace, trace_file
from xmem_slurm.report import files, html, largest, perfetto, terminal
from xmem_slurm.report import json as json_report
from xmem_slurm.site.loading import load_catalogue, load_site, option_gpus
from xmem_slurm.sizing.estimate import RankEstimate, estimate
from xmem_slurm.sizing.placement import Placement, Verdict
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.trace import NOWHERE, Category, Origin, Trace

GPUS = option_gpus(load_site(resources.tree("site-config") / "example.toml"), load_catalogue())
GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")
ACTIVATION = 96 << 20


def rank_of(found: Trace) -> RankEstimate:
    return estimate([found], "l4", GPUS["l4"]).largest


def with_sites() -> Trace:
    """GPT-2 whose large activations know their layer, three in each of twelve; nothing else knows
    anything."""
    made_at, seen = [], 0
    for allocation in GPT2.allocations:
        large = allocation.category is Category.ACT and allocation.size == ACTIVATION
        made_at.append(1 + seen // 3 % 12 if large else 0)
        seen += large
    layers = [Origin("/home/u/model.py", 88, "forward", f"h.{layer}.mlp") for layer in range(12)]
    return dataclasses.replace(GPT2, sites=[NOWHERE, *layers], made_at=made_at)


SIZING = Sizing(
    estimate([with_sites()], "l4", GPUS["l4"]),
    Placement([Verdict("l4", GPUS["l4"], True)], "l4"),
    1.0,
)


def test_what_lives_at_the_peak_adds_up_to_it() -> None:
    rank = rank_of(GPT2)
    found = largest.at_peak(rank)
    assert sum(group.total_bytes for group in found) == rank.replay.peak_allocated_bytes
    assert [group.total_bytes for group in found] == sorted(
        (g.total_bytes for g in found), reverse=True
    )
    first = found[0]
    assert (len(first.numbers), first.bytes_each, first.phase) == (
        36,
        ACTIVATION,
        "forward, step 2",
    )
    assert {GPT2.allocations[number].category for number in first.numbers} == {first.category}
    assert (first.site, first.line, str(first)) == (NOWHERE, "", "36 x 96.00 MiB activations")


def test_layers_of_one_kind_stand_together_and_each_alone_by_its_name() -> None:
    found = largest.at_peak(rank_of(with_sites()))
    assert found[0].site == Origin("/home/u/model.py", 88, "forward", "h.*.mlp")
    assert str(found[0]) == "36 x 96.00 MiB activations (h.*.mlp, model.py:88)"
    only = dataclasses.replace(
        with_sites(), sites=[NOWHERE, *[Origin("a.py", 1, "f", "h.3.mlp")] * 12]
    )
    assert largest.at_peak(rank_of(only))[0].site.module == "h.3.mlp"


@pytest.mark.parametrize(
    ("modules", "shown"),
    [(("h.0", "h.1"), ["h.*"]), (("h.0", "t.0"), ["h.0", "t.0"]), (("l1", "l2"), ["l1", "l2"])],
)
def test_only_numbers_of_layers_make_no_difference(
    modules: tuple[str, str], shown: list[str]
) -> None:
    allocations = [trace.Allocation(1 << 20, 0, Category.ACT)] * 2
    sites = [Origin("a.py", 1, "f", module) for module in modules]
    events = [trace.Event(trace.Op.ALLOC, number) for number in range(2)]
    two = dataclasses.replace(
        GPT2, allocations=allocations, events=events, sites=sites, made_at=[0, 1]
    )
    assert [group.site.module for group in largest.at_peak(rank_of(two))] == shown


def test_a_person_reads_the_largest_below_what_they_are_part_of() -> None:
    lines = terminal.estimate_lines(SIZING.estimate, largest.at_peak(SIZING.estimate.largest))
    assert lines[1].startswith("at the peak: activations 8.15 GiB, ")
    assert lines[2] == "largest of it: 36 x 96.00 MiB activations (h.*.mlp, model.py:88)"
    without = estimate([GPT2], "l4", GPUS["l4"])
    assert terminal.estimate_lines(
        without, largest.at_peak(without.largest)
    ) == terminal.estimate_lines(without)


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/home/u/train.py", True),
        ("train.py", True),
        ("/home/u/project/lib/python_tools/model.py", True),
        ("/v/lib/python3.11/site-packages/transformers/trainer.py", False),
        ("/usr/lib/python3/dist-packages/torchvision/models.py", False),
        ("/usr/lib64/python3.12/contextlib.py", False),
        ("/v/bin/torchrun", False),
        ("<frozen runpy>", False),
        ("", False),
    ],
)
def test_a_file_is_the_users_own_or_a_librarys(file: str, own: bool) -> None:
    assert Origin(file, 1, "f", "").is_own is own


def test_what_libraries_ask_for_stands_at_the_users_own_line_that_called_them() -> None:
    library = Origin("/v/site-packages/nn.py", 3, "forward", "net")
    sites = [
        NOWHERE,
        Origin("train.py", 7, "main", ""),
        Origin("train.py", 8, "main", ""),
        library,
        library,
    ]
    allocations = [trace.Allocation(size << 20, 0, Category.ACT) for size in (1, 1, 1, 4)]
    events = [trace.Event(trace.Op.ALLOC, number) for number in range(4)]
    found = dataclasses.replace(
        GPT2,
        allocations=allocations,
        events=events,
        sites=sites,
        callers=[0, 0, 0, 1, 2],
        made_at=[3, 4, 4, 0],
    )
    lines = largest.by_own_line(found, largest.at_peak(rank_of(found)))
    assert [(str(line), line.total_bytes >> 20) for line in lines] == [
        ("no line outside of libraries", 4),
        ("main (train.py:8)", 2),
        ("main (train.py:7)", 1),
    ]
    assert [str(group) for group in lines[1].groups] == ["2 x 1.00 MiB activations (net, nn.py:3)"]


def test_every_report_has_it(tmp_path: Path) -> None:
    group = json_report.estimate_object(SIZING)["ranks"][0]["largest"][0]
    assert group == {
        "blocks": 36,
        "bytes_each": ACTIVATION,
        "category": "ACT",
        "phase": "forward, step 2",
        "module": "h.*.mlp",
        "file": "/home/u/model.py",
        "line": 88,
        "function": "forward",
    }
    page = html.render(SIZING)
    assert "h.*.mlp" in page
    assert "model.py:88" in page
    (peak,) = [event for event in perfetto.events(SIZING.estimate.largest) if event["ph"] == "i"]
    assert peak["args"]["01"] == "36 x 96.00 MiB activations (h.*.mlp, model.py:88)"
    files.write(tmp_path / "r.pickle", {0: SIZING})
    history = pickle.loads((tmp_path / "r.pickle").read_bytes())["device_traces"][0]
    stacks = [
        entry["frames"]
        for entry in history
        if entry["action"] == "alloc" and entry["size"] == ACTIVATION
    ]
    assert stacks[0] == [
        {"name": "forward", "filename": "/home/u/model.py", "line": 88},
        {"name": "h.0.mlp", "filename": "", "line": 0},
        {"name": "ACT", "filename": "", "line": 0},
    ]
