"""Ranks that differ, pipeline stages and uneven shards: run together, each allocates what it does
among real ones."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.integration.probe.test_ranks import (
    H100,
    OF_FOUR,
    RANKS,
    WITHOUT_PROBE,
    free_port,
    output,
    ranked,
    stand_ins,
    start,
    traces,
)
from xmem_slurm import trace
from xmem_slurm.dryrun import dispatch, ranks
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.exchange import SharedBudget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.sizing.dry_runs import DryRunsByKind
from xmem_slurm.sizing.estimate import estimate

pytestmark = [pytest.mark.torch, OF_FOUR]

STAGES = """
import gc, json, os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
rank, world, device = dist.get_rank(), dist.get_world_size(), torch.device("cuda", local)
BATCH, PARTS, LENGTH, WIDTH, WORDS = 8, 4, 65, 256, 5003


def layers(index, count):
    made = [nn.Embedding(WORDS, WIDTH)] if index == 0 else []
    for _ in range(1 + index):
        made += [nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)]
    last = [nn.Linear(WIDTH, WORDS), nn.ReLU()] if index == count - 1 else []  # torch 2.6 detaches no view
    return nn.Sequential(*made, *last).to(device)


def stage(index, count, shapes_known):
    shapes = {}
    if shapes_known:
        rows = BATCH // PARTS
        given = torch.zeros(rows, LENGTH, WIDTH, device="meta")
        tokens = torch.zeros(rows, LENGTH, dtype=torch.long, device="meta")
        words = torch.zeros(rows, LENGTH, WORDS, device="meta")
        shapes = {"input_args": (given if index else tokens,), "output_args": (words if index == count - 1 else given,)}
    return PipelineStage(layers(index, count), index, count, device, **shapes)


def loss(words, tokens):
    return nn.functional.cross_entropy(words.flatten(0, 1), tokens.flatten())


def pipeline(schedule, stages):
    step = schedule(stages if schedule is ScheduleInterleaved1F1B else stages[0], PARTS, loss_fn=loss).step
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device=device)

    def once():
        if rank == 0:
            step(tokens)
        elif rank == world - 1:
            step(target=tokens)
        else:
            step()

    return once, torch.optim.AdamW([p for each in stages for p in each.submod.parameters()], foreach=False)


def interleaved(shapes_known):
    stages = [stage(rank + turn * world, 2 * world, shapes_known) for turn in range(2)]
    return pipeline(ScheduleInterleaved1F1B, stages)


def by_hand():
    # Each rank tells the next the shape of what it sends, which the next could not know.
    model = layers(rank, world)

    def once():
        x = torch.zeros(BATCH, 33 + rank, dtype=torch.long, device=device)
        if rank > 0:
            shape = torch.zeros(3, dtype=torch.long, device=device)
            dist.recv(shape, rank - 1)
            x = torch.empty(shape.tolist(), device=device, requires_grad=True)
            dist.recv(x.data, rank - 1)
        y = model(x)
        if rank < world - 1:
            dist.send(torch.tensor(y.shape, device=device), rank + 1)
            dist.send(y.detach(), rank + 1)
            grad = torch.empty_like(y)
            dist.recv(grad, rank + 1)
            y.backward(grad)
        else:
            y.square().mean().backward()
        if rank > 0:
            dist.send(x.grad, rank - 1)

    return once, torch.optim.AdamW(model.parameters(), foreach=False)


def uneven():
    # Each goes whole to the rank that has the least so far: rank 1 gets the last one, too.
    model = nn.ParameterList(torch.zeros(rows, 1000, device=device) for rows in (1100, 1000, 1000, 1000, 1000))

    def once():
        sum((parameter * 2).sum() for parameter in model).backward()

    return once, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)


WAYS = {
    "GPipe": lambda: pipeline(ScheduleGPipe, [stage(rank, world, True)]),
    "1F1B": lambda: pipeline(Schedule1F1B, [stage(rank, world, True)]),
    "interleaved": lambda: interleaved(True),
    "by hand": by_hand,
    "GPipe, shapes told": lambda: pipeline(ScheduleGPipe, [stage(rank, world, False)]),
    "interleaved, shapes told": lambda: interleaved(False),
    "uneven ZeRO-1": uneven,
}
"""

MEASURED = """
def settle():
    torch.cuda.synchronize()
    time.sleep(0.3)


found = {}
for name in json.loads(sys.argv[1]):
    once, optimizer = WAYS[name]()
    settle()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        once()
        optimizer.step()
        optimizer.zero_grad()
        settle()
    stats = torch.cuda.memory_stats()
    found[name] = {kind: stats[kind + "_bytes.all.peak"] for kind in ("allocated", "requested", "reserved")}
    del once, optimizer
    gc.collect()
    settle()
    torch.cuda.empty_cache()
line = "OUT " + json.dumps(found)
if len(sys.argv) > 2:
    open(sys.argv[2] + str(rank), "w").write(line)
print(line, flush=True)
os._exit(0)
"""
FOREVER = """
once, optimizer = WAYS[sys.argv[1]]()
while True:
    once()
    optimizer.step()
    optimizer.zero_grad()
"""
REAL = ("GPipe", "1F1B", "interleaved")
"""What real processes on stand-ins can do without us: nothing that is sent there arrives."""

Found = Sequence[Mapping[str, Mapping[str, int]]]


@pytest.fixture(scope="module")
def together(job_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of four processes says that meet through torch's own TCPStore, without the
    probe."""
    folder, port, shown = tmp_path_factory.mktemp("together"), free_port(), stand_ins(job_python)
    command = [job_python, "-c", WITHOUT_PROBE + STAGES + MEASURED, json.dumps(REAL)]
    processes = [start(command, ranked(rank, port) | shown, folder) for rank in range(RANKS)]
    return [output(process) for process in processes]


@pytest.fixture(scope="module")
def dry(warm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What each of four ranks says that a launcher of the dry run starts at once."""
    folder = tmp_path_factory.mktemp("dry")
    (folder / "train.py").write_text(STAGES + MEASURED)
    ways = json.dumps([*REAL, "GPipe, shapes told", "interleaved, shapes told"])
    launcher = [
        warm_python,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={RANKS}",
        "train.py",
        ways,
        "rank",
    ]
    found = traces(launcher, folder, {"XMEM_RUN_RANKS": f"0,1,2,3/{RANKS}"})
    assert sorted(each.rank for each in found) == list(range(RANKS))
    assert all(each.peers == list(range(RANKS)) for each in found)
    lines = [(folder / f"rank{rank}").read_text() for rank in range(RANKS)]
    return [json.loads(line.removeprefix("OUT ")) for line in lines]


@pytest.mark.parametrize("way", REAL)
def test_each_rank_allocates_what_it_does_among_real_processes(
    way: str, dry: Found, together: Found
) -> None:
    assert [rank[way] for rank in dry] == [rank[way] for rank in together]
    assert len({rank[way]["allocated"] for rank in dry}) == RANKS


@pytest.mark.parametrize("way", ["GPipe", "interleaved"])
def test_shapes_that_stages_tell_each_other_arrive(way: str, dry: Found) -> None:
    """Finding them out runs each stage once on its own; from then on all is the same."""
    for rank in dry:
        assert rank[f"{way}, shapes told"]["allocated"] == pytest.approx(
            rank[way]["allocated"], rel=0.01
        )


def dry_run(way: str, script: str, folder: Path, job_python: Path) -> Sequence[trace.Trace]:
    return run_dry(STAGES + FOREVER, f"{script} train.py '{way}'", folder, job_python)


def run_dry(train: str, script: str, folder: Path, job_python: Path) -> Sequence[trace.Trace]:
    (folder / "train.py").write_text(train)
    environ = {"HOME": str(folder), "PATH": f"{job_python.parent}:/usr/bin:/bin"}
    job = Job(f"#!/bin/bash\n{script}\n".encode(), (), folder, environ, (RANKS,))
    order = DryRunOrder.of(job, H100, Budget(seconds=40))
    return dispatch.one(ranks.run(order, SharedBudget(order.budget)), DryRuns())


@pytest.mark.usefixtures("without_sandbox")
def test_a_pipeline_is_sized_by_its_largest_stage(warm_python: Path, tmp_path: Path) -> None:
    found = estimate(
        dry_run("by hand", f"torchrun --nproc-per-node={RANKS}", tmp_path, warm_python),
        "h100",
        H100,
    )
    assert [
        each.trace.rank for each in sorted(found.ranks, key=lambda each: each.trace.rank)
    ] == list(range(RANKS))
    assert found.largest.trace.rank == RANKS - 1
    assert all(each.trace.state == "steady" and each.trace.steps >= 3 for each in found.ranks)


@pytest.mark.usefixtures("without_sandbox")
def test_the_largest_shard_is_run_beside_rank_0(warm_python: Path, tmp_path: Path) -> None:
    found = estimate(
        dry_run("uneven ZeRO-1", f"torchrun --nproc-per-node={RANKS}", tmp_path, warm_python),
        "h100",
        H100,
    )
    first, other = sorted(found.ranks, key=lambda each: each.trace.rank)
    assert (first.trace.rank, other.trace.rank) == (0, 1)
    assert found.largest is other
    more = other.breakdown[trace.Category.OPT] - first.breakdown[trace.Category.OPT]
    assert more == pytest.approx(2 * 4 * 900 * 1000, rel=0.01)  # AdamW's two moments
    assert "of 4 ranks 0, 1 were run; the largest stands for all" in found.reasons


DDP = """
import os, torch
torch.distributed.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 1024).cuda())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    rows = 64 if torch.distributed.get_rank() < 3 else ROWS
    model(torch.zeros(rows, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.usefixtures("without_sandbox")
@pytest.mark.parametrize(("rows", "confidence"), [(64, "high"), (65536, "medium")])
def test_the_last_rank_is_run_where_nothing_else_is_in_doubt(
    rows: int, confidence: str, warm_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(DDP.replace("ROWS", str(rows)))
    environ = {"HOME": str(tmp_path), "PATH": f"{warm_python.parent}:/usr/bin:/bin"}
    script = f"#!/bin/bash\ntorchrun --nproc-per-node={RANKS} train.py\n"
    with_nvlink = load_catalogue()["h100-sxm5-80gb"]
    order = DryRunOrder.of(
        Job(script.encode(), (), tmp_path, environ, (RANKS,)), with_nvlink, Budget(seconds=60)
    )
    dry_runs = DryRunsByKind(order, {"h100": with_nvlink}, SharedBudget(order.budget))
    found = estimate(dispatch.one(dry_runs.on("h100"), DryRuns()), "h100", with_nvlink)
    assert found.confidence == confidence, found.reasons
    assert (dry_runs.order.ranks_alike, found.largest.trace.rank) == (
        (True, 0) if rows == 64 else (False, 3)
    )
    gradients = 4 * (1024 * 1024 + 1024)
    assert [noted.count for noted in found.largest.doubts if noted.code == "ddp-buckets"] == [
        gradients
    ]


ONE_EACH = """
import os, torch
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.zeros(9, device="cuda")
"""


@pytest.mark.usefixtures("without_sandbox")
def test_a_rank_that_finds_no_gpu_of_its_number_is_run_and_fails(
    warm_python: Path, tmp_path: Path
) -> None:
    start = f"torchrun --nproc-per-node={RANKS} train.py"
    (alone,) = run_dry(ONE_EACH, start, tmp_path, warm_python)
    assert (alone.rank, alone.peers) == (0, [])
    found = run_dry(ONE_EACH, f"export CUDA_VISIBLE_DEVICES=0,1\n{start}", tmp_path, warm_python)
    with pytest.raises(NoEstimate, match=r"^rank 2 of 4 stopped with .*invalid device ordinal"):
        estimate(found, "h100", H100)
