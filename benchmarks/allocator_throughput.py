"""How fast is a replay? The model against torch's own allocator, on one recorded trace, in one run.

    python -m benchmarks.allocator_throughput TRACE [--torch SITE_PACKAGES/torch]

TRACE is a file that the probe wrote. Every figure is the best of several runs, on one core. An
event is one entry of torch's memory history: an allocation, a free that was asked for, or a free
that was done.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.allocator_fuzz import torch_of_test_python
from benchmarks.allocator_oracle import Case, Oracle, build
from xmem_slurm.allocator.fit import smallest_capacity
from xmem_slurm.allocator.replay import Run, replay
from xmem_slurm.trace import Op, Trace
from xmem_slurm.trace_file import read
from xmem_slurm.units import GIB, human

RUNS = 5
CAPACITIES_GIB = (8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 141)
"""Bytes of memory of GPUs that sites have, in GiB: twelve options to try."""


def best(action: Callable[[], object]) -> float:
    """Return the shortest of several runs, in seconds."""
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def oracle_seconds(oracle: Oracle, trace: Trace) -> float:
    """Return how long torch's own allocator takes for the same allocations and frees."""
    lines = ["t"]
    for op, number in trace.events:
        if op == Op.ALLOC:
            size, stream, _ = trace.allocations[number]
            lines.append(f"a {number} {size} {stream} -1")
        elif op == Op.FREE_REQUESTED:
            lines.append(f"f {number}")
        elif op == Op.EMPTY_CACHE:
            lines.append("e")
    streams = 1 + max(stream for _, stream, _ in trace.allocations)
    case = Case(streams=streams, capacity=1 << 40, total=1 << 40)
    return min(float(oracle.answers(case, lines)[0]) for _ in range(RUNS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure the allocator model beside torch's own allocator"
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument(
        "--torch", type=Path, help="a torch package; default: that of XMEM_TEST_PYTHON"
    )
    arguments = parser.parse_args()
    trace = read(arguments.trace)
    oracle = build(arguments.torch or torch_of_test_python())
    events = len(trace.events)
    model = best(lambda: Run(trace).to_event(None))
    whole = best(lambda: replay(trace))
    torch = oracle_seconds(oracle, trace)
    print(f"{events:,} events")
    print(f"model                {events / model / 1e3:8,.0f} k events/s")
    print(f"replay(), breakdown  {events / whole / 1e3:8,.0f} k events/s")
    print(f"torch {oracle.torch_version:14} {events / torch / 1e3:8,.0f} k events/s")
    print(f"model / torch        {torch / model:8.3f}")
    options = best(lambda: [replay(trace, capacity * GIB).fits for capacity in CAPACITIES_GIB])
    print(f"{len(CAPACITIES_GIB)} capacities replayed in {options:.2f} s")
    unlimited = replay(trace)
    smallest = best(lambda: smallest_capacity(trace, unlimited))
    print(
        f"smallest capacity {human(smallest_capacity(trace, unlimited))}, found in {smallest:.2f} s"
    )


if __name__ == "__main__":
    main()
