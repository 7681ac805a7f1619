"""Shares of a GPU: how they are asked for, and what holds a job to its own."""

import dataclasses
from pathlib import Path

import pytest

from xmem_slurm import trace_file
from xmem_slurm.allocator import config
from xmem_slurm.doubts import Doubt
from xmem_slurm.errors import UsageError
from xmem_slurm.rewriting import sharing
from xmem_slurm.rewriting.rewrite import rewrite
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import GpuOption, Share
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import Noted

GPT2 = trace_file.read(Path(__file__).parents[2] / "data" / "gpt2-small.json.gz")

H200 = load_catalogue()["h200"]
SHARD = GpuOption(gpu="h200", cost=0.1, share=Share(kind="shard", of="h200", per_gpu=139))
MPS = GpuOption(gpu="h200", type="h200", cost=0.1, share=Share(kind="mps", of="h200", per_gpu=100))


@pytest.mark.parametrize(
    ("argv", "expected", "told"),
    [
        (
            ("--gres=gpu:h200:1", "a.sh"),
            ("--gres=shard:12", "a.sh"),
            ["--gres=gpu:h200:1 -> --gres=shard:12"],
        ),
        (
            ("--gres=gpu:1,lic:2", "a.sh"),
            ("--gres=lic:2,shard:12", "a.sh"),
            ["--gres=gpu:1,lic:2 -> --gres=lic:2,shard:12"],
        ),
        (
            ("-G1", "--wrap=x"),
            ("--wrap=x", "--gres=shard:12"),
            ["--gpus=1 -> no --gpus", "no --gres -> --gres=shard:12"],
        ),
    ],
)
def test_a_gpu_becomes_a_share(
    argv: tuple[str, ...], expected: tuple[str, ...], told: list[str]
) -> None:
    script = None if "--wrap=x" in argv else b"#!/usr/bin/env node\n"
    before = Submission(argv, {"A": "b"}, script)
    edited, changes = rewrite(
        before, SHARD, "because", sharing.grant(SHARD, H200, 12, before.environ)
    )
    assert (sorted(edited.argv), edited.script) == (sorted(expected), script)
    assert [str(change) for change in changes] == told
    assert edited.environ == {
        "A": "b",
        "PYTORCH_CUDA_ALLOC_CONF": edited.environ["PYTORCH_CUDA_ALLOC_CONF"],
    }


def test_torch_reads_the_limit_as_the_share_less_the_context() -> None:
    variables = sharing.grant(
        SHARD, H200, 12, {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}
    ).variables
    settings = config.parse(variables["PYTORCH_ALLOC_CONF"], "2.11.0")
    assert settings.max_split_size == 64 << 20
    assert settings.per_process_memory_fraction is not None
    held = settings.per_process_memory_fraction * H200.total_bytes + H200.context_bytes
    assert held == pytest.approx(12 * (H200.total_bytes // 139), abs=H200.total_bytes / 10**6)


def test_the_mps_server_holds_a_job_of_any_torch() -> None:
    granted = sharing.grant(MPS, H200, 25, {})
    assert granted.entry == "mps:h200:25"
    assert granted.variables == {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={25 * (H200.total_bytes // 100) >> 20}M"
    }
    assert sharing.not_held(MPS, dataclasses.replace(GPT2, torch_version="2.4.1"), {}) is None


@pytest.mark.parametrize(
    ("version", "settings", "held"),
    [("2.10.0", "", True), ("2.9.1", "", False), ("2.11.0", "backend:cudaMallocAsync", False)],
)
def test_a_shard_needs_a_torch_that_keeps_to_it(version: str, settings: str, held: bool) -> None:
    seen = dataclasses.replace(GPT2, torch_version=version)
    assert (sharing.not_held(SHARD, seen, {"PYTORCH_CUDA_ALLOC_CONF": settings}) is None) is held


@pytest.mark.parametrize(
    ("code", "text", "shard", "mps"),
    [
        ("own-allocator", b"", False, True),
        ("own-environment", b"", False, False),
        ("nccl", b"python train.py\n", True, True),
        ("nccl", b"env -i PATH=$PATH python train.py\n", False, False),
        ("nccl", b"env - python train.py\n", False, False),
        ("nccl", b"env A=b python train.py\n", True, True),
        ("nccl", b"sudo -E python train.py\n", False, False),
        ("nccl", b"srun -n1 --export=NONE python train.py\n", False, False),
        ("nccl", b"srun --export=ALL,A=b python train.py -i\n", True, True),
    ],
)
def test_a_job_that_was_seen_to_overrule_its_limit_gets_no_share(
    code: str, text: bytes, shard: bool, mps: bool
) -> None:
    seen = dataclasses.replace(GPT2, torch_version="2.11.0", doubts=[Noted(Doubt.of(code), "why")])
    assert (sharing.not_held(SHARD, seen, {}, [b"#!/bin/sh\n", text]) is None) is shard
    assert (sharing.not_held(MPS, seen, {}, [b"#!/bin/sh\n", text]) is None) is mps


@pytest.mark.parametrize("export", ["NONE", "ALL,PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"])
def test_a_job_that_would_not_get_its_limit_gets_no_share(export: str) -> None:
    before = Submission(("--gres=gpu:1", f"--export={export}", "a.sh"), {}, b"#!/bin/sh\n")
    with pytest.raises(UsageError, match=f"--export={export} would keep the limit"):
        rewrite(before, SHARD, "because", sharing.grant(SHARD, H200, 12, {}))
