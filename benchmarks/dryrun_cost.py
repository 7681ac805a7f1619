"""What does a dry run cost, where does the time go, and what would real steps on this machine's CPU
cost?

    python -m benchmarks.dryrun_cost --python JOB_PYTHON [--cpu-python PYTHON] [--only NAME]

Each job of the list runs in a process of its own, so that its host memory can be told; the results
go to benchmarks/data/dryrun_cost.json, from which `benchmarks.coverage page` makes the table. With
--cpu-python, which has a CPU build of torch, three real steps of a job are run under torch.profiler
too, for at most --cpu-seconds.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.units import GIB, MIB

HERE = Path(__file__).parent
WORKLOAD = HERE / "workloads" / "cost.py"
RESULTS = HERE / "data" / "dryrun_cost.json"
GPU = "h200"
HEADINGS = (
    "job", "s", "imports", "model", "a step", "steps", "ending and trace", "replay", "host memory, GB", "peak, GiB",
    "three real steps on the CPU",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A job: the arguments of the workload, GPUs on a node, nodes; `cpu` where real steps could
    end.
    """

    name: str
    arguments: Sequence[str]
    gpus: int = 1
    nodes: int = 1
    cpu: bool = False


_LLAMA_70B = ("llama", "--layers", "80", "--hidden", "8192", "--heads", "64", "--inner", "28672")
CASES = (
    Case("GPT-2 small, 8 x 1024", ("gpt2",), cpu=True),
    Case("ResNet-50, 64 images", ("resnet50",), cpu=True),
    Case("Llama 8B, FSDP2, rank 0 of 8, 2 x 4096, checkpointing", ("llama",), gpus=8),
    Case("the same, 16 layers", ("llama", "--layers", "16"), gpus=8),
    Case("the same, 64 layers", ("llama", "--layers", "64"), gpus=8),
    Case("70B shape, FSDP2, rank 0 of 64", _LLAMA_70B, gpus=8, nodes=8),
    Case("from_pretrained, 1.4 GB of safetensors", ("pretrained", "{folder}")),
)


@dataclass(frozen=True)
class Cost:
    """Seconds of wall time; host memory is that of the largest process, bytes."""

    seconds: float
    imports: float
    model: float
    step: float
    steps: int
    ending: float
    replay: float
    host_bytes: int
    peak_bytes: int
    cpu: str


def measure(case: Case, python: Path, folder: Path) -> Cost:
    """Run one job dry, here."""
    command = [str(python), str(WORKLOAD), *(each.format(folder=folder) for each in case.arguments)]
    if case.gpus > 1:
        launcher = ["torchrun", f"--nnodes={case.nodes}", f"--nproc-per-node={case.gpus}"]
        command = [*launcher, *command[1:]]
    environ = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "SLURM_NNODES": str(case.nodes),
    }
    job = Job(f"#!/bin/bash\n{' '.join(command)}\n".encode(), (), folder, environ, (case.gpus,))
    gpu = load_catalogue()[GPU]
    began = time.monotonic()
    found = runner.run(DryRunOrder.of(job, gpu, Budget(seconds=300)))
    ran = time.monotonic()
    sized = estimate(found.traces, GPU, gpu)
    ended = time.monotonic()
    marks = [
        line.split()
        for line in found.outcome.output_tail.decode().splitlines()
        if line.startswith("at ")
    ]
    when = {phase: float(seconds) for _, phase, seconds in marks}
    steps = [float(seconds) for _, phase, seconds in marks if phase == "step"]
    return Cost(
        seconds=ended - began,
        imports=when["imported"] - began,
        model=when["built"] - when["imported"],
        step=statistics.median(b - a for a, b in zip([when["built"], *steps], steps, strict=False)),
        steps=len(steps),
        ending=ran - steps[-1],
        replay=ended - ran,
        host_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        peak_bytes=sized.largest.replay.peak_reserved_bytes,
        cpu="",
    )


def real_steps(case: Case, python: Path, seconds: float) -> str:
    """Say what real steps on the CPU take, where they end."""
    began = time.monotonic()
    command = [python, WORKLOAD, *case.arguments, "--device", "cpu"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return f"not within {seconds:.0f} s"
    except subprocess.CalledProcessError as error:
        return f"ended with code {error.returncode}"
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return f"{time.monotonic() - began:.0f} s, {memory / 1e9:.1f} GB"


def results() -> dict[str, Cost]:
    """Return what was measured so far, by the name of the case."""
    if not RESULTS.is_file():
        return {}
    return {
        name: Cost(**each) for name, each in json.loads(RESULTS.read_text(encoding="utf-8")).items()
    }


def rows() -> list[list[str]]:
    """Return the table of what was measured."""
    found = results()
    return [_row(case.name, found[case.name]) for case in CASES if case.name in found]


def _row(name: str, cost: Cost) -> list[str]:
    times = (cost.seconds, cost.imports, cost.model, cost.step)
    ends = (cost.ending, cost.replay)
    return [
        name,
        *(f"{seconds:.1f}" for seconds in times),
        str(cost.steps),
        *(f"{seconds:.1f}" for seconds in ends),
        f"{cost.host_bytes / 1e9:.1f}",
        f"{cost.peak_bytes / GIB:.2f}",
        cost.cpu,
    ]


def _weights(python: Path, folder: Path) -> None:
    """Write a model of 350 M parameters in fp32 as safetensors."""
    code = (
        "import transformers as t; t.GPT2LMHeadModel(t.GPT2Config(n_embd=1024, n_layer=24, "
        "n_head=16))"
    )
    code += f".save_pretrained({str(folder)!r})"
    engine: Mapping[str, str] = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([python, "-c", code], check=True, capture_output=True, env=engine)


def main() -> None:
    """Run the command line; --case is its own child."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", type=Path, required=True, help="a Python with a CUDA build of torch"
    )
    parser.add_argument("--cpu-python", type=Path)
    parser.add_argument("--cpu-seconds", type=float, default=300)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--case", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case is not None:
        print(json.dumps(asdict(measure(CASES[given.case], given.python, given.folder))))
        return
    with tempfile.TemporaryDirectory() as folder:
        for index, case in enumerate(CASES):
            if given.only not in case.name:
                continue
            if case.arguments[0] == "pretrained":
                _weights(given.cpu_python or given.python, Path(folder))
            own = ["--python", given.python, "--case", str(index), "--folder", folder]
            child = subprocess.run(
                [sys.executable, "-m", "benchmarks.dryrun_cost", *own],
                check=True,
                capture_output=True,
                text=True,
            )
            known = results().get(case.name)
            cpu = known.cpu if known is not None else ""
            if case.cpu and given.cpu_python:
                cpu = real_steps(case, given.cpu_python, given.cpu_seconds)
            cost = Cost(**(json.loads(child.stdout) | {"cpu": cpu}))
            kept = {name: asdict(each) for name, each in {**results(), case.name: cost}.items()}
            RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
            print(
                case.name,
                f"{cost.seconds:.1f} s, {cost.host_bytes // MIB} MiB of host memory",
                flush=True,
            )


if __name__ == "__main__":
    main()
