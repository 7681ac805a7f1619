"""The profile engine with a real torch: unmodified scripts that say "cuda", redirected to the CPU
and profiled.

A CUDA build runs them as a CPU build does (it loads the stand-in libraries, and never uses them),
so the Python of XMEM_TEST_PYTHON will do; XMEM_TEST_CPU_PYTHON may name one with a CPU build, which
is then taken in its place."""

import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from xmem_slurm.allocator.replay import replay
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import gpu_environment, runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.profile import recording
from xmem_slurm.profile.orchestrator import orchestrate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.trace import Category, Trace

CPU_PYTHON = os.environ.get("XMEM_TEST_CPU_PYTHON", "")
PYTHON = CPU_PYTHON or os.environ.get("XMEM_TEST_PYTHON", "")
RTX_3060 = load_catalogue()["rtx-3060"]
JOB = Path(__file__).parents[2] / "data" / "profiles" / "job.py"
SECONDS = 120.0

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="XMEM_TEST_PYTHON names no Python with torch"),
    pytest.mark.slow(covers=["xmem_slurm/profile/*", "xmem_slurm/probe/*cpu*"]),
]
of_cpu_build = pytest.mark.skipif(
    not CPU_PYTHON, reason="XMEM_TEST_CPU_PYTHON names no Python with a CPU build"
)
of_cuda_build = pytest.mark.skipif(
    bool(CPU_PYTHON), reason="a CPU build has no CUDA libraries to ask"
)
KEEPS_LIBRARY_WORKSPACES = (2, 9)
"""The first release that keeps cublasLt's workspace: with it, all allocations are those of the
recordings."""


@dataclass(frozen=True)
class Ran:
    """A script that ran under the probe: how it ended, and the trace of its one recording."""

    returncode: int
    stdout: str
    stderr: str
    trace: Trace


Run = Callable[..., Ran]


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    return runs(CPU_PYTHON or request.getfixturevalue("warm_python"), tmp_path)


@pytest.fixture
def cold(tmp_path: Path) -> Run:
    """For cuDNN's operators, which are told by two clocks of the profiler's: set at the import,
    they drift apart."""
    return runs(PYTHON, tmp_path)


def runs(python: str | Path, folder: Path) -> Run:
    def run(
        *arguments: str,
        engine: str = "profile",
        seconds: float | None = SECONDS,
        **environment: str,
    ) -> Ran:
        traces = folder / "traces"
        traces.mkdir()
        deadline = {} if seconds is None else {"XMEM_DEADLINE": str(time.monotonic() + seconds)}
        ran = subprocess.run(
            [python, *arguments],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(folder),
                "OMP_NUM_THREADS": "1",
                **gpu_environment.environment(RTX_3060, 2, traces, None),
                "XMEM_ENGINE": engine,
                **deadline,
                **environment,
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        (file,) = traces.glob(f"*{recording.SUFFIX}")
        return Ran(ran.returncode, ran.stdout, ran.stderr, orchestrate(recording.read(file)))

    return run


def script(run: Run, text: str) -> Ran:
    """Run a script whose assertions are the test."""
    ran = run("-c", "import torch\n" + text, seconds=None)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran


@pytest.mark.parametrize("engine", ["profile", pytest.param("auto", marks=of_cpu_build)])
def test_a_job_that_says_cuda_runs_and_its_peak_is_the_recorded_ones(run: Run, engine: str) -> None:
    """The recording beside it was made by another run; memory does not depend on the values, so all
    must agree."""
    ran = run(str(JOB), "mlp", "Adam", "start", engine=engine)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert (ran.trace.state, ran.trace.steps) == ("steady", 3)
    recorded = orchestrate(recording.read(JOB.parent / "mlp-Adam-start.profile.gz"))
    assert replay(ran.trace).peak_reserved_bytes == replay(recorded).peak_reserved_bytes
    if (
        tuple(int(part) for part in ran.trace.torch_version.split(".")[:2])
        >= KEEPS_LIBRARY_WORKSPACES
    ):
        assert [a.size for a in ran.trace.allocations] == [a.size for a in recorded.allocations]


def test_autocast_and_scaler(run: Run) -> None:
    ran = run(str(JOB), "attention", "AdamW", "start", "amp")
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.trace.steps == 3
    weights = [a.size for a in ran.trace.allocations if a.category is Category.PARAM]
    halves = {size // 2 for size in weights if size > 100_000}
    assert halves <= {a.size for a in ran.trace.allocations}  # autocast's copies of the weights


HALF = """
network = torch.nn.Linear(64, 10).cuda()
recurrent = torch.nn.LSTM(32, 64, 2, batch_first=True).cuda()
optimizer = torch.optim.AdamW([*network.parameters(), *recurrent.parameters()])
scaler = torch.amp.GradScaler("cuda")
for step in range(3):
    with torch.autocast("cuda", dtype=torch.HALF):
        loss = (network(recurrent(torch.randn(512, 8, 32, device="cuda"))[0]) ** 2).sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert len(optimizer.state) == 10, step
"""


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_leaves_out_no_step_and_has_every_layer(run: Run, half: str) -> None:
    assert script(run, HALF.replace("HALF", half)).trace.steps == 3


def test_torch_cuda_describes_the_sites_gpu(run: Run) -> None:
    script(
        run,
        f"""
assert torch.cuda.is_available() and torch.cuda.device_count() == 2
assert torch.cuda.get_device_name(0) == {RTX_3060.cuda_name!r}
assert torch.cuda.get_device_capability() == (8, 6)
properties = torch.cuda.get_device_properties("cuda:0")
assert properties.total_memory == {RTX_3060.total_bytes}
assert properties.multi_processor_count == {RTX_3060.multiprocessors}
assert torch.cuda.is_bf16_supported() and torch.cuda.mem_get_info()[1] == {RTX_3060.total_bytes}
with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
    event = torch.cuda.Event(enable_timing=True); event.record(); event.synchronize()
torch.cuda.synchronize(); torch.cuda.empty_cache(); torch.cuda.manual_seed_all(0); torch.cuda.reset_peak_memory_stats()
assert torch.cuda.max_memory_allocated() == 0
for ask in ("get_device_properties", "get_device_name", "get_device_capability", "mem_get_info", "memory_stats",
            "get_rng_state", "memory_allocated", "max_memory_allocated", "synchronize", "memory_summary"):
    assert repr(getattr(torch.cuda, ask)(device=0)) == repr(getattr(torch.cuda, ask)())
assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 0
torch.cuda.current_stream().wait_event(event=event); event.record(stream=torch.cuda.current_stream())
""",
    )


def test_tensors_say_where_they_lie(run: Run) -> None:
    script(
        run,
        """
host = torch.ones(4, 4)
there = [host.cuda(), host.to("cuda"), host.to("cuda:0"), host.to(torch.device("cuda")), host.to(0),
         host.to(device="cuda", dtype=torch.half), host.to("cuda", torch.half, non_blocking=True),
         torch.zeros(3, device="cuda"), torch.randn(3, device=torch.device("cuda", 0))]
there += [torch.tensor([1], device="cuda")]
there += [there[0] + 1, there[0] @ there[1], torch.cat(there[:2]), torch.zeros_like(there[0]), there[0][0],
          torch.arange(3, device=there[0].device), there[0].new_zeros(2), *there[0].chunk(2)]
there += [host.to(there[0]), torch.nn.Linear(2, 2, device="cuda").weight]
assert all(tensor.is_cuda and tensor.device == torch.device("cuda", 0) for tensor in there)
here = [host, host + 1, there[0].cpu(), there[0].to("cpu"), torch.zeros(3), host.pin_memory(), there[0].to(host)]
assert not any(tensor.is_cuda or tensor.device.type != "cpu" for tensor in here)
assert host.cuda().data_ptr() != host.data_ptr() and there[0].cpu().data_ptr() != there[0].data_ptr()
assert there[0].cuda() is there[0] and there[0].to("cuda") is there[0]
assert there[0].sum().item() == 16 and there[0].tolist()[0] == [1, 1, 1, 1]
assert torch.ones(2, device="meta").device.type == "meta"
""",
    )


def test_modules_optimizers_and_checkpoints(run: Run) -> None:
    script(
        run,
        """
model = torch.nn.Linear(4, 4).to("cuda", dtype=torch.float64)
tied = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
tied[1].weight = tied[0].weight
tied.cuda()
assert tied[1].weight is tied[0].weight and all(p.is_cuda for p in [*model.parameters(), *tied.parameters()])
optimizer = torch.optim.Adam(tied.parameters())
tied(torch.ones(2, 4, device="cuda")).sum().backward()
torch.nn.utils.clip_grad_norm_(tied.parameters(), 1.0)
optimizer.step()
assert tied[0].weight.grad.is_cuda
torch.save({"model": tied.state_dict(), "step": 1}, "checkpoint.pt")
assert torch.load("checkpoint.pt", map_location="cuda")["model"]["0.weight"].is_cuda
assert not torch.load("checkpoint.pt", map_location="cpu")["model"]["0.weight"].is_cuda
assert torch.load("checkpoint.pt")["model"]["0.weight"].is_cuda
tied.load_state_dict(torch.load("checkpoint.pt")["model"])
import collections, pickle
assert torch.load(f="checkpoint.pt", map_location="cuda")["model"]["0.weight"].is_cuda
assert torch.load("checkpoint.pt", "cuda", pickle)["step"] == 1
kept = {"ema": collections.defaultdict(list, weight=[tied[0].weight.data]), "seen": collections.Counter("aab")}
torch.save(kept, "others.pt")
loaded = torch.load("others.pt", map_location="cuda", weights_only=False)
assert loaded["ema"]["weight"][0].is_cuda and loaded["ema"]["none"] == [] and loaded["seen"] == {"a": 2, "b": 1}
assert not torch.load("others.pt", "cpu", weights_only=False)["ema"]["weight"][0].is_cuda
assert next(model.cpu().parameters()).device.type == "cpu"
""",
    )


def test_contexts_generators_and_loaders(run: Run) -> None:
    script(
        run,
        """
generator = torch.Generator(device="cuda").manual_seed(3)
assert isinstance(generator, torch.Generator) and torch.rand(2, device="cuda", generator=generator).is_cuda
with torch.device("cuda"):
    assert torch.zeros(2).is_cuda and torch.nn.Linear(2, 2).weight.is_cuda
assert not torch.zeros(2).is_cuda
with torch.autocast("cuda", dtype=torch.bfloat16):
    assert torch.is_autocast_enabled("cuda")
    product = torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
    assert product.dtype is torch.bfloat16
    assert torch.nn.functional.layer_norm(product, (4,)).dtype is torch.float32
    assert torch.softmax(product, -1).dtype is torch.float32
loader = torch.utils.data.DataLoader(torch.ones(8, 2), batch_size=4, pin_memory=True, num_workers=1)
assert [batch.to("cuda", non_blocking=True).is_cuda for batch in loader] == [True, True]
torch.set_default_device("cuda")
assert torch.ones(2).is_cuda
""",
    )


def test_an_evaluation_without_a_step_is_recorded_to_its_end(run: Run) -> None:
    ran = script(
        run,
        "with torch.no_grad(): torch.nn.Linear(256, 256).cuda()(torch.ones(64, 256, "
        'device="cuda"))',
    )
    assert (ran.trace.state, ran.trace.steps) == ("exit", 0)
    sizes = [a.size for a in ran.trace.allocations]
    assert sizes.count(4 * 256 * 256) == 1
    assert 4 * 64 * 256 in sizes


def test_a_model_that_is_trained_before_the_script_uses_its_gpu_is_none_of_ours(run: Run) -> None:
    ran = script(
        run,
        'torch.nn.Linear(4, 4)(torch.ones(2, 4)).sum().backward(); torch.ones(8, device="cuda")',
    )
    assert [a.size for a in ran.trace.allocations] == [32]


@of_cuda_build
def test_convolutions_take_a_gpus_workspaces(cold: Run) -> None:
    """Without cuDNN it is known: one image's columns, channels x kernel x output, as
    `slow_conv2d_forward` has it (aten/src/ATen/native/cuda/ConvolutionMM2d.cu)."""
    ran = script(
        cold,
        """
torch.backends.cudnn.enabled = False
images = torch.ones(2, 8, 34, 34, device="cuda")
torch.nn.Conv2d(8, 8, 3).cuda()(images).square().sum().backward()
""",
    )
    assert [a.size for a in ran.trace.allocations].count(4 * 8 * 9 * 32 * 32) == 2, (
        "forward, gradient of the weights"
    )
    assert [doubt.code for doubt in ran.trace.doubts] == ["profile-engine"]


@of_cuda_build
def test_batch_norm_is_a_doubt_in_channels_last_alone(cold: Run) -> None:
    """As on the stand-ins: Note [Batch norm's scratch] in
    device/src/libraries/cudnn_batchnorm.c."""
    ran = script(
        cold,
        """
images = torch.ones(2, 8, 9, 9, device="cuda")
norm = torch.nn.BatchNorm2d(8).cuda()
norm(images)
norm(images.to(memory_format=torch.channels_last))
""",
    )
    doubts = {
        doubt.detail: doubt.count for doubt in ran.trace.doubts if doubt.code == "cudnn-batchnorm"
    }
    assert doubts["cudnnGetBatchNormalizationTrainingExReserveSpaceSize"] == 1


def test_the_scripts_own_error_is_in_the_trace(run: Run) -> None:
    ran = run("-c", 'import torch; torch.ones(3, device="cuda"); raise ValueError("no data set")')
    assert ran.returncode == 1
    assert ran.trace.error == "ValueError: no data set (<string>:1)"


def test_what_is_too_large_is_refused_before_it_is_run(run: Run) -> None:
    """At the first forward pass: the weights are there, gradients and two moments are still to
    come."""
    large = """
import torch
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
model(torch.ones(1, 2048, device="cuda")).sum().backward()
print("backward done")
"""
    ran = run("-c", large, XMEM_PROFILE_MEMORY_BYTES=str(600_000_000))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.trace.state == "failed"
    assert ran.trace.error is not None
    assert "too large to be run on this machine's CPU: it needs about" in ran.trace.error
    assert "and has 0.6 GiB" in ran.trace.error


def test_what_is_too_large_is_refused_by_its_shapes_while_it_begins(run: Run) -> None:
    """18 GiB of activations, and a forward pass of minutes: the shapes say so within seconds."""
    large = """
import torch
layers = [torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))]
model = torch.nn.Sequential(*layers * 8).cuda()
model(torch.ones(65536, 1024, device="cuda")).sum().backward()
print("backward done")
"""
    ran = run("-c", large, XMEM_PROFILE_MEMORY_BYTES=str(16_000_000_000))
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.trace.error is not None
    needs = re.search(
        r"it needs about ([\d.]+) GiB and (\d+) (s|minutes) here, and has ", ran.trace.error
    )
    assert needs is not None, ran.trace.error
    assert 17.5 <= float(needs[1]) <= 22.5


def test_what_takes_too_long_is_refused_after_the_first_forward_pass(run: Run) -> None:
    slow = """
import time, torch
model = torch.nn.Linear(8, 8).cuda()
output = model(torch.ones(1, 8, device="cuda"))
time.sleep(5)
output.sum().backward()
print("backward done")
"""
    ran = run("-c", slow, seconds=30.0)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.trace.error is not None
    assert " and 25 s here, and has " in ran.trace.error


@pytest.mark.parametrize("steps", [1, 2])
def test_asked_to_end_it_says_what_it_was_at_or_gives_what_it_has(run: Run, steps: int) -> None:
    code = f"""
import os, signal, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range({steps}):
    model(torch.ones(1, 8, device="cuda")).sum().backward()
    optimizer.step()
os.kill(os.getpid(), signal.SIGTERM)
"""
    trace = run("-c", code, seconds=100.0).trace
    late = (
        "too large to be run on this machine's CPU: it was at optimizer step 2 when the time "
        "was spent"
    )
    assert (trace.state, trace.error, trace.steps) == (
        "signal",
        late if steps == 1 else None,
        0 if steps == 1 else 2,
    )


def test_two_steps_are_an_answer_where_there_is_no_time_for_a_third(run: Run) -> None:
    slow = """
import time, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters())
for step in range(3):
    model(torch.ones(1, 8, device="cuda")).sum().backward()
    time.sleep(15 * step)
    optimizer.step()
"""
    ran = run("-c", slow, seconds=45.0)
    assert (ran.returncode, ran.trace.state, ran.trace.steps) == (0, "budget", 2)


@of_cpu_build
def test_a_dry_run_of_a_job_takes_this_engine_by_itself_and_says_so() -> None:
    """In the sandbox, through the estimate, as `xmem-slurm estimate` does it."""
    text = f'#!/bin/sh\nexec "{PYTHON}" "{JOB}" cnn SGD start\n'.encode()
    job = Job(text, [], JOB.parent, {**os.environ, "XMEM_ENGINE": "auto"})
    budget = Budget(seconds=SECONDS)
    found = estimate(runner.run(DryRunOrder.of(job, RTX_3060, budget)).traces, "rtx-3060", RTX_3060)
    assert found.engine == "profile"
    assert found.confidence == "medium"
    assert Doubt.PROFILE_ENGINE.sentence in found.reasons
    assert found.largest.replay.peak_reserved_bytes == 48_234_496
    with pytest.raises(NoEstimate, match="is not a CUDA build"):
        estimate(
            runner.run(DryRunOrder(job, RTX_3060, budget, engine="device")).traces,
            "rtx-3060",
            RTX_3060,
        )
