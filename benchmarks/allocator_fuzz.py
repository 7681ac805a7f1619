"""Does the model ever differ from torch? Random operations over all settings, on both, compared
after every one.

    python -m benchmarks.allocator_fuzz [--operations 1000000] [--seed 0] [--processes 2] [--torch
    SITE_PACKAGES/torch]

The torch package is that of the Python named by XMEM_TEST_PYTHON unless --torch gives another (see
benchmarks.allocator_oracle). A difference is printed with its seed, and the command then ends with
status 1.
"""

import argparse
import itertools
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from benchmarks.allocator_model import ModelRun, Operation
from benchmarks.allocator_oracle import Case, Oracle, build, read_answer
from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.releases import release
from xmem_slurm.units import KIB, MIB

OPERATIONS_PER_CASE = 400

SIZES = {
    "max_split_size_mb": [
        "max_split_size_mb:21",
        "max_split_size_mb:32",
        "max_split_size_mb:128",
        "max_split_size_mb:512",
    ],
    "max_non_split_rounding_mb": ["max_split_size_mb:64,max_non_split_rounding_mb:40"],
    "garbage_collection_threshold": [
        f"garbage_collection_threshold:{part}" for part in (0.2, 0.6, 0.8)
    ],
    "roundup_power2_divisions": [
        "roundup_power2_divisions:1",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:16",
        "roundup_power2_divisions:[1:8,2:2,16:4,>:1]",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
        "roundup_power2_divisions:[4:2,>:8]",
    ],
    "expandable_segments": [
        "expandable_segments:True",
        "expandable_segments:True",
        "expandable_segments:False",
    ],
    "large_segment_size_mb": [
        "large_segment_size_mb:11",
        "large_segment_size_mb:30",
        "large_segment_size_mb:64",
    ],
    "per_process_memory_fraction": [
        "per_process_memory_fraction:0.5",
        "per_process_memory_fraction:0.9",
    ],
    "expandable_segments_reserve": [
        f"expandable_segments:True,expandable_segments_reserve:{size}"
        for size in ("0.05", "0.5", "1G", "nonsense")
    ],
    "throw_on_cudamalloc_oom": ["throw_on_cudamalloc_oom:True", "throw_on_cudamalloc_oom:False"],
}
"""Values to draw for each key that changes sizes."""


def random_settings(dice: random.Random, torch_version: str) -> str:
    """Draw a settings string that this release accepts; a third of the time the defaults."""
    chosen: list[str] = []
    for key in ("large_segment_size_mb", *SIZES):
        if (
            key in release(torch_version).keys
            and dice.random() < 0.2
            and not any(key + ":" in text for text in chosen)
        ):
            chosen.append(dice.choice(SIZES[key]))
    # The two rounding keys must not be smaller than the large segment.
    if any("large_segment_size_mb" in text for text in chosen):
        chosen = [
            text
            for text in chosen
            if "max_split_size_mb" not in text or text.endswith((":128", ":512"))
        ]
    # 2.4 stops with an internal error when these two meet a full device.
    if release(torch_version).since < (2, 5) and any(
        "expandable_segments:True" in text for text in chosen
    ):
        chosen = [text for text in chosen if "max_split_size_mb" not in text]
    return ",".join(chosen)


def random_case(dice: random.Random, torch_version: str) -> Case:
    """Draw a device, settings, streams and pools."""
    streams = dice.choice([1, 1, 2, 3])
    settings = random_settings(dice, torch_version)
    limited = dice.random() < (0.7 if "garbage" in settings else 0.15)
    total = dice.choice([32, 64, 255, 256, 512, 1000, 1024, 2048, 8192]) * MIB
    return Case(
        settings=settings,
        capacity=total if dice.random() < 0.6 else int(total * dice.uniform(0.3, 1)),
        total=total,
        fraction=dice.choice([0.3, 0.5, 0.75, 0.9, 1.0]) if limited else None,
        streams=streams,
        pools=2 if dice.random() < 0.15 else 0,
        pending_events=streams > 1 and dice.random() < 0.6,
    )


def random_size(dice: random.Random, favourites: list[int], largest: int) -> int:
    """Draw the bytes of a request: boundaries of the rules, sizes seen before, or anything."""
    draw = dice.random()
    if draw < 0.15:
        edge = dice.choice(
            [KIB // 2, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB, 128 * MIB]
        )
        size = edge + dice.choice([-513, -512, -1, 0, 1, 512])
    elif draw < 0.6:
        size = dice.choice(favourites)
    elif draw < 0.98:
        size = int(2 ** dice.uniform(3, 27))
    else:
        size = int(largest * dice.uniform(0.05, 0.7))
    return max(1, min(size, largest + MIB))


def random_operations(dice: random.Random, case: Case) -> list[Operation]:
    """Draw operations that make sense whatever the allocator answers: a failed allocation is not
    used again.
    """
    favourites = [
        int(2 ** dice.uniform(9, dice.choice([20, 24, 27]))) for _ in range(dice.randint(3, 12))
    ]
    frees = dice.uniform(0.3, 0.6)
    live: list[int] = []
    operations: list[Operation] = []
    numbers = itertools.count()
    for _ in range(OPERATIONS_PER_CASE):
        draw = dice.random()
        if draw < 0.002:
            operations.append(("l",))
        elif draw < 0.012:
            operations.append(("e",))
        elif draw < 0.03 and case.pending_events:
            operations.append(("s",))
        elif draw < 0.08 and case.streams > 1 and live:
            operations.append(("r", dice.choice(live), dice.randrange(case.streams)))
        elif draw < frees and live:
            operations.append(
                ("f", live.pop(-1 if dice.random() < 0.4 else dice.randrange(len(live))))
            )
        else:
            live.append(next(numbers))
            pool = dice.choice([-1, *range(case.pools)])
            size = random_size(dice, favourites, case.capacity)
            operations.append(("a", live[-1], size, dice.randrange(case.streams), pool))
    return operations


def first_difference(oracle: Oracle, case: Case, operations: list[Operation]) -> str | None:
    """Run both and say where they first differ; None if they never do.

    The operations are settled on the model, which leaves out what follows from a failed allocation.
    """
    model = ModelRun(parse(case.settings, oracle.torch_version), case)
    done: list[Operation] = []
    expected: list[tuple[int, dict[str, int]]] = []
    for operation in operations:
        if operation[0] in "fr" and operation[1] not in model.live:
            continue
        done.append(operation)
        expected.append((model.step(operation), model.stats()))
    lines = oracle.answers(case, [*(" ".join(map(str, operation)) for operation in done), "p"])
    for number, (operation, (result, stats)) in enumerate(zip(done, expected, strict=True)):
        if number >= len(lines):
            return f"operation {number} {operation}: torch stopped"
        answer, torch_stats = read_answer(lines[number])
        if answer != result:
            return f"operation {number} {operation}: model {result}, torch {answer}"
        different = {
            name: (value, torch_stats[name])
            for name, value in stats.items()
            if torch_stats[name] != value
        }
        if different:
            return f"operation {number} {operation}: (model, torch) {different}"
    segments = lines[len(done) : -1]
    if segments != model.segments():
        wrong = next(
            pair for pair in itertools.zip_longest(model.segments(), segments) if pair[0] != pair[1]
        )
        return f"segments at the end: model {wrong[0]}, torch {wrong[1]}"
    return None


def fuzz_one(oracle: Oracle, seed: int) -> str | None:
    """Draw one case from the seed and compare."""
    dice = random.Random(seed)
    case = random_case(dice, oracle.torch_version)
    difference = first_difference(oracle, case, random_operations(dice, case))
    return difference and f"seed {seed} {case}: {difference}"


def torch_of_test_python() -> Path:
    """Return the torch package of the Python named by XMEM_TEST_PYTHON."""
    python = os.environ.get("XMEM_TEST_PYTHON")
    if python is None:
        raise SystemExit(
            "name a Python that has a CUDA build of torch in XMEM_TEST_PYTHON, or give --torch"
        )
    code = (
        "import importlib.util; "
        "print(importlib.util.find_spec('torch').submodule_search_locations[0])"
    )
    return Path(
        subprocess.run(
            [python, "-c", code], check=True, capture_output=True, text=True
        ).stdout.strip()
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Compare the allocator model with torch's own on random operations"
    )
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--torch", type=Path, help="a torch package; default: that of XMEM_TEST_PYTHON"
    )
    arguments = parser.parse_args()
    oracle = build(arguments.torch or torch_of_test_python())
    cases = -(-arguments.operations // OPERATIONS_PER_CASE)
    started = time.perf_counter()
    differences = 0
    with ProcessPoolExecutor(arguments.processes) as pool:
        seeds = range(arguments.seed, arguments.seed + cases)
        for difference in pool.map(partial(fuzz_one, oracle), seeds, chunksize=8):
            if difference:
                differences += 1
                print(difference, flush=True)
    seconds = time.perf_counter() - started
    print(
        f"torch {oracle.torch_version}: {cases * OPERATIONS_PER_CASE:,} operations in {cases:,} "
        "cases, "
        f"{differences} differences, {seconds:.0f} s"
    )
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
