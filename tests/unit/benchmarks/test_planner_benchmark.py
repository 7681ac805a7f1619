"""`python -m benchmarks.planner`: what it compares and what it leaves out, and LLMem by its
names."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import llmem, planner, training_ways
from benchmarks.llmem import FOUR_V100, TABLE_3, Method

ROOT = Path(__file__).parents[3]
HEADINGS = (
    "model,nodes,micro_batch,grad_accumulation,global_batch,dp,pp,tp,zero,mfu_percent"
    ",tokens_per_second_per_gpu,memory_gb"
)
FAST = "8B,1,2,64,256,2,1,4,0,40,8000,50"
SLOW = "8B,1,1,256,256,1,1,8,0,10,2000,30"
BESIDE = [
    "8B,1,2,16,256,2,4,1,0,40,8000,50",
    "8B,16,2,1,256,128,1,1,0,40,8000,50",
    "7T,1,2,64,256,2,1,4,0,40,8000,50",
]


def written(folder: Path, *rows: str, headings: str = HEADINGS) -> Path:
    file = folder / "speed.csv"
    file.write_text("\n".join([headings, *rows]) + "\n")
    return file


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.planner", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_last_line_has_both_rates_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    found = ran("--speed", str(written(tmp_path, FAST, SLOW, *BESIDE)))
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert (
        lines[-1]
        == "pairs more than 5 % apart in the right order: ours 100.0%, LLMem's score 100.0% of 1"
    )
    assert lines[0] == "5 rows, 2 compared, in 1 groups"
    assert set(lines[1:4]) == {
        "left out: 1 row: pipelines are not ranked by speed",
        "left out: 1 row: more than 8 nodes are not ranked by speed",
        "left out: 1 row: the shape of '7T' is not known: --model says it",
    }


def test_without_a_csv_ways_that_a_plan_offers_are_compared_as_published() -> None:
    lines = planner.ways_lines(training_ways.read(planner.WAYS))
    page = (ROOT / "docs" / "planning-speed.md").read_text(encoding="utf-8")
    assert "\n".join(line.rstrip() for line in lines) in page
    assert lines[-1].endswith(" of 186")
    assert lines[0].startswith("135 rows, in 25 groups")


def test_figures_are_those_of_the_page_on_speed() -> None:
    """The first there are of the ways that a plan offers, the second of rows that are not here."""
    page, figures = (
        (ROOT / "docs" / name).read_text(encoding="utf-8")
        for name in ("planning-speed.md", "figures.md")
    )
    counts = r"ours (\d+), LLMem's score (\d+) of \d+"
    rates = r"ours ([\d.]+)%, LLMem's score ([\d.]+)% of (\d+)"
    printed = re.findall(
        f"equal scores, which count half: {counts}\n"
        f"pairs more than 5 % apart in the right order: {rates}\n",
        page,
    )
    assert len(printed) == 2
    for equal, llmem_equal, ours, llmems, pairs in printed:
        halves = f"equal scores count half: {equal} and {llmem_equal} pairs"
        row = rf"(?m)^\| {pairs} pairs of .* \| {ours} %; LLMem's score {llmems} % \({halves}\) \|$"
        assert re.search(row, figures), row


def test_tensor_parallelism_across_nodes_is_left_out(tmp_path: Path) -> None:
    across = FAST.replace("1,2,64,256,2,1,4", "2,2,128,256,1,1,16")
    lines = planner.speed_lines(
        planner.read(written(tmp_path, FAST, SLOW, across)), planner.NANOTRON
    )
    assert "left out: 1 row: tensor parallelism across nodes is not ranked by speed" in lines


def test_parameters_of_measured_models_are_those_of_their_tables() -> None:
    published = {"125M": 125311488, "1B": 1315950592, "7B": 6658859008, "70B": 64862437376}
    for name, parameters in published.items():
        counted = training_ways.MODELS[f"MPT-{name}"].parameters
        assert counted == pytest.approx(parameters, rel=0.001), name


def test_the_state_is_shared_and_parameters_gathered_as_the_method_says() -> None:
    ways = {
        (way.method, way.grad_accumulation): way
        for way in training_ways.read(planner.WAYS)
        if way.source == "chenyaofo" and way.micro_batch in (1, 2)
    }
    parameters = training_ways.MODELS["LLaMA-7B"].parameters
    sent = {
        name: sum(each.bytes * each.count for each in training_ways.work_of_way(way).collectives)
        for name, way in ways.items()
    }
    assert sent["zero2", 8] == pytest.approx(2 * parameters * (8 + 1), rel=0.001)
    assert sent["zero3", 4] == pytest.approx(2 * parameters * 3 * 4, rel=0.001)
    assert training_ways.work_of_way(ways["zero2-offload", 8]).offloaded_bytes > 0


def test_a_model_can_be_named(tmp_path: Path) -> None:
    rows = planner.read(written(tmp_path, FAST.replace("8B", "7T"), SLOW.replace("8B", "7T")))
    lines = planner.speed_lines(rows, dict([planner.shape("7T=32,4096,14336,untied")]))
    assert lines[0] == "2 rows, 2 compared, in 1 groups"


def test_a_first_choice_that_is_slower_is_regretted(tmp_path: Path) -> None:
    rows = planner.read(written(tmp_path, FAST.replace("8000", "1000"), SLOW))
    ours = planner.our_score(planner.NANOTRON)
    assert planner.regret(rows, ours) == pytest.approx(1.0)
    assert planner.in_order({("8B", 1): rows}, ours) == (0, 1)


def test_a_pair_with_equal_scores_counts_half(tmp_path: Path) -> None:
    """LLMem's score is the product of micro batch and data parallel copies: 4 of both."""
    equal = FAST.replace("1,2,64,256,2,1,4", "1,4,64,256,1,1,8").replace("8000", "6000")
    rows = planner.read(written(tmp_path, FAST, equal))
    groups = {("8B", 1): rows}
    assert planner.in_order(groups, planner.llmem_score) == (0.5, 1)
    lines = planner.speed_lines(rows, planner.NANOTRON)
    assert "equal scores, which count half: ours 0, LLMem's score 1 of 1" in lines


@pytest.mark.parametrize(
    ("rows", "headings", "why"),
    [
        ([FAST], HEADINGS.replace(",tp", ""), "no column tp"),
        ([FAST.replace("8000", "many")], HEADINGS, "line 2"),
        ([FAST.replace(",2,64", ",2.5,64")], HEADINGS, "'2.5' is no whole number"),
        ([FAST.replace("8000", "0")], HEADINGS, "0.0 tokens a second"),
        ([FAST.replace("8B,1", "8B,0")], HEADINGS, "a count below 1"),
        (BESIDE, HEADINGS, "none of 3 rows can be compared"),
        ([], HEADINGS, "there are none"),
    ],
)
def test_what_cannot_be_compared_is_said_in_a_line(
    tmp_path: Path, rows: list[str], headings: str, why: str
) -> None:
    found = ran("--speed", str(written(tmp_path, *rows, headings=headings)))
    assert found.returncode == 1
    assert found.stdout == ""
    assert why in found.stderr
    assert found.stderr.count("\n") == 1


def test_parameters_are_those_of_the_models() -> None:
    published = {
        "OPT-1.3b": 1.316,
        "bloom-1b1": 1.065,
        "codegen-2B": 2.779,
        "gpt-neo-1.3B": 1.316,
        "llama-7b": 6.738,
    }
    for row in TABLE_3:
        if row.name in published:
            assert row.model.parameters / 1e9 == pytest.approx(published[row.name], rel=0.002), (
                row.name
            )


def test_its_estimator_runs_out_of_memory_where_its_table_does() -> None:
    for row in TABLE_3:
        fits = {each.method for each in llmem.candidates(row.model, FOUR_V100) if each.bs}
        assert fits == row.seconds.keys(), row.name


def test_an_output_layer_of_its_own_is_no_part_of_what_is_shared() -> None:
    """Beside its own part of fp16 and fp32 nothing of it is gathered, and it has no state."""
    tied = llmem.Decoder(24, 2048, 8192, 51200)
    head, on = 51200 * 2048, FOUR_V100
    for method, tp in ((Method.ADP, 1), (Method.DP_TP, 2)):
        own, without = (
            llmem.peak_bytes(model, method, 1, tp, on)
            for model in (replace(tied, tied=False), tied)
        )
        assert own - without == pytest.approx((2 + 4) * head / on.n, abs=4 * llmem.ROUNDED_TO)


def test_scores_and_ties_are_those_of_its_algorithm() -> None:
    assert [
        llmem.score(method, 4, 4, 2) for method in (Method.CDP, Method.ADP, Method.TP, Method.DP_TP)
    ] == [
        24,
        16,
        4,
        8,
    ]
    tie = [llmem.Candidate(Method.TP, 4, 6, 6.0), llmem.Candidate(Method.DP_TP, 2, 3, 6.0)]
    assert llmem.pick(tie) is Method.TP
    assert llmem.pick([llmem.Candidate(Method.CDP, 1, 0, 0.0)]) is Method.OFFLOAD


def test_the_page_has_what_the_benchmark_prints() -> None:
    page = (ROOT / "docs" / "planning-speed.md").read_text(encoding="utf-8")
    assert "\n".join(planner.table_3_lines()) in page
