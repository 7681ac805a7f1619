"""Does the model do what torch did? Compare it with recorded operations, step by step.

    python -m benchmarks.allocator_corpus FILE...

Each file (JSON, gzip) holds `{head: {torch, stat_columns, ...}, traces: [...]}`. A trace says the
settings, the device and the operations; after each operation, which statistics changed; at the end,
peaks and every segment:

    ops          ["a", id, bytes, stream, (pool if npool), address | "oom"]   ["f", id]   ["e"]
                 empty_cache
                 ["r", id, stream] record_stream   ["s"] synchronize: events are ready
    stat_deltas  [[column, value], ...] for each operation
    final        statistic: value
    segments     [address, bytes, stream, "s" | "l", expandable, pool (-1: default), blocks], where
                 a block is [bytes, requested, "A" | "P" | "I"]: allocated, waiting for events,
                 inactive

The device that they were recorded on gave out ascending addresses from 0 on, none of them twice. A
trace is identical when every address, out-of-memory, statistic and final segment is.
"""

import argparse
import gzip
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.allocator_model import ModelRun, Operation
from benchmarks.allocator_oracle import Case
from xmem_slurm.allocator.addresses import GRANULARITY, Addresses
from xmem_slurm.allocator.config import parse
from xmem_slurm.units import round_up


class Ascending(Addresses):
    """The addresses of the device that the operations were recorded on."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        super().__init__()
        self.next = 0

    def take(self, size: int) -> int:
        """Return the first address that was never given out."""
        address = self.next
        self.next += round_up(size, GRANULARITY)
        return address

    def give_back(self, address: int, size: int) -> None:
        """Nothing is given out again."""


def first_difference(trace: dict[str, Any], columns: list[str], torch_version: str) -> str | None:
    """Run a trace on the model and say where it first differs from the record; None if it never
    does.
    """
    case = Case(
        capacity=trace["total"],
        total=trace["total"],
        fraction=trace["fraction"],
        pools=trace["npool"],
        pending_events=bool(trace["pending_events"]),
    )
    model = ModelRun(parse(trace["settings"], torch_version), case, Ascending())
    expected = dict.fromkeys(columns, 0)
    for number, (op, deltas) in enumerate(zip(trace["ops"], trace["stat_deltas"], strict=True)):
        operation, recorded = _read(op)
        result = model.step(operation)
        if result != recorded:
            return f"operation {number} {op}: the model gave {result}"
        expected |= {columns[column]: value for column, value in deltas}
        different = _different(model.stats(), expected)
        if different:
            return f"operation {number} {op}: (model, torch) {different}"
    different = _different(model.stats(), trace["final"])
    if different:
        return f"at the end: (model, torch) {different}"
    recorded_segments = [_line(segment) for segment in trace["segments"]]
    for ours, theirs in itertools.zip_longest(model.segments(), recorded_segments):
        if ours != theirs:
            return f"segments at the end: model {ours}, torch {theirs}"
    return None


def _read(op: list[Any]) -> tuple[Operation, int]:
    """Turn a recorded operation into one for the model, and what torch answered."""
    if op[0] != "a":
        return tuple(op), 0
    _, number, size, stream, *pool, address = op
    return ("a", number, size, stream, *(pool or [-1])), -1 if address == "oom" else address


def _different(
    stats: dict[str, int], expected: dict[str, int]
) -> dict[str, tuple[int | None, int]]:
    return {
        name: (stats.get(name), value)
        for name, value in expected.items()
        if stats.get(name) != value
    }


def _line(segment: list[Any]) -> str:
    *head, blocks = segment
    return " ".join(map(str, (*head, *itertools.chain.from_iterable(blocks))))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the allocator model with recorded operations"
    )
    parser.add_argument("files", nargs="+", type=Path)
    total = identical = 0
    for path in parser.parse_args().files:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            corpus = json.load(file)
        for trace in corpus["traces"]:
            difference = first_difference(
                trace, corpus["head"]["stat_columns"], corpus["head"]["torch"]
            )
            total += 1
            identical += difference is None
            if difference is not None:
                print(
                    f"{path.name} seed {trace['seed']} settings '{trace['settings']}': {difference}"
                )
    print(f"{identical} of {total} traces identical")
    return 0 if identical == total else 1


if __name__ == "__main__":
    sys.exit(main())
