"""Every doubt that can be written into a trace stands in the one register, and nothing else stands
there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from xmem_slurm.device.generate import SOURCES, outputs
from xmem_slurm.doubts import NO_ESTIMATE, OF_VALUES, Doubt

PACKAGE = Path(__file__).parents[2] / "xmem_slurm"
OF_THE_PROBE = {"doubt", "note"}
"""What the probe calls with a doubt's code; names may begin with an underscore, or stand on an
object."""
OF_THE_TABLE = {"UNSEEN", "VALUES", "SITES"}
"""What the probe's table of hooks calls its codes."""


def of_the_stand_ins() -> set[str]:
    sources = "".join(path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.[ch]"))
    called = re.findall(r'doubt(?:_unmeasured\([\w>-]+,|\()\s*"([a-z-]+)"', sources)
    return {*called, *(each.code for each in outputs().values() if each.code)}


def constants(node: ast.expr | None) -> Iterator[str]:
    """The words that an expression can be: a constant, or either of two."""
    if isinstance(node, ast.IfExp):
        yield from constants(node.body)
        yield from constants(node.orelse)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def of_the_probe() -> set[str]:
    found: set[str] = set()
    for path in (PACKAGE / "probe").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                keyed = zip(node.keys, node.values, strict=True)
                found |= {
                    word
                    for key, value in keyed
                    if [*constants(key)] == ["code"]
                    for word in constants(value)
                }
            elif isinstance(node, ast.Call) and node.args:
                called = ast.unparse(node.func)
                if called in OF_THE_PROBE or called.rpartition(".")[2].lstrip("_") in OF_THE_PROBE:
                    found |= {*constants(node.args[0])}
            elif isinstance(node, ast.Assign) and {*map(ast.unparse, node.targets)} <= OF_THE_TABLE:
                found |= {*constants(node.value)}
    return found


def of_the_wrapper() -> set[str]:
    sources = [
        path
        for path in PACKAGE.rglob("*.py")
        if "probe" not in path.relative_to(PACKAGE).parts and path.name != "doubts.py"
    ]
    names = re.findall(
        r"Noted\(\s*Doubt\.(\w+)", "".join(path.read_text(encoding="utf-8") for path in sources)
    )
    return {Doubt[name].code for name in names}


def test_what_can_be_written_is_what_stands_in_the_register() -> None:
    stand_ins, probe, wrapper = of_the_stand_ins(), of_the_probe(), of_the_wrapper()
    assert min(map(len, (stand_ins, probe, wrapper))) > 5
    assert stand_ins | probe | wrapper == {doubt.code for doubt in Doubt}


def test_a_doubt_has_a_price_or_leaves_no_estimate_or_changes_no_size() -> None:
    assert {doubt.code for doubt in Doubt if doubt.price is None} - {
        doubt.code for doubt in NO_ESTIMATE
    } == {
        "value-read",  # values are zeros; by itself that changes no size
        "default",  # trace mode only
        # in the form and number that is published; values are unknown, and have doubts of their
        # own
        "stand-in-data",
        "data-repeated",  # of one shape; said by `explain`
        "both-ways",  # takes a doubt away
        "metrics-read",  # the other course of them is run, too (`dryrun/engines`)
        "epochs-alike",  # those that were whole stand for the rest; said by `explain`
        "ranks-alike",  # the last needs no more than the first; said by `explain`
        "ddp-buckets",  # the need has room for them
        "cudnn-trials",  # a plan that finds no memory is not tried; said beside the need
        "no-optimizer",
        "no-launcher",  # costs no memory, but the job; said beside the need
        "own-script",
        "own-environment",
        "own-allocator",
    }
    assert all(doubt.price is None for doubt in NO_ESTIMATE)
    assert {doubt for doubt in Doubt if doubt.code.startswith("value")} < OF_VALUES
