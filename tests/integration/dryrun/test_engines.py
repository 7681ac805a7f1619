"""Which engine answers: jobs whose memory hangs on computed values, through both, in the sandbox.

What the profile engine says is held against the CPU's own account of the same script in an ordinary
run of it: torch's CPU allocator reports how much it holds (tests/data/values/accounting.py)."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.rotation import some_each_time
from xmem_slurm.allocator.replay import replay
from xmem_slurm.dryrun import dispatch, gpu_environment, runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.profile import attention, orchestrator, reductions, workspaces
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate

RTX_3060 = load_catalogue()["rtx-3060"]
DATA = Path(__file__).parents[2] / "data" / "values"
BUDGET = Budget(seconds=240.0)
ONLY_ON_GPUS = (
    attention.attention_of_gpu,
    reductions.sums_over_rows,
    workspaces.matrix_products,
    workspaces.embedding_gradients,
    workspaces.convolutions,
)

OTHERS = pytest.mark.slow(
    covers=["xmem_slurm/profile/*", "xmem_slurm/probe/*", "xmem_slurm/device/*", "xmem_slurm/allocator/*",
            "xmem_slurm/dryrun/engines.py", "tests/data/profiles/*", "tests/data/values/*"],
)  # fmt: skip

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("without_sandbox")]


def job(python: Path, *words: str, engine: str = "auto") -> Job:
    text = f'#!/bin/sh\nexec "{python}" "$@"\n'.encode()
    return Job(text, words, DATA, {**os.environ, "XMEM_ENGINE": engine})


def own_account(python: Path, model: str, traces: Path) -> int:
    """Return the bytes. A CUDA build loads only with CUDA libraries at hand: the stand-ins, which
    it never calls."""
    command = [python, str(DATA / "accounting.py"), str(DATA / "job.py"), model, "cpu"]
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    environment |= gpu_environment.environment(RTX_3060, 1, traces, None) | {
        "XMEM_ENGINE": "device"
    }
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[-1])


@pytest.mark.parametrize(
    ("model", "why"),
    [
        pytest.param("moe", "shapes follow from values", marks=OTHERS),
        ("masked", "shapes follow from values"),
        ("exits", "the model reads values in its forward pass (job.py:"),
    ],
)
def test_a_job_that_hangs_on_values_takes_real_steps(
    model: str, why: str, warm_python: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = (str(DATA / "job.py"), model, "cuda")
    on_stand_ins = dispatch.here(
        DryRunOrder.of(job(warm_python, *words, engine="device"), RTX_3060, BUDGET)
    ).traces
    doubted = {doubt.code for trace in on_stand_ins for doubt in trace.doubts}
    assert doubted & {"value-shape", "forward-read"}
    monkeypatch.setattr(
        orchestrator, "RULES", [rule for rule in orchestrator.RULES if rule not in ONLY_ON_GPUS]
    )
    found = estimate(
        dispatch.here(DryRunOrder.of(job(warm_python, *words), RTX_3060, BUDGET)).traces,
        "rtx-3060",
        RTX_3060,
    )
    assert found.engine == "profile"
    assert any(reason.startswith(f"not run on stand-ins, as {why}") for reason in found.reasons), (
        found.reasons
    )
    peak = replay(found.largest.trace).peak_allocated_bytes
    assert peak == pytest.approx(own_account(warm_python, model, tmp_path), rel=0.03)


@pytest.mark.parametrize(
    "words",
    some_each_time(
        [
            "mlp Adam after",
            "mlp AdamW start fused",
            "mlp SGD start accumulate",
            "mlp Quantized start",
            "encoder AdamW start",
            "attention AdamW start amp",
            "attention AdamW start half",
            "cnn SGD start",
        ],
        ("mlp SGD start accumulate", "attention AdamW start amp"),
        OTHERS,
    ),
)
def test_both_engines_say_the_same_to_the_byte(
    words: str, job_python: Path, warm_python: Path
) -> None:
    """What zero_grad, accumulation, a fused optimizer, a state in bytes, autocast, convolutions do
    to memory."""
    python = job_python if "cnn" in words else warm_python  # as in test_profile_engine.py
    script = (str(DATA.with_name("profiles") / "job.py"), *words.split())
    peaks = {
        engine: replay(
            dispatch.here(
                DryRunOrder.of(job(python, *script, engine=engine), RTX_3060, BUDGET)
            ).traces[0]
        ).peak_allocated_bytes
        for engine in ("device", "profile")
    }
    assert peaks["profile"] == peaks["device"]


def test_a_job_that_stops_on_zeros_takes_real_steps(warm_python: Path) -> None:
    script = """
import torch
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(torch.ones(8, 64, device="cuda")).square().mean()
    if not loss.item() > 0:
        raise ValueError("the loss is nothing")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    found = estimate(
        dispatch.here(DryRunOrder.of(job(warm_python, "-c", script), RTX_3060, BUDGET)).traces,
        "rtx-3060",
        RTX_3060,
    )
    assert found.engine == "profile"
    stopped = "with zeros for values the script stops: ValueError: the loss is nothing (<string>:8)"
    assert f"not run on stand-ins, as {stopped}" in found.reasons


def test_without_time_for_real_steps_the_first_answer_stands_and_says_what_they_would_need(
    warm_python: Path,
) -> None:
    script = """
import torch
layers = [torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024))]
class Model(torch.nn.Sequential):
    def forward(self, tokens):
        if tokens.mean().item() > 10:
            tokens = tokens / 2
        return super().forward(tokens)
model = Model(*layers * 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.ones(65536, 1024, device="cuda")).sum().backward()
    optimizer.step()
"""
    small = Budget(seconds=240.0, memory_bytes=8 << 30)
    found = estimate(
        dispatch.here(DryRunOrder.of(job(warm_python, "-c", script), RTX_3060, small)).traces,
        "rtx-3060",
        RTX_3060,
    )
    assert found.engine == "device"
    (reason,) = [
        reason for reason in found.reasons if reason.startswith("no real steps on the CPU, though")
    ]
    needs = re.search(r"it needs about ([\d.]+) GiB and .* here, and has 8\.0 GiB", reason)
    assert needs is not None, reason
    assert 17.5 <= float(needs[1]) <= 27


def test_a_missing_package_is_not_looked_for_twice(
    warm_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    run = runner.run

    def noted(order: DryRunOrder) -> object:
        asked.append(order.engine)
        return run(order)

    monkeypatch.setattr(runner, "run", noted)
    script = "import torch; torch.ones(1).cuda(); import no_such_package"
    dispatch.here(DryRunOrder.of(job(warm_python, "-c", script), RTX_3060, BUDGET))
    assert asked == ["auto"]
