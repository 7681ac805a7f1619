"""`python -m benchmarks.plan_llmem`: what a row says of a plan, and whether the models that are
planned for are those that LLMem is asked about."""

import ast
from pathlib import Path
from typing import Any

import pytest

from benchmarks import llmem, plan_llmem, plans

MODELS = {measured.name: measured for measured in llmem.TABLE_3}


def shapes() -> dict[str, dict[str, Any]]:
    """Return those of the workload, which imports torch."""
    tree = ast.parse(plan_llmem.SCRIPT.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "SHAPES":
            assert node.value is not None
            return dict(ast.literal_eval(node.value))
    raise AssertionError("no SHAPES")


def made(*methods: str, said: str = "") -> plans.Plan:
    rows = [
        {
            "status": status,
            "method": method,
            "gpus": 4,
            "micro_batch": 8,
            "accumulation": 1,
            "checkpointing": True,
            "required_bytes": 14 << 30,
        }
        for status, method in [*(("verified", each) for each in methods), ("too-large", "ddp")]
    ]
    return plans.Plan({"dry_runs": len(rows), "candidates": rows} if not said else {}, said, 100.4)


@pytest.mark.parametrize("name", MODELS)
def test_what_is_planned_for_is_the_model_of_llmems_table(name: str) -> None:
    shape, model = shapes()[name], MODELS[name].model
    for names, wanted in (
        (("num_hidden_layers", "n_layer", "num_layers"), model.layers),
        (("hidden_size", "n_embd"), model.hidden),
        (("vocab_size",), model.vocabulary),
        (("intermediate_size", "ffn_dim", "n_inner"), model.ffn),
    ):
        assert {shape[each] for each in names if each in shape} <= {wanted}


def test_all_models_of_llmems_table_are_there() -> None:
    assert shapes().keys() == MODELS.keys()


@pytest.mark.parametrize(
    ("model", "plan", "fastest", "agrees"),
    [
        ("OPT-1.3b", made("fsdp2", "zero3"), "ADP, 688", "yes"),
        ("OPT-1.3b", made("fsdp2-offload"), "ADP, 688", "no"),
        ("OPT-1.3b", made(), "ADP, 688", "no"),
        ("bloom-3b", made("fsdp2"), "TP, 14495", "TP is not offered"),
        ("llama-7b", made("zero3-offload"), "CPU offload, not measured", "yes"),
        ("llama-7b", made("zero3"), "CPU offload, not measured", "no"),
    ],
)
def test_a_plan_agrees_where_its_first_way_is_of_the_kind_that_was_the_fastest(
    model: str, plan: plans.Plan, fastest: str, agrees: str
) -> None:
    assert plan_llmem.row(MODELS[model], plan)[-2:] == [fastest, agrees]


def test_a_row_has_the_first_way_and_what_it_cost_or_why_there_is_none() -> None:
    found = plan_llmem.row(MODELS["OPT-2.7b"], made("fsdp2", "zero3"))
    assert found[:7] == [
        "OPT-2.7b",
        "DP+TP",
        "fsdp2 on 4, 8 x 1 with checkpointing, 14.00 GiB",
        "2",
        "3",
        "100",
        "OOM",
    ]
    assert plan_llmem.row(MODELS["OPT-2.7b"], made(said="no"))[2:5] == ["no", "0", "0"]
    assert plan_llmem.row(MODELS["OPT-2.7b"], made())[2] == "none"


def test_below_the_table_is_for_how_many_models_data_parallel_ways_fit_as_measured() -> None:
    plans_of = {
        "OPT-1.3b": made("fsdp2"),
        "OPT-2.7b": made("zero3"),
        "llama-7b": made("fsdp2-offload"),
    }
    found = plan_llmem.lines([(MODELS[name], plan) for name, plan in plans_of.items()])
    assert len(found) == 2 + 3 + 2
    assert found[-1].endswith(" as measured for 2 of 3 models.")


def test_the_page_has_the_table() -> None:
    page = Path(__file__).parents[3] / "docs" / "planning-speed.md"
    assert f"| {' | '.join(plan_llmem.HEADINGS)} |" in page.read_text(encoding="utf-8")
