"""Real torch on the stand-ins: what a training script asks of a GPU, answered without one.

Runs under the torch of the Python named by XMEM_TEST_PYTHON, whichever release that is. Each test
is one process of it, which maps the stand-ins as the probe does: every library of the folder, the
runtime first, before torch is imported."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xmem_slurm.device import elf, generate, needs
from xmem_slurm.device.builder import build

pytestmark = [pytest.mark.torch, pytest.mark.slow(covers=["xmem_slurm/device/*"])]

GIB = 1 << 30
CACHE = Path(__file__).parents[3] / "build" / "device"

MAP = """
import ctypes, glob, json, os
_libraries = sorted(glob.glob(os.environ["STAND_INS"] + "/*.so*"), key=lambda path: ("libcudart" not in path, path))
_mapped = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in _libraries]

def doubts():
    text = ctypes.create_string_buffer(1 << 16)
    assert _mapped[0].xmem_device_report(text, len(text)) < len(text)
    return json.loads(text.value)

def out(**values):
    print("OUT " + json.dumps(values))

import torch
"""

Run = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def python() -> str:
    if not os.environ.get("XMEM_TEST_PYTHON"):
        pytest.skip("XMEM_TEST_PYTHON names no Python with a CUDA build of torch")
    return os.environ["XMEM_TEST_PYTHON"]


@pytest.fixture(scope="session")
def torch_folder(python: str) -> Path:
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


@pytest.fixture(scope="session")
def stand_ins(torch_folder: Path) -> Path:
    return build(torch_folder, CACHE)


@pytest.fixture
def run(python: str, stand_ins: Path, tmp_path: Path) -> Run:
    """Run code after `MAP`; what it hands to `out` comes back. Keywords but `before` are
    environment variables."""

    def run(code: str, before: str = "", **environment: str) -> dict[str, Any]:
        gpu = {
            "XMEM_DEVICE_NAME": "NVIDIA H100 80GB HBM3",
            "XMEM_DEVICE_CAPABILITY": "9.0",
            "XMEM_DEVICE_MULTIPROCESSORS": "132",
            "XMEM_DEVICE_TOTAL_BYTES": str(80 * GIB),
        }
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        ran = subprocess.run(
            [python, "-c", before + MAP + code],
            env={**kept, **gpu, "STAND_INS": str(stand_ins), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        merged: dict[str, Any] = {}
        for line in ran.stdout.splitlines():
            if line.startswith("OUT "):
                merged.update(json.loads(line.removeprefix("OUT ")))
        return merged

    return run


def test_every_function_that_answers_a_size_writes_it(torch_folder: Path) -> None:
    """No such function of this torch is a plain default, which would leave garbage where the caller
    reads a size."""
    written = "".join(path.read_text() for path in generate.SOURCES.rglob("*.c"))
    named_by_macros = re.compile(
        r"cudnn(Get|Find)Convolution\w+Algorithm(_v7|Ex)|cusparseSpMatGetSize"
    )
    asked = re.compile(
        r"(?i)(buffer|space|states|workspace|compressed|_)size|getworkspace|getsize|makeplan|algorithm"
    )
    left = [
        name
        for library in needs.read_libraries(torch_folder)
        for name in frozenset().union(*library.symbols.values())
        if asked.search(name) and name not in generate.outputs()
        if f"{name}(" not in written and not named_by_macros.match(name)
    ]
    assert left == []


def test_what_bitsandbytes_is_linked_to_is_there_though_torch_does_not_ask_for_it(
    stand_ins: Path,
) -> None:
    (blas,) = stand_ins.glob("libcublasLt.so.*")
    transform = "cublasLtMatrixTransform"
    assert {transform, f"{transform}DescCreate", f"{transform}DescDestroy"} <= elf.read(
        blas
    ).defined


def test_shows_the_gpu_it_was_told_to(run: Run) -> None:
    seen = run(
        """
p = torch.cuda.get_device_properties(0)
out(name=p.name, total=p.total_memory, multiprocessors=p.multi_processor_count, capability=[p.major, p.minor],
    threads=p.max_threads_per_multi_processor, free=torch.cuda.mem_get_info(), count=torch.cuda.device_count(),
    cudnn=torch.backends.cudnn.version(), cuda=torch.version.cuda)
""",
        XMEM_DEVICE_NAME="NVIDIA A40",
        XMEM_DEVICE_CAPABILITY="8.6",
        XMEM_DEVICE_MULTIPROCESSORS="84",
        XMEM_DEVICE_TOTAL_BYTES=str(48 * GIB),
        XMEM_DEVICE_CONTEXT_BYTES="500000000",
    )
    assert seen["name"] == "NVIDIA A40"
    assert seen["total"] == 48 * GIB
    assert seen["multiprocessors"] == 84
    assert seen["capability"] == [8, 6]
    assert seen["threads"] == 1536
    assert seen["free"] == [48 * GIB - 500000000, 48 * GIB]
    assert seen["count"] == 1
    assert seen["cudnn"] >= 90100


def test_what_nvml_is_asked_of_a_busy_gpu_it_says(run: Run) -> None:
    """As by torch.cuda.power_draw() and its like, which go through nvidia-ml-py."""
    seen = run(
        """
import ctypes
nvml, handle, again, number = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint(7)
text, memory = ctypes.create_string_buffer(96), (ctypes.c_ulonglong * 5)()
assert nvml.nvmlInitWithFlags(0) == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
assert nvml.nvmlDeviceGetUUID(handle, text, 96) == nvml.nvmlDeviceGetHandleByUUID(text, ctypes.byref(again)) == 0
assert again.value == handle.value
assert nvml.nvmlDeviceGetMemoryInfo_v2(handle, memory) == 0
asked = {"PowerUsage": (), "EnforcedPowerLimit": (), "Temperature": (0,), "ClockInfo": (1,), "MaxClockInfo": (1,)}
said = {}
for name, of in asked.items():
    assert getattr(nvml, "nvmlDeviceGet" + name)(handle, *of, ctypes.byref(number)) == 0
    said[name] = number.value
out(said=said, total=memory[1], sum=sum(memory[2:]))
""",
        XMEM_DEVICE_TOTAL_BYTES=str(48 * GIB),
    )
    assert min(seen["said"].values()) > 7
    assert seen["total"] == seen["sum"] == 48 * GIB


@pytest.mark.parametrize(
    ("devices", "visible", "count"),
    [
        ("2", "0,1,5", 2),
        ("2", "1", 1),
        ("4", "-1", 0),
        ("1", "", 0),
        ("1", "0,1", 1),
        ("4", None, 4),
    ],
)
def test_visible_devices(run: Run, devices: str, visible: str | None, count: int) -> None:
    chosen = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    code = "out(count=torch.cuda.device_count(), available=torch.cuda.is_available())"
    assert run(code, XMEM_DEVICE_COUNT=devices, **chosen) == {
        "count": count,
        "available": count > 0,
    }


def test_visible_devices_may_be_set_after_the_imports(run: Run) -> None:
    code = "os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nout(count=torch.cuda.device_count())"
    assert run(code, XMEM_DEVICE_COUNT="2") == {"count": 1}


GPT2 = """
import transformers
transformers.logging.set_verbosity_error()
with torch.device("cuda"):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
tokens = torch.randint(0, 50257, (8, 1024), device="cuda")
for _ in range(3):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
out(reserved=torch.cuda.max_memory_reserved(), doubts=doubts(), version=torch.__version__)
"""


def test_the_peak_of_gpt2_small(run: Run, python: str) -> None:
    """GPT-2 small, 8 x 1024 tokens, bf16 autocast, AdamW, three steps: 15,252,586,496 B with torch
    2.11.0."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('transformers') is None)"
    if subprocess.run([python, "-c", find], capture_output=True, check=False).returncode != 0:
        pytest.skip("transformers is not installed beside this torch")
    seen = run(GPT2)
    if seen["version"].startswith("2.11.0"):
        assert seen["reserved"] == pytest.approx(15_252_586_496, rel=0.01)
    else:
        assert 12e9 < seen["reserved"] < 18e9


def test_more_than_the_gpu_has_is_seen_in_full_without_a_limit(run: Run) -> None:
    code = """
big = torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
out(reserved=torch.cuda.max_memory_reserved(), free=torch.cuda.mem_get_info()[0])
"""
    assert run(code) == {"reserved": 100 * GIB, "free": 0}


def test_out_of_memory_tells_the_right_numbers(run: Run) -> None:
    seen = run(
        """
kept = torch.empty(9 << 30, dtype=torch.uint8, device="cuda")
try:
    torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
except torch.cuda.OutOfMemoryError as error:
    out(message=str(error), statistics=torch.cuda.memory_stats()["num_ooms"], free=torch.cuda.mem_get_info()[0])
del kept
torch.cuda.empty_cache()
out(after=torch.empty(1 << 30, dtype=torch.uint8, device="cuda").nbytes)
""",
        XMEM_DEVICE_TOTAL_BYTES=str(10 * GIB),
        XMEM_DEVICE_LIMIT_BYTES=str(10 * GIB),
        XMEM_DEVICE_CONTEXT_BYTES=str(GIB // 2),
    )
    assert (
        "Tried to allocate 1024.00 MiB" in seen["message"]
        or "Tried to allocate 1.00 GiB" in seen["message"]
    )
    assert "total capacity of 10.00 GiB of which 512.00 MiB is free" in seen["message"]
    assert seen["statistics"] == 1
    assert seen["free"] == GIB // 2
    assert seen["after"] == GIB


def test_reads_are_zeros_never_stale_and_a_doubt(run: Run) -> None:
    seen = run(
        """
ones = torch.ones(1000)
first = ones.cuda()
doubled = first * 2
del first
recycled = torch.empty(1000, device="cuda")
out(doubled=doubled.cpu().abs().sum().item(), recycled=recycled.cpu().abs().sum().item(), item=doubled.sum().item())
out(doubts=doubts())
"""
    )
    assert (seen["doubled"], seen["recycled"], seen["item"]) == (0, 0, 0)
    reads = {
        each["detail"]: each["count"] for each in seen["doubts"] if each["code"] == "value-read"
    }
    assert reads == {"up to 64 bytes, such as .item()": 1, "more than 64 bytes": 2}


def test_what_the_host_sent_can_be_read_back_until_something_runs(run: Run) -> None:
    seen = run(
        """
sizes = torch.tensor([3, 5, 7]).cuda()
out(before=sizes.cpu().tolist(), one=sizes[1].item(), doubts=doubts())
sizes.add_(1)
out(after=sizes.cpu().tolist())
"""
    )
    assert seen == {"before": [3, 5, 7], "one": 5, "doubts": [], "after": [0, 0, 0]}


def test_what_was_sent_last_is_known_whatever_was_sent_before(run: Run) -> None:
    """A model's parameters are sent before DistributedDataParallel gathers their number from every
    rank."""
    seen = run(
        """
small = [torch.full((9,), each).cuda() for each in range(9000)]
large = [torch.ones(16384).cuda() for each in range(100)]
place = torch.empty(1024, dtype=torch.long, device="cuda")
for part in place.split(1):
    part.copy_(torch.tensor([314]).cuda())
out(parts=sorted({part.item() for part in place.split(1)}), doubts=doubts())
"""
    )
    assert (seen["parts"], seen["doubts"]) == ([314], [])


def test_attention_and_convolution_train(run: Run) -> None:
    code = """
for dtype in (torch.float16, torch.float32):
    q, k, v = (torch.randn(2, 12, 256, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
net = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
                          torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10)).cuda()
images = torch.randn(8, 3, 64, 64, device="cuda")
with torch.autocast("cuda", dtype=torch.float16):
    net(images).sum().backward()
net(images).sum().backward()
contiguous = sorted({d["code"] for d in doubts()})
with torch.autocast("cuda", dtype=torch.float16):
    net.to(memory_format=torch.channels_last)(images.to(memory_format=torch.channels_last)).sum().backward()
out(grads=[p.grad is not None for p in (*net.parameters(), q, k, v)], contiguous=contiguous,
    channels_last=sorted({d["code"] for d in doubts()}))
"""
    seen = run(code, XMEM_DEVICE_CAPABILITY="8.0")
    assert all(seen["grads"])
    assert "cudnn-plan" in seen["contiguous"]
    assert set(seen["channels_last"]) - set(seen["contiguous"]) == {"cudnn-batchnorm"}, (
        "Note [Batch norm's scratch]"
    )


RNNS = """
made = {}
for name, rnn in (
    ("lstm", torch.nn.LSTM(256, 512, 2)), ("projected", torch.nn.LSTM(256, 512, 2, proj_size=128, bidirectional=True)),
    ("gru", torch.nn.GRU(256, 512, 3, bias=False)), ("tanh", torch.nn.RNN(10, 20, 2, bidirectional=True, dropout=0.1)),
):
    parameters = sum(p.numel() for p in rnn.parameters())
    rnn = rnn.cuda()
    base = rnn.weight_ih_l0.untyped_storage()
    output, _ = rnn(torch.randn(20, 8, rnn.input_size, device="cuda"))
    output.sum().backward()
    flat = all(p.untyped_storage().data_ptr() == base.data_ptr() for p in rnn.parameters())
    made[name] = [list(output.shape), flat, base.nbytes() - 4 * parameters]
out(made=made, peak=torch.cuda.max_memory_allocated(), codes=sorted({d["code"] for d in doubts()}))
"""


def test_recurrent_networks_fit_in_the_weights_buffer(run: Run) -> None:
    """All parameters of a module lie in one buffer of their exact size: cuDNN's packed weights."""
    seen = run(RNNS, XMEM_DEVICE_CAPABILITY="8.0")
    shapes = {
        "lstm": [20, 8, 512],
        "projected": [20, 8, 256],
        "gru": [20, 8, 512],
        "tanh": [20, 8, 40],
    }
    assert {name: each[0] for name, each in seen["made"].items()} == shapes
    assert all(flat for _, flat, _ in seen["made"].values())
    # torch gives cuDNN room for both biases even where the module has none
    no_bias = 3 * 2 * 3 * 512 * 4
    assert [spare for _, _, spare in seen["made"].values()] == [0, 0, no_bias, 0]
    assert seen["peak"] < 1e9
    assert "cudnn-rnn" in seen["codes"]


def test_scratch_of_recurrent_networks_and_batch_norm_is_as_a_gpu_answered(run: Run) -> None:
    seen = run(f"""
import gzip, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from benchmarks import cudnn_scratch_on_gpu as scratch
data = json.loads(gzip.decompress(scratch.OUT.read_bytes()))
cudnn = scratch.Cudnn("libcudnn.so.9", lambda size: torch.empty(size, device="cuda", dtype=torch.uint8).data_ptr())
out(rows=scratch.compared(cudnn, data, every=7))
""")
    found = {(of, size): row for of, size, *row in seen["rows"]}
    for (of, size), (questions, less, within, _, _) in found.items():
        assert less == "0", (of, size)
        if of == "batchnorm, channels_last 1" and size != "reserve":
            assert int(within) > 0.8 * int(questions)
        else:
            assert within == questions, (of, size)


def test_sizes_that_only_the_library_knows_are_zero_and_a_doubt(run: Run) -> None:
    seen = run(
        """
x = torch.randn(64, 64, device="cuda")
sparse = torch.eye(64).to_sparse_csr().cuda()
torch.linalg.svd(x), torch.linalg.eigh(x), torch.linalg.qr(x), torch.fft.rfft2(x), sparse @ x, sparse @ sparse
out(peak=torch.cuda.max_memory_allocated(), codes=sorted({d["code"] for d in doubts()}))
"""
    )
    assert seen["peak"] < 100e6
    assert {"cusolver", "cufft", "cusparse"} <= set(seen["codes"])


def test_expandable_segments(run: Run) -> None:
    seen = run(
        """
blocks = [torch.empty(3 << 20, dtype=torch.uint8, device="cuda") for _ in range(40)]
full = torch.cuda.mem_get_info()[0]
segment = torch.cuda.memory_snapshot()[0]
del blocks
torch.cuda.empty_cache()
out(expandable=segment["is_expandable"], reserved=torch.cuda.max_memory_reserved(), taken=(80 << 30) - full,
    free=torch.cuda.mem_get_info()[0])
""",
        PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
    )
    assert seen == {"expandable": True, "reserved": 120 << 20, "taken": 120 << 20, "free": 80 * GIB}


def test_graph_capture_uses_a_pool_of_its_own(run: Run) -> None:
    seen = run(
        """
x = torch.randn(512, 512, device="cuda")
x @ x
side = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x @ x).relu()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        z = y * 2
    torch.cuda.current_stream().wait_stream(side)
graph.replay()
out(pools=sorted({tuple(s["segment_pool_id"]) for s in torch.cuda.memory_snapshot()}))
"""
    )
    assert len(seen["pools"]) == 2


def test_memory_history_is_recorded(run: Run) -> None:
    seen = run(
        """
torch.cuda.memory._record_memory_history(context=None)
block = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
del block
torch.cuda.empty_cache()
out(events=[[e["action"], e["size"]] for e in torch.cuda.memory._snapshot()["device_traces"][0]])
"""
    )
    actions = ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]
    assert [action for action, _ in seen["events"] if action in actions] == actions


def test_events_can_stay_pending(run: Run) -> None:
    """A block used on another stream is not free again before that stream's work is done."""
    code = """
block = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
side = torch.cuda.Stream()
block.record_stream(side)
first = block.data_ptr()
del block
out(reused=torch.empty(4 << 20, dtype=torch.uint8, device="cuda").data_ptr() == first)
torch.cuda.synchronize()
out(afterwards=torch.empty(4 << 20, dtype=torch.uint8, device="cuda").data_ptr() == first)
"""
    assert run(code, XMEM_DEVICE_EVENTS="pending")["reused"] is False
    assert run(code)["reused"] is True


def test_a_queued_event_is_over_when_the_host_is_as_far_ahead_as_it_can_be(run: Run) -> None:
    code = """
def used_elsewhere():
    block = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
    block.record_stream(side)
    return block.data_ptr()
side, small = torch.cuda.Stream(), torch.zeros(1, device="cuda")
first = used_elsewhere()
for _ in range(1000):
    small.neg_()
second = used_elsewhere()
for _ in range(100):
    small.neg_()
third = used_elsewhere()
torch.cuda.synchronize()
out(kept=second != first, over=third == first, synchronized=used_elsewhere() in (first, second))
"""
    assert run(code, XMEM_DEVICE_EVENTS="queued") == {
        "kept": True,
        "over": True,
        "synchronized": True,
    }
    assert run(code)["kept"] is False


def test_a_large_copy_into_pinned_memory_is_zeros_that_take_no_memory(run: Run) -> None:
    seen = run(
        """
on_host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
on_host[:5] = on_host[-5:] = 7
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before = resident()
on_host[3:-3].copy_(torch.empty((1 << 30) - 6, dtype=torch.uint8, device="cuda"))
out(taken=resident() - before, ends=on_host[:5].tolist() + on_host[-5:].tolist(), middle=int(on_host[1 << 20]))
"""
    )
    assert seen["taken"] < GIB / 16
    assert (seen["ends"], seen["middle"]) == ([7, 7, 7, 0, 0, 0, 0, 7, 7, 7], 0)


def test_pinned_batches_and_gradient_scaling(run: Run) -> None:
    seen = run(
        """
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for (batch,) in DataLoader(TensorDataset(torch.randn(64, 512)), batch_size=32, pin_memory=True):
    pinned = batch.is_pinned()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(batch.cuda(non_blocking=True)).float().pow(2).mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
out(pinned=pinned, state=len(optimizer.state))
"""
    )
    assert seen == {"pinned": True, "state": 2}


ONE_OF_MANY = """
import torch.distributed as dist

class OneStore(dist.Store):
    "A store whose other ranks always answered."
    def __init__(self):
        super().__init__()
        self.values = {}
    def set(self, key, value): self.values[key] = value if isinstance(value, bytes) else str(value).encode()
    def get(self, key): return self.values.get(key, b"\\x07" * 128)
    def add(self, key, count):
        self.values[key] = str(int(self.values.get(key, b"0")) + count).encode()
        return int(self.values[key])
    def compare_set(self, key, expected, value): return self.values.setdefault(key, value.encode())
    def check(self, keys): return all("dump" not in key for key in keys)
    def wait(self, *arguments): return None
    def delete_key(self, key): return self.values.pop(key, None) is not None
    def num_keys(self): return len(self.values)
    def set_timeout(self, timeout): pass
    def has_extended_api(self): return False

store = OneStore()
torch.cuda.set_device(0)
dist.init_process_group("nccl", store=store, rank=0, world_size=8)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda()
held = torch.cuda.memory_allocated()
WRAP
model(torch.randn(4, 1024, device="cuda")).sum().backward()
torch._C._cuda_clearCublasWorkspaces()
out(held=held, wrapped=torch.cuda.memory_allocated(), codes=sorted({d["code"] for d in doubts()}))
import sys
sys.stdout.flush()
os._exit(0)
"""


def test_one_rank_of_eight_with_ddp(run: Run) -> None:
    seen = run(
        ONE_OF_MANY.replace(
            "WRAP", "model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])"
        )
    )
    assert "nccl" in seen["codes"]
    assert seen["wrapped"] > 1.9 * seen["held"]  # gradients, in the buckets


def test_what_collectives_use_is_let_go_as_late_as_on_a_gpu(run: Run) -> None:
    """Nobody waits for the collectives themselves, so torch's thread lets go of gradients once it
    sees their end."""
    wrap = """
import time
optimizer = torch.optim.SGD(model.parameters())
def step():
    model(torch.randn(4, 1024, device="cuda")).sum().backward()
    begun = [dist.all_reduce(each.grad, async_op=True).get_future() for each in model.parameters()]
    torch.futures.collect_all(begun).wait()
    time.sleep(0.3)  # the thread looks every 100 ms
    dist.all_reduce(torch.zeros(1, device="cuda"))  # where torch 2.8 and newer drop what it has let go of
    optimizer.step()
    optimizer.zero_grad()
    return torch.cuda.memory_allocated()
step()
"""
    text = ONE_OF_MANY.replace("WRAP", wrap).replace(
        "out(held=held,", "out(after=step(), held=held,"
    )
    at_once, queued = (run(text, XMEM_DEVICE_EVENTS=events) for events in ("ready", "queued"))
    assert queued["after"] - at_once["after"] == pytest.approx(queued["held"], rel=0.01)


def test_one_rank_of_eight_with_fsdp2(run: Run) -> None:
    wrap = """
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # before torch 2.6
    from torch.distributed._composable.fsdp import fully_shard
for layer in model:
    fully_shard(layer)
fully_shard(model)
"""
    seen = run(ONE_OF_MANY.replace("WRAP", wrap))
    assert "nccl" in seen["codes"]
    # an eighth of the parameters and of the gradients, and a batch
    assert seen["wrapped"] < 0.8 * seen["held"]


def test_each_kernel_has_the_architecture_that_torch_was_built_for(run: Run) -> None:
    """Sorting takes CUB, which asks for which architecture its kernel was compiled and refuses one
    it does not know."""
    code = (
        "x = torch.zeros(1 << 16, dtype=torch.long, device='cuda').sort(); "
        "out(arches=torch.cuda.get_arch_list())"
    )
    for arch in run(code)["arches"]:
        number = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", arch)
        if number:
            run(code, XMEM_DEVICE_CAPABILITY=f"{number[1]}.{number[2]}")


def test_a_gpu_that_torch_has_no_code_for_is_refused_as_by_cuda(run: Run) -> None:
    code = """
try:
    torch.ones(9, device="cuda") + 1
    out(said="")
except RuntimeError as error:
    out(said=str(error))
"""
    assert "no kernel image is available" in run(code, XMEM_DEVICE_CAPABILITY="3.5")["said"]


def test_a_child_process_has_memory_accounts_of_its_own(run: Run) -> None:
    seen = run(
        """
import subprocess, sys
kept = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
child = "import sys, ctypes; runtime = ctypes.CDLL(sys.argv[1]); free = (ctypes.c_size_t * 2)();"
child += "runtime.cudaMemGetInfo(free, ctypes.byref(free, 8)); print(free[0])"
ran = subprocess.run([sys.executable, "-c", child, _libraries[0]], capture_output=True, text=True, check=True)
out(child=int(ran.stdout), own=torch.cuda.mem_get_info()[0])
"""
    )
    assert seen == {"child": 80 * GIB, "own": 79 * GIB}


@pytest.mark.parametrize("limit", [None, 40 * GIB])
def test_device_addresses_do_not_use_up_an_address_space_limit(run: Run, limit: int | None) -> None:
    """Without a limit a window is kept free for them; under one they are plain numbers."""
    before = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
        if limit
        else ""
    )
    code = """
block = torch.empty(70 << 30, dtype=torch.uint8, device="cuda")
out(bytes=block.nbytes, address=block.data_ptr(), window="\\n100000000000-" in "\\n" + open("/proc/self/maps").read())
"""
    below = (48 << 40) - GIB // 2  # the context's own
    assert run(code, before=before) == {
        "bytes": 70 * GIB,
        "address": below - 70 * GIB,
        "window": limit is None,
    }


@pytest.fixture
def cudnn(python: str, torch_folder: Path) -> str:
    """The real libcudnn_graph.so.9 that the probe finds for this torch: NVIDIA's wheel, 400 MB and
    more."""
    probe = str(generate.SOURCES.parents[1] / "probe")
    find = (
        "import sys; sys.path.insert(0, sys.argv[1]); from _xmem.process import stand_ins;"
        " print(stand_ins.real_cudnn(sys.argv[2]))"
    )
    command = [python, "-c", find, probe, str(torch_folder)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    if not found.stdout.strip():
        pytest.skip(
            "no cuDNN is installed beside this torch (pip install nvidia-cudnn-cu13 nvidia-cublas)"
        )
    if needs.read_versions(torch_folder).cudnn < 90800:
        pytest.skip("this torch's cuDNN is older than 9.8, which cannot be asked without a GPU")
    return found.stdout.strip()


def test_convolutions_take_the_workspaces_of_the_real_cudnn(run: Run, cudnn: str) -> None:
    """A 3 x 3 of ResNet on a Hopper: the same in cuDNN 9.8, 9.10 and 9.19, asked directly with the
    same graph."""
    code = """
torch.backends.cudnn.allow_tf32 = True
convolution = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
images = torch.randn(64, 64, 56, 56, device="cuda", requires_grad=True)
torch.cuda.memory._record_memory_history()
convolution(images).sum().backward()
sizes = [e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
out(sizes=sizes, doubts=[[d["code"], d["detail"]] for d in doubts()])
"""
    seen = run(code, XMEM_DEVICE_CUDNN=cudnn)
    workspaces = [size for size in seen["sizes"] if 99 * (1 << 20) > size > 98.05 * (1 << 20)]
    assert len(workspaces) == 3, seen["sizes"]
    assert seen["doubts"] == []
    without = run(code)
    assert len(without["sizes"]) == len(seen["sizes"]) - 3
    assert without["doubts"][0][0] == "cudnn-plan"


def test_attention_takes_the_plans_of_the_real_cudnn(run: Run, cudnn: str) -> None:
    seen = run(
        """
q, k, v = (torch.randn(2, 12, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
    torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
out(trained=q.grad is not None, codes=[d["code"] for d in doubts()])
""",
        XMEM_DEVICE_CUDNN=cudnn,
    )
    assert seen == {"trained": True, "codes": []}, (
        "torch takes the first plan that can be made: that one was"
    )


MEASURED_LSTM = (6_488_064, 23_577_632, 6_177_760)
"""benchmarks/data/ground-truth, lstm_20x35_fp32_AdamW: the states of dropout, workspace and
reserve, bytes."""


def test_an_lstm_takes_what_cudnn_took_on_an_h200(run: Run) -> None:
    code = """
lstm = torch.nn.LSTM(200, 200, num_layers=2, dropout=0.2, batch_first=True).cuda()
torch.cuda.memory._record_memory_history()
lstm(torch.randn(20, 35, 200, device="cuda"))
out(sizes=[e["size"] for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"])
"""
    blocks, measured = (
        [-(-size // 512) for size in sizes] for sizes in (run(code)["sizes"], MEASURED_LSTM)
    )
    assert [size for size in blocks if size > 2000] == measured


def test_a_benchmark_takes_the_largest_workspace_once(run: Run, cudnn: str) -> None:
    code = """
torch.backends.cudnn.benchmark = {}
convolution = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).cuda()
images = torch.randn(64, 64, 56, 56, device="cuda")
convolution(images)
first = torch.cuda.max_memory_allocated()
torch.cuda.reset_peak_memory_stats()
convolution(images)
out(first=first, second=torch.cuda.max_memory_allocated(), codes=sorted(d["code"] for d in doubts()))
"""
    usual, benchmark = (run(code.format(each), XMEM_DEVICE_CUDNN=cudnn) for each in (False, True))
    assert usual["first"] == usual["second"] == benchmark["second"]
    assert benchmark["first"] > usual["first"]
    assert usual["codes"] == benchmark["codes"] == []
