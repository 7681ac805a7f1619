"""The model against operations that torch 2.13 recorded: 40 of them here, any number by the
benchmark's command."""

import copy
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from xmem_slurm.allocator.caching_allocator import DeviceCachingAllocator
from xmem_slurm.allocator.config import parse
from xmem_slurm.allocator.device import Device

ROOT = Path(__file__).parents[3]
CORPUS = ROOT / "tests" / "data" / "allocator-corpus.json.gz"


def compare(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.allocator_corpus", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_trace_is_identical() -> None:
    ran = compare(CORPUS)
    assert ran.stdout == "40 of 40 traces identical\n"
    assert ran.returncode == 0


@pytest.mark.parametrize("what", ["address", "statistic", "final", "segment", "out of memory"])
def test_a_changed_record_is_noticed(what: str, tmp_path: Path) -> None:
    corpus = json.loads(gzip.decompress(CORPUS.read_bytes()))
    trace = next(trace for trace in corpus["traces"] if any(op[-1] == "oom" for op in trace["ops"]))
    corpus["traces"] = [changed := copy.deepcopy(trace)]
    served = next(op for op in changed["ops"] if op[0] == "a" and op[-1] != "oom")
    match what:
        case "address":
            served[-1] += 512
        case "statistic":
            changed["stat_deltas"][-1] = [[0, 1]]
        case "final":
            changed["final"]["inactive_split_bytes.all.peak"] += 512
        case "segment":
            changed["segments"][0][-1][0][1] += 1
        case _:
            served[-1] = "oom"
    path = tmp_path / "changed.json.gz"
    path.write_bytes(gzip.compress(json.dumps(corpus).encode()))
    ran = compare(path)
    assert ran.stdout.endswith("0 of 1 traces identical\n")
    assert f"seed {trace['seed']}" in ran.stdout
    assert ran.returncode == 1


def test_best_fit_prefers_the_smallest_block_and_then_the_lowest_address() -> None:
    """The order by hand, so that it can be read: three holes of 2, 1 and 1 KiB."""
    allocator = DeviceCachingAllocator(Device(), parse("", "2.13.0"))
    sizes = [2048, 512, 1024, 512, 1024, 512]
    blocks = [allocator.malloc(size) for size in sizes]
    addresses = [block.ptr for block in blocks if block is not None]
    for hole in (0, 4, 2):
        block = blocks[hole]
        assert block is not None
        allocator.free(block)
    taken = [allocator.malloc(1000) for _ in range(3)]
    assert [block.ptr for block in taken if block is not None] == [
        addresses[2],
        addresses[4],
        addresses[0],
    ]
