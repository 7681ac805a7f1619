"""Rank 0 of four in one process allocates what rank 0 of four processes allocates, and what starts
ranks starts one."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from xmem_slurm import trace, trace_file
from xmem_slurm.device.builder import build
from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.site.schema import Gpu

pytestmark = pytest.mark.torch
OF_FOUR = pytest.mark.slow(
    covers=[
        "xmem_slurm/probe/*ranks*",
        "xmem_slurm/probe/*collectives*",
        "xmem_slurm/probe/*peers*",
        "xmem_slurm/probe/*mail*",
        "xmem_slurm/probe/*checkpoints*",
        "xmem_slurm/device/src/libraries/nccl*",
    ],
    as_one=True,
)

GIB = 1 << 30
RANKS = 4
H100 = Gpu(
    description="NVIDIA H100 SXM5 80 GB",
    cuda_name="NVIDIA H100 80GB HBM3",
    capability="9.0",
    multiprocessors=132,
    total_bytes=80 * GIB,
    total_source="test",
    context_bytes=GIB // 2,
    context_source="test",
)
CACHE = Path(__file__).parents[3] / "build" / "device"

WITHOUT_PROBE = """
import ctypes, glob, os
for path in sorted(glob.glob(os.environ["STAND_INS"] + "/*.so*"), key=lambda path: ("libcudart" not in path, path)):
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
"""

TRAIN = """
import gc, json, os, sys, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

try:
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import CPUOffloadPolicy, fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("cpu:gloo,cuda:nccl")  # objects travel by gloo: by the stand-in NCCL they cannot
world = dist.get_world_size()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(1001, 1000), *[Block(1000) for _ in range(6)], nn.Linear(1000, 1001)).cuda()


def tensor_parallel(network, mesh):
    for block in list(network)[1:-1]:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return network


def sharded(network, **options):
    for block in list(network)[1:-1]:
        fully_shard(block, **options)
    fully_shard(network, **options)
    return network


def two_dimensions():
    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("dp", "tp"))
    return sharded(tensor_parallel(model(), mesh["tp"]), mesh=mesh["dp"])


def settle():
    # ProcessGroupNCCL's watchdog lets go of the tensors of collectives every 100 ms: when exactly it comes is chance,
    # here as on a GPU, and would show in the peaks.
    torch.cuda.synchronize()
    time.sleep(0.3)


WAYS = {
    "DDP": lambda: nn.parallel.DistributedDataParallel(model(), device_ids=[torch.cuda.current_device()]),
    "DDP and ZeRO-1": lambda: nn.parallel.DistributedDataParallel(model()),
    "FSDP1": lambda: FullyShardedDataParallel(model(), use_orig_params=True),
    "FSDP1, offloaded": lambda: FullyShardedDataParallel(model(), cpu_offload=CPUOffload(True), use_orig_params=True),
    "FSDP2": lambda: sharded(model()),
    "FSDP2, offloaded": lambda: sharded(model().cpu(), offload_policy=CPUOffloadPolicy()),
    "TP": lambda: tensor_parallel(model(), init_device_mesh("cuda", (world,))),
    "FSDP2 and TP": two_dimensions,
}
def peaks():
    stats = torch.cuda.memory_stats()
    return {kind: stats[kind + "_bytes.all.peak"] for kind in ("allocated", "requested", "reserved")}


def saved(network, optimizer):
    found = []
    for options in (StateDictOptions(full_state_dict=True, cpu_offload=True), StateDictOptions()):
        settle()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        state, of_optimizer = get_state_dict(network, optimizer, options=options)
        found.append(peaks())
    everything = {"model": state, "optimizer": of_optimizer}
    checkpoint.save(everything, checkpoint_id=sys.argv[1])
    checkpoint.load(everything, checkpoint_id=sys.argv[1])
    set_state_dict(network, optimizer, model_state_dict=state, optim_state_dict=of_optimizer)
    return dict(zip(SAVED, found))


SAVED = ("the whole state", "its shards")
found = {}
for name, way in WAYS.items():
    network = way()
    if name.endswith("ZeRO-1"):
        optimizer = ZeroRedundancyOptimizer(network.parameters(), torch.optim.AdamW, lr=1e-4)
    else:
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, foreach=False)
    settle()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    tokens = torch.zeros(8, 333, dtype=torch.long, device="cuda")
    for _ in range(3):
        network(tokens).float().sum().backward()
        if name == "FSDP2":
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        settle()
    found[name] = {**peaks(), "allocations": torch.cuda.memory_stats()["allocation.all.allocated"]}
    if name in ("FSDP1", "FSDP2"):
        found.update({name + ", " + state: of_it for state, of_it in saved(network, optimizer).items()})
    del network, optimizer
    gc.collect()
    settle()
    torch.cuda.empty_cache()
dist.barrier()
print("OUT " + json.dumps(found))
sys.stdout.flush()
os._exit(0)
"""
SAVED = [
    f"{way}, {state}" for way in ("FSDP1", "FSDP2") for state in ("the whole state", "its shards")
]
WAYS = (
    "DDP",
    "DDP and ZeRO-1",
    "FSDP1",
    "FSDP1, offloaded",
    "FSDP2",
    "FSDP2, offloaded",
    "TP",
    "FSDP2 and TP",
)


def ranked(rank: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(
    command: list[str | Path], environ: dict[str, str], folder: Path
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command, env=environ, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def output(process: "subprocess.Popen[str]") -> dict[str, dict[str, int]]:
    out, errors = process.communicate(timeout=300)
    lines = [line.removeprefix("OUT ") for line in out.splitlines() if line.startswith("OUT ")]
    assert lines, errors[-3000:]
    found: dict[str, dict[str, int]] = json.loads(lines[-1])
    return found


@pytest.fixture(scope="module")
def alone(warm_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, int]]:
    """What rank 0 says when it runs with the probe and without any other rank."""
    folder = tmp_path_factory.mktemp("alone")
    environ = ranked(0, 29500) | gpu_environment.environment(H100, RANKS, folder, None)
    return output(start([warm_python, "-c", TRAIN, folder / "checkpoint"], environ, folder))


def stand_ins(python: Path) -> dict[str, str]:
    """Return the variables with which a process has stand-in GPUs, and nothing else of ours."""
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch = subprocess.run(
        [python, "-c", find], capture_output=True, text=True, check=True
    ).stdout.strip()
    shown = gpu_environment.environment(H100, RANKS, CACHE, None)
    shown = {name: value for name, value in shown.items() if name.startswith("XMEM_DEVICE_")}
    return shown | {"STAND_INS": str(build(Path(torch), CACHE))}


@pytest.fixture(scope="module")
def together(
    job_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, dict[str, int]]]:
    """What each of four processes says that meet through torch's own TCPStore, without the
    probe."""
    folder, port, shown = tmp_path_factory.mktemp("together"), free_port(), stand_ins(job_python)
    ranks = [
        start(
            [job_python, "-c", WITHOUT_PROBE + TRAIN, folder / "checkpoint"],
            ranked(rank, port) | shown,
            folder,
        )
        for rank in range(RANKS)
    ]
    return [output(rank) for rank in ranks]


@OF_FOUR
@pytest.mark.parametrize("way", SAVED)
def test_rank_0_alone_saves_and_loads_what_it_does_among_others(
    way: str, alone: dict[str, dict[str, int]], together: list[dict[str, dict[str, int]]]
) -> None:
    """The state gathered on each rank, and in shards, of which each rank writes its own."""
    assert alone[way] == together[0][way]


@OF_FOUR
@pytest.mark.parametrize("way", WAYS)
def test_rank_0_alone_allocates_what_it_does_among_others(
    way: str, alone: dict[str, dict[str, int]], together: list[dict[str, dict[str, int]]]
) -> None:
    """To the byte, and no other rank needs more.

    FSDP1 lets collectives overlap with the next step, so the watchdog's moment moves its cached
    segments by some MiB."""
    ours, theirs = dict(alone[way]), dict(together[0][way])
    reserved = ours.pop("reserved"), theirs.pop("reserved")
    assert reserved[0] == pytest.approx(reserved[1], rel=0.01 if way.startswith("FSDP1") else 0)
    assert ours == theirs
    assert max(rank[way]["allocated"] for rank in together) == ours["allocated"]


TALK = """
import torch, torch.distributed as dist

JOIN = {
    "env": lambda: dist.init_process_group("nccl"),
    "cpu and cuda": lambda: dist.init_process_group("cpu:gloo,cuda:nccl"),
    "gloo": lambda: dist.init_process_group("gloo"),
    "tcp": lambda: dist.init_process_group("nccl", init_method="tcp://elsewhere:29500", rank=0, world_size=4),
    "file": lambda: dist.init_process_group("nccl", init_method="file:///tmp/never-made", rank=0, world_size=4),
    "store": lambda: dist.init_process_group("nccl", store=dist.TCPStore("elsewhere", 1, 4), rank=0, world_size=4),
}
for way, join in JOIN.items():
    join()
    rank, world = dist.get_rank(), dist.get_world_size()
    everyone, gathered, picked, said = [None] * world, [None] * world, [None], ["first"]
    dist.all_gather_object(everyone, {"rank": rank})
    dist.gather_object("part", gathered)
    dist.scatter_object_list(picked, list(range(world)))
    dist.broadcast_object_list(said)
    assert (everyone, gathered) == ([{"rank": 0}] * 4, ["part"] * 4), way
    assert (picked, said) == ([0], ["first"]), way
    host = dist.new_group(backend="gloo")
    dist.monitored_barrier(host)
    parts = [torch.zeros(2) for _ in range(world)]
    dist.all_gather(parts, torch.ones(2), group=host)
    assert all(part.tolist() == [1, 1] for part in parts), way
    dist.barrier()
    if way != "gloo":
        network = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(9, 9).cuda())
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        network(torch.ones(3, 9, device="cuda")).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
"""


def traces(command: list[str | Path], folder: Path, environ: dict[str, str]) -> list[trace.Trace]:
    """Run `command` with the probe and return the traces of the processes that used GPU memory."""
    shown = gpu_environment.environment(H100, RANKS, folder, None)
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), **environ, **shown}
    done = subprocess.run(
        command, env=environ, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [trace_file.read(file) for file in folder.glob("*.json.gz")]
    return [each for each in found if each.allocations]


def test_a_rank_meets_the_others_who_are_not_there(warm_python: Path, tmp_path: Path) -> None:
    (found,) = traces([warm_python, "-c", TALK], tmp_path, ranked(0, 29500))
    assert (found.rank, found.world_size) == (0, 4)
    assert {doubt.code for doubt in found.doubts} >= {"nccl"}


ALIKE = """
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard

torch.cuda.set_device(0)
dist.init_process_group("nccl")
WORLD = dist.get_world_size()


def like(count, given, fill=torch.zeros_like):
    return [fill(given) for _ in range(count)]


def listed(tensors):
    return [each.tolist() for each in tensors]


for device, group in (("cuda", None), ("cpu", dist.new_group(backend="gloo"))):
    def known(values):
        return torch.tensor(values, device=device)

    def reduced(values, op=dist.ReduceOp.SUM):
        tensor = known(values)
        dist.all_reduce(tensor, op, group=group)
        return tensor.tolist()

    pair, parts = known([7, 9]), list(known([[1], [2], [3], [4]]).unbind())

    # Of what is exchanged, this rank gets what it sends.
    for fill in (torch.empty_like, torch.zeros_like):
        counts = known([2048, 2047, 2049, 2048])
        got = fill(counts)
        dist.all_to_all_single(got, counts, group=group)
        assert got.tolist() == [2048, 2047, 2049, 2048], device
    got = known([0] * 10)
    dist.all_to_all_single(got, torch.arange(10, device=device), [1, 2, 3, 4], [1, 2, 3, 4], group=group)
    assert got.tolist() == list(range(10)), device
    got = known([9] * 4)
    dist.all_to_all_single(got, torch.arange(10, device=device), [1] * 4, [1, 2, 3, 4], group=group)
    assert got.tolist() == [0] * 4, "what it sends itself, where all send as much"
    if device == "cuda":  # gloo has none of it
        got = like(4, parts[0])
        dist.all_to_all(got, parts)
        assert listed(got) == [[1], [2], [3], [4]]

    # What is gathered is this rank's in each place.
    got = like(WORLD, pair)
    dist.all_gather(got, pair, group=group)
    assert listed(got) == [[7, 9]] * 4, device
    whole = known([0] * 8)
    dist.all_gather(list(whole.chunk(WORLD)), pair, group=group)
    assert whole.tolist() == [7, 9] * 4, device
    whole = torch.empty(8, dtype=torch.long, device=device)
    dist.all_gather(list(whole.chunk(WORLD)), pair, group=group)
    assert whole.tolist() == [7, 9] * 4, device
    whole = known([[0, 0]] * 4)
    dist.all_gather_into_tensor(whole, pair, group=group)
    assert whole.tolist() == [[7, 9]] * 4, device
    got = like(WORLD, pair)
    dist.gather(pair, got, group=group)
    assert listed(got) == [[7, 9]] * 4, device
    got = torch.zeros_like(parts[0])
    dist.scatter(got, parts, group=group)
    assert got.tolist() == [1], device

    # What is reduced is of as many as there are ranks.
    ops = dist.ReduceOp
    assert (reduced([7, 9]), reduced([7, 9], ops.MAX), reduced([2, 3], ops.PRODUCT)) == ([28, 36], [7, 9], [16, 81])
    assert reduced([True, False]) == [True, False], device
    assert reduced([5, 0, 0, 0]) == [5] * 4, "each rank fills in its place"
    got = torch.empty(2, dtype=torch.long, device=device)
    dist.reduce_scatter_tensor(got, torch.arange(8, device=device), group=group)
    assert got.tolist() == [0, 4], device

# What is not known is not what was there before.
unknown = torch.randn(4, device="cuda")
for write in (
    lambda output: dist.all_gather(list(output.chunk(WORLD)), unknown),
    lambda output: dist.all_gather_into_tensor(output, unknown),
    lambda output: dist.all_to_all_single(output[:4], unknown),
    lambda output: dist.recv(output, 1),
):
    output = torch.ones(16, device="cuda")
    assert output.sum().item() == 16
    write(output)
    assert output.tolist() == [0] * 16, "as the stand-ins' memory reads"

# Operators that go past the methods of a group.
mesh = init_device_mesh("cuda", (WORLD,))
rows = torch.tensor([[7, 9]] * 4, device="cuda")
assert functional.all_to_all_single(rows, None, None, mesh).tolist() == rows.tolist()
assert functional.all_to_all_single(rows, [2, 1, 1, 0], [2, 1, 1, 0], mesh).tolist() == rows.tolist()
assert functional.all_gather_tensor(rows[0], 0, mesh).tolist() == [7, 9] * 4
assert functional.all_reduce(rows, "sum", mesh).tolist() == [[28, 36]] * 4
assert functional.all_reduce(rows, "max", mesh).tolist() == rows.tolist()
assert functional.reduce_scatter_tensor(rows, "sum", 0, mesh).tolist() == [[28, 36]]
assert DTensor.from_local(rows[0], mesh, [Shard(0)]).full_tensor().tolist() == [7, 9] * 4
assert DTensor.from_local(rows[0], mesh, [Partial()]).full_tensor().tolist() == [28, 36]
weight = torch.ones(8, 4, device="cuda", requires_grad=True)
functional.all_to_all_single_autograd(weight * 2, None, None, dist.group.WORLD).sum().backward()
assert weight.grad.shape == weight.shape
"""


def test_other_ranks_are_taken_to_be_like_this_one(warm_python: Path, tmp_path: Path) -> None:
    traces([warm_python, "-c", ALIKE], tmp_path, ranked(0, 29500))


EXPERTS = """
import torch, torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl")
tokens, places = torch.zeros(8192, 512, device="cuda"), torch.randn(8192, 4, device="cuda").topk(1)[1].flatten()
counts = torch.bincount(places, minlength=dist.get_world_size())
expected = torch.zeros_like(counts)
dist.all_to_all_single(expected, counts)
come, go = expected.tolist(), counts.tolist()
received = tokens.new_empty(sum(come), 512)
dist.all_to_all_single(received, tokens[places.argsort()], come, go)
hidden = torch.nn.Linear(512, 3001, device="cuda")(received)
"""


def test_an_expert_gets_as_many_tokens_as_it_does_on_average(
    warm_python: Path, tmp_path: Path
) -> None:
    (found,) = traces([warm_python, "-c", EXPERTS], tmp_path, ranked(0, 29500))
    assert 4 * 8192 * 3001 in [each.size for each in found.allocations]


SPAWN = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, world):
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:29501", rank=rank, world_size=world)
    torch.ones(9, device="cuda")

if __name__ == "__main__":
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        mp.spawn(work, args=(4,), nprocs=torch.cuda.device_count())
"""


@pytest.mark.parametrize(
    ("launcher", "world"),
    [
        ([], 4),
        (
            [
                "-m",
                "torch.distributed.run",
                "--nproc-per-node=gpu",
                "--nnodes=2",
                "--rdzv-backend=c10d",
            ],
            8,
        ),
    ],
    ids=["spawn", "torch.distributed.run"],
)
def test_what_starts_a_process_for_each_gpu_starts_rank_0(
    launcher: list[str], world: int, job_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SPAWN)
    (found,) = traces([job_python, *launcher, "train.py"], tmp_path, {})
    assert (found.rank, found.world_size) == (0, world)
