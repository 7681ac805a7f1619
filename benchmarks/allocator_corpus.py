"""Does the model do what torch did? Compare it with recorded operations, step by step.

    python -m benchmarks.allocator_corpus FILE...

Each file (JSON, gzip) holds `{head: {torch, stat_columns, ...}, traces: [...]}`. A trace says the settings, the device
and the operations; after each operation, which statistics changed; at the end, peaks and every segment:

    ops          ["a", id, bytes, stream, (pool if npool), address | "oom"]   ["f", id]   ["r", id, stream] record_stream
                 ["e"] empty_cache   ["s"] synchronize: events are ready
    stat_deltas  [[column, value], ...] for each operation
    segments     [address, bytes, stream, "s" | "l", expandable, pool (-1: default), [[bytes, requested, "A" | "P" | "I"]]]

A trace is identical when every address, out-of-memory, statistic and final segment is.
"""

import argparse
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from xmem_slurm.allocator.blocks import Block, PrivatePool
from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator
from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.device import Device
from xmem_slurm.allocator.snapshot import memory_stats, segments


class ModelRun:
    """The model, fed with the operations of one trace."""

    def __init__(self, trace: dict[str, Any], torch_version: str) -> None:
        self.device = Device(trace["total"], events_pending=bool(trace["pending_events"]))
        self.allocator = DeviceCachingAllocator(self.device, parse(trace["settings"], torch_version))
        if trace["fraction"] is not None:
            self.allocator.set_memory_fraction(trace["fraction"])
        self.pools: list[PrivatePool] = [self.allocator.create_pool((0, n + 1)) for n in range(trace["npool"])]
        self.live: dict[int, Block] = {}

    def step(self, op: list[Any]) -> int | str | None:
        """Do one operation; return what an allocation gave: its address or "oom"."""
        match op[0]:
            case "a":
                return self._allocate(op[1], op[2], op[3], op[4] if self.pools else -1)
            case "f":
                self.allocator.free(self.live.pop(op[1]))
            case "r":
                self.allocator.record_stream(self.live[op[1]], op[2])
            case "e":
                self.allocator.empty_cache()
            case "s":
                self.device.synchronize()
            case unknown:
                raise ValueError(f"operation {unknown!r}")
        return None

    def _allocate(self, number: int, size: int, stream: int, pool: int) -> int | str:
        if pool >= 0:
            self.allocator.begin_allocate_to_pool(self.pools[pool])
        block = self.allocator.malloc(size, stream)
        if pool >= 0:
            self.allocator.end_allocate_to_pool()
        if block is None:
            return "oom"
        self.live[number] = block
        return block.ptr

    def segments(self) -> list[list[Any]]:
        """Return the segments in the corpus's form."""
        pool_number = {pool.pool_id: number for number, pool in enumerate(self.pools)}
        states = {"active_allocated": "A", "active_pending_free": "P", "inactive": "I"}
        return [
            [
                segment["address"],
                segment["total_size"],
                segment["stream"],
                segment["segment_type"][0],
                int(segment["is_expandable"]),
                pool_number.get(segment["segment_pool_id"], -1),
                [[block["size"], block["requested_size"], states[block["state"]]] for block in segment["blocks"]],
            ]
            for segment in segments(self.allocator, self.live.values())
        ]


def first_difference(trace: dict[str, Any], columns: list[str], torch_version: str) -> str | None:
    """Run a trace on the model and say where it first differs from the record; None if it never does."""
    run = ModelRun(trace, torch_version)
    expected = dict.fromkeys(columns, 0)
    for number, (op, deltas) in enumerate(zip(trace["ops"], trace["stat_deltas"], strict=True)):
        result = run.step(op)
        if op[0] == "a" and result != op[-1]:
            return f"operation {number} {op}: the model gave {result}"
        expected |= {columns[column]: value for column, value in deltas}
        stats = memory_stats(run.allocator)
        different = {name: (stats[name], value) for name, value in expected.items() if stats[name] != value}
        if different:
            return f"operation {number} {op}: (model, torch) {different}"
    stats = memory_stats(run.allocator)
    final = {name: (stats[name], value) for name, value in trace["final"].items() if stats.get(name, value) != value}
    if final:
        return f"at the end: (model, torch) {final}"
    for ours, theirs in zip(run.segments(), trace["segments"], strict=False):
        if ours != theirs:
            return f"segment at {theirs[0]}: model {ours}, torch {theirs}"
    if len(run.segments()) != len(trace["segments"]):
        return f"{len(run.segments())} segments, torch has {len(trace['segments'])}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the allocator model with recorded operations")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    total = identical = 0
    for path in arguments.files:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            corpus = json.load(file)
        for trace in corpus["traces"]:
            difference = first_difference(trace, corpus["head"]["stat_columns"], corpus["head"]["torch"])
            total += 1
            identical += difference is None
            if difference is not None:
                print(f"{path.name} seed {trace['seed']} settings '{trace['settings']}': {difference}")
    print(f"{identical} of {total} traces identical")
    return 0 if identical == total else 1


if __name__ == "__main__":
    sys.exit(main())
