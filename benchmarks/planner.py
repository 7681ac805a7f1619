"""Which way of training is the fastest, by the plan's speed model and by LLMem, and which was it
when measured?

    python -m benchmarks.planner                      # LLMem's table 3: nine models on 4 V100 of 16
                                                      GB
    python -m benchmarks.planner --speed [CSV...] [--model NAME=LAYERS,HIDDEN,FFN[,untied]]...

The second compares rows of measured training, one configuration each: without a CSV those of
data/training_speed.csv, which are of ways that a plan offers; else rows of nanotron, of 1B, 3B, 8B,
80B and the models that are named.

A CSV of nanotron has the columns of COLUMNS. A row is compared with those of the same model on as many nodes;
two are a pair where their seconds are more than 5 % apart. A pair with equal scores counts half, as
one that is drawn by lot would; how many those are is said. Rows with pipelines, with tensor
parallelism across nodes, on more than 8 nodes, or of a model that is not known are left out, and
counted. The last line has both rates.
"""

import argparse
import csv
import dataclasses
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

from benchmarks import llmem, training_ways
from benchmarks.text_table import text_table
from benchmarks.training_speed import (
    NANOTRON,
    NANOTRON_VOCABULARY,
    P5_GPUS,
    Row,
    p5_node,
    work_of_method,
    work_of_row,
)
from xmem_slurm.planning import speed
from xmem_slurm.site.loading import load_catalogue

COLUMNS = {
    "model": "model",
    "nodes": "nodes",
    "micro_batch": "micro_batch",
    "grad_accumulation": "accumulation",
    "global_batch": "global_batch",
    "dp": "dp",
    "pp": "pp",
    "tp": "tp",
    "zero": "zero",
    "tokens_per_second_per_gpu": "tokens_per_second",
}
"""What a CSV must have, by the names of a row's fields."""
APART = 1.05
"""Times that are closer are no pair."""

WAYS = Path(__file__).parent / "data" / "training_speed.csv"
"""Measured ways of those that a plan offers, as published (data/README.md)."""


class Measured(Protocol):
    """A configuration, and what was measured of it."""

    @property
    def seconds(self) -> float:
        """Of one step, or of what else is compared."""


Score = Callable[[Any], float]
"""Of a configuration: less is faster."""


class RowsError(Exception):
    """A CSV is none, or not of the form; the message is a line for the user."""


def main() -> int:
    """Print what the module says; 1 with a line on stderr where a CSV cannot be read."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.planner", description=__doc__.splitlines()[0]
    )
    options.add_argument("--speed", nargs="*", type=Path, metavar="CSV")
    options.add_argument(
        "--model", action="append", default=[], metavar="NAME=LAYERS,HIDDEN,FFN[,untied]"
    )
    given = options.parse_args()
    try:
        lines = _lines(given.speed, NANOTRON | dict(map(shape, given.model)))
    except RowsError as error:
        print(f"benchmarks.planner: {error}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    return 0


def _lines(paths: Sequence[Path] | None, models: "Models") -> list[str]:
    if paths is None:
        return table_3_lines()
    if not paths:
        return ways_lines(training_ways.read(WAYS))
    return speed_lines([row for path in paths for row in read(path)], models)


def shape(text: str) -> tuple[str, llmem.Decoder]:
    """Read the name and the shape of a model.

    Raises:
        RowsError: it is of another form.
    """
    found = re.fullmatch(r"([^=]+)=(\d+),(\d+),(\d+)(,untied)?", text)
    if found is None:
        raise RowsError(
            f"--model {text}: not of the form NAME=LAYERS,HIDDEN,FFN or "
            "NAME=LAYERS,HIDDEN,FFN,untied"
        )
    layers, hidden, ffn = map(int, found.group(2, 3, 4))
    return found[1], llmem.Decoder(
        layers, hidden, ffn, NANOTRON_VOCABULARY, gated=True, tied=found[5] is None
    )


def read(path: Path) -> list[Row]:
    """Read the rows of a CSV.

    Raises:
        RowsError: there is none, it lacks columns, or has what is no number in one of them.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or ())]
            if missing:
                raise RowsError(f"{path}: no column {', '.join(missing)}")
            return [_row(path, number, each) for number, each in enumerate(rows, start=2)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RowsError(f"{path}: {error}") from error


def _row(path: Path, number: int, given: Mapping[str, str]) -> Row:
    kinds = {each.name: each.type for each in dataclasses.fields(Row)}
    try:
        row = Row(**{field: _value(given[name], kinds[field]) for name, field in COLUMNS.items()})
    except (TypeError, ValueError) as error:
        raise RowsError(f"{path}, line {number}: {error}") from error
    if (
        min(row.nodes, row.micro_batch, row.accumulation, row.global_batch, row.dp, row.pp, row.tp)
        < 1
    ):
        raise RowsError(f"{path}, line {number}: a count below 1")
    if row.tokens_per_second <= 0:
        raise RowsError(f"{path}, line {number}: {row.tokens_per_second} tokens a second")
    return row


def _value(text: str, kind: Any) -> Any:
    """Return a field's value; a whole number may be written as "2.0"."""
    if kind is not int:
        return kind(text)
    number = float(text)
    if number != int(number):
        raise ValueError(f"{text!r} is no whole number")
    return int(number)


Models = Mapping[str, llmem.Decoder]


def left_out(row: Row, models: Models) -> str:
    """Return why a row is not compared; "" where it is."""
    if row.model not in models:
        return f"the shape of {row.model!r} is not known: --model says it"
    return speed.cannot_rank(row.nodes, pipelines=row.pp > 1, tensor_nodes=-(-row.tp // P5_GPUS))


def llmem_score(row: Row) -> float:
    """Return LLMem's score of a configuration at its own batch, negative: more is faster."""
    plain = row.zero == 0 and row.tp == 1
    return -row.micro_batch * row.dp * (llmem.SPEED_UP_OF_CDP if plain else 1)


def our_score(models: Models) -> Score:
    """Return what the speed model says of a configuration on the nodes of the measurements."""
    node = speed.hardware("h100", load_catalogue()["h100-sxm5-80gb"])
    assert node is not None, "the catalogue has its speed"
    measured_on = p5_node(node)
    return lambda row: speed.step_seconds(work_of_row(row, models[row.model]), measured_on)


Groups = Mapping[Any, Sequence[Any]]
"""What is compared: rows of one group."""


def in_order(groups: Groups, score: Score, apart: float = APART) -> tuple[float, int]:
    """Return how many pairs are in the right order, and of how many; equal scores count half."""
    said = list(_said(groups, score, apart))
    return sum(_right(*pair) for pair in said), len(said)


def _ties(groups: Groups, score: Score) -> int:
    return sum(by_score == 0 for by_score, _ in _said(groups, score, APART))


def _said(groups: Groups, score: Score, apart: float) -> Iterable[tuple[float, float]]:
    """Yield the differences of each pair: of its scores, and of its seconds."""
    for rows in groups.values():
        for (a, of_a), (b, of_b) in combinations([(row, score(row)) for row in rows], 2):
            if max(a.seconds, b.seconds) > apart * min(a.seconds, b.seconds):
                yield of_a - of_b, a.seconds - b.seconds


def _right(by_score: float, measured: float) -> float:
    return 0.5 if by_score == 0 else float(by_score * measured > 0)


def regret(rows: Sequence[Measured], score: Score) -> float:
    """Return by how much the first choice was slower than the fastest, as a share of that."""
    return min(rows, key=score).seconds / min(row.seconds for row in rows) - 1


def speed_lines(rows: Sequence[Row], models: Models) -> list[str]:
    """Return the comparison of measured rows, both rates in the last line.

    Raises:
        RowsError: no row is left to compare.
    """
    reasons = Counter(why for row in rows if (why := left_out(row, models)))
    groups: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        if not left_out(row, models):
            groups[row.model, row.nodes].append(row)
    if not groups:
        raise RowsError(
            f"none of {len(rows)} rows can be compared: {'; '.join(reasons) or 'there are none'}"
        )
    ours = our_score(models)
    table = [_group_line(name, of_group, ours) for name, of_group in sorted(groups.items())]
    for model in sorted({model for model, _ in groups}):
        of_model = {name: each for name, each in groups.items() if name[0] == model}
        table.append(
            (
                f"{model}, all",
                str(sum(map(len, of_model.values()))),
                *_rates(of_model, ours),
                "",
                "",
            )
        )
    headings = ("model, nodes", "rows", "pairs", "ours", "LLMem", "regret: ours", "LLMem")
    worst = sorted((regret(each, ours) for each in groups.values()), reverse=True)
    return [
        f"{len(rows)} rows, {sum(map(len, groups.values()))} compared, in {len(groups)} groups",
        *(f"left out: {count} {_plural(count)}: {why}" for why, count in reasons.most_common()),
        "",
        *text_table(headings, table),
        "",
        "pairs more than 25 % apart in the right order: "
        + ", ".join(
            f"{who} {_percent(*in_order(groups, score, 1.25))}" for who, score in _both(ours)
        ),
        (
            f"regret of the first choice: at most {worst[0]:.1%}; above 10 % in "
            f"{sum(each > 0.1 for each in worst)} groups"
        ),
        "equal scores, which count half: "
        + ", ".join(f"{who} {_ties(groups, score)}" for who, score in _both(ours))
        + f" of {in_order(groups, ours)[1]}",
        "pairs more than 5 % apart in the right order: "
        + ", ".join(f"{who} {_percent(*in_order(groups, score))}" for who, score in _both(ours))
        + f" of {in_order(groups, ours)[1]}",
    ]


def ways_lines(ways: Sequence[training_ways.Way]) -> list[str]:
    """Return the comparison of measured ways, by publication, model, sequence and GPU.

    Those with tensor parallelism are compared in groups of their own, with those without.
    """
    catalogue = load_catalogue()
    groups = defaultdict[tuple[str, str], list[training_ways.Way]](list)
    for way in ways:
        groups[way.group].append(way)
    for (source, model), of_group in list(groups.items()):
        if any(way.tp > 1 for way in of_group):
            groups[f"{source}, tensor parallel", model] = of_group
            groups[source, model] = [way for way in of_group if way.tp == 1]

    def ours(way: training_ways.Way) -> float:
        return training_ways.seconds(way, catalogue)

    both = (("ours", ours), ("LLMem's score", _llmem_score_of_way))
    compared = {name: rows for name, rows in groups.items() if in_order({name: rows}, ours)[1]}
    table = [
        (name[0], name[1], str(len(rows)), *_both_rates({name: rows}, both), *_regrets(rows, both))
        for name, rows in sorted(compared.items())
    ]
    for source in sorted({source for source, _ in compared}):
        of_source = {name: rows for name, rows in compared.items() if name[0] == source}
        rows = str(sum(map(len, of_source.values())))
        table.append((source, "all", rows, *_both_rates(of_source, both), "", ""))
    offered = {name: rows for name, rows in compared.items() if all(way.tp == 1 for way in rows)}
    worst = sorted((regret(rows, ours) for rows in offered.values()), reverse=True)
    headings = ("source", "model", "rows", "pairs", "ours", "LLMem", "regret: ours", "LLMem")
    pairs = in_order(offered, ours)[1]
    return [
        f"{len(ways)} rows, in {len(offered)} groups without tensor parallelism that have a pair",
        "",
        *text_table(headings, table),
        "",
        (
            f"regret of the first choice: at most {worst[0]:.1%}; above 10 % in "
            f"{sum(each > 0.1 for each in worst)} groups"
        ),
        "equal scores, which count half: "
        + ", ".join(f"{who} {_ties(offered, score)}" for who, score in both)
        + f" of {pairs}",
        "pairs more than 5 % apart in the right order: "
        + ", ".join(f"{who} {_percent(*in_order(offered, score))}" for who, score in both)
        + f" of {pairs}",
    ]


def _llmem_score_of_way(way: training_ways.Way) -> float:
    """Return LLMem's score, negative; of its cost where numbers of GPUs differ."""
    plain = way.method == "ddp" and way.tp == 1
    return -way.micro_batch * way.dp * (llmem.SPEED_UP_OF_CDP if plain else 1) / way.gpus


def _both_rates(groups: Groups, both: Sequence[tuple[str, Score]]) -> tuple[str, ...]:
    rates = [_percent(*in_order(groups, score)) for _, score in both]
    return (str(in_order(groups, both[0][1])[1]), *rates)


def _regrets(rows: Sequence[Measured], both: Sequence[tuple[str, Score]]) -> Iterable[str]:
    return (f"{regret(rows, score):.1%}" for _, score in both)


def _both(ours: Score) -> Iterable[tuple[str, Score]]:
    return ("ours", ours), ("LLMem's score", llmem_score)


def _plural(count: int) -> str:
    return "row" if count == 1 else "rows"


def _percent(right: float, pairs: int) -> str:
    return f"{right / pairs:.1%}" if pairs else "-"


def _rates(groups: Groups, ours: Score) -> tuple[str, str, str]:
    right, pairs = in_order(groups, ours)
    return str(pairs), _percent(right, pairs), _percent(*in_order(groups, llmem_score))


def _group_line(name: tuple[str, int], rows: Sequence[Row], ours: Score) -> tuple[str, ...]:
    rates = _rates({name: rows}, ours)
    first = (f"{regret(rows, score):.1%}" for _, score in _both(ours))
    return (f"{name[0]}, {name[1]}", str(len(rows)), *rates, *first)


def table_3_lines() -> list[str]:
    """Return, for each model of LLMem's table 3, both picks beside the measured seconds, and the
    pairs in order.
    """
    hardware = speed.hardware("v100", load_catalogue()[llmem.GPU])
    assert hardware is not None, "the catalogue has its speed"
    table, pairs, as_measured = [], 0, 0
    right, ties = defaultdict[str, float](float), Counter[str]()
    for measured in llmem.TABLE_3:
        found = llmem.candidates(measured.model, llmem.FOUR_V100)
        fits = [each for each in found if each.bs]
        seconds = {each.method: _sample_seconds(measured.model, each, hardware) for each in fits}
        scores = {each.method: -each.score for each in fits}
        ours = min(seconds, key=seconds.__getitem__, default=llmem.Method.OFFLOAD)
        ran = measured.seconds
        as_measured += set(seconds) == set(ran)
        fastest = min(ran, key=ran.__getitem__, default=llmem.Method.OFFLOAD)
        for a, b in combinations(ran, 2):
            pairs += 1
            for who, said in (("ours", seconds), ("LLMem", scores)):
                if a in said and b in said:
                    right[who] += _right(said[a] - said[b], ran[a] - ran[b])
                    ties[who] += said[a] == said[b]
        columns = (llmem.Method.ADP, llmem.Method.DP_TP, llmem.Method.TP)
        figures = (str(ran.get(method, "OOM")) for method in columns)
        table.append((measured.name, str(llmem.pick(found)), str(ours), str(fastest), *figures))
    headings = (
        "model",
        "LLMem's pick",
        "ours",
        "the fastest",
        "4 DP, s",
        "2 DP + 2 TP, s",
        "4 TP, s",
    )
    return [
        *text_table(headings, table),
        "",
        f"what runs out of memory is as measured for {as_measured} of {len(llmem.TABLE_3)} models",
        f"equal scores, which count half: ours {ties['ours']}, LLMem {ties['LLMem']} of {pairs}",
        f"pairs in the right order: ours {right['ours']:g}, LLMem {right['LLMem']:g} of {pairs}",
    ]


def _sample_seconds(model: llmem.Decoder, way: llmem.Candidate, hardware: speed.Hardware) -> float:
    """Return what the speed model says of one sample, with the batch that LLMem says fits."""
    work = work_of_method(model, way.method, way.tp, way.bs, llmem.FOUR_V100)
    return speed.step_seconds(work, hardware) / (way.bs * llmem.FOUR_V100.n / way.tp)


if __name__ == "__main__":
    sys.exit(main())
