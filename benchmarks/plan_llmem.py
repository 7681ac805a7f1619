"""What does `xmem-slurm plan` advise for the nine models of LLMem's table 3 on its GPUs, four V100
of 16 GB, and which way was the fastest when LLMem's authors measured it?

    python -m benchmarks.plan_llmem --python JOB_PYTHON [--only OPT-1.3b]... [--budget 300]

The Python needs transformers, accelerate and DeepSpeed, and a torch that has kernels for a V100, as
2.7 has from PyPI. Each model is fine-tuned as LLMem has it (in fp16 with Adam in fp32, gradient
checkpointing, 512 tokens a sample), by transformers' Trainer on all four GPUs, and planned for
anew. LLMem takes the largest batch that fits; a plan keeps the samples of a step, and chooses how
they are divided.

"agrees" compares with the paper where that can be: its fastest is data parallel, as plan's first
way is, or nothing fits unless it is offloaded to the host. A plan of a Trainer offers no tensor
parallelism. "CPU s" are those of all that `xmem-slurm plan` starts, its own included.
"""

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import llmem, plans
from benchmarks.llmem import Method
from benchmarks.text_table import markdown_table
from xmem_slurm.planning.methods import METHODS

SCRIPT = Path(__file__).with_name("workloads") / "llmem_trainer.py"
FOUR_V100 = plans.Gpus(llmem.GPU, "v100", llmem.FOUR_V100.n, 1)
JOB = """#!/bin/sh
#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:v100:4
srun python -m torch.distributed.run --nproc-per-node=4 {script} --model {model} \\
  --output_dir out --fp16 --gradient_checkpointing --max_steps 1000 \\
  --per_device_train_batch_size 8 --gradient_accumulation_steps 1 --report_to none
"""
"""32 samples a step: they can be divided among four GPUs in four ways."""
HEADINGS = (
    "model",
    "LLMem's choice",
    "plan's first way",
    "ways that fit",
    "dry runs",
    "CPU s",
    "4 DP measured, s",
    "the fastest measured, s",
    "agrees",
)


def main() -> int:
    """Print the table, and each row on stderr when it is known."""
    models = {measured.name: measured for measured in llmem.TABLE_3}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True, help="it has transformers")
    parser.add_argument("--only", choices=models, action="append")
    parser.add_argument("--budget", type=int, default=300, help="CPU seconds of a plan, at most")
    given = parser.parse_args()
    made = list[tuple[llmem.Measured, plans.Plan]]()
    for name in given.only or models:
        with tempfile.TemporaryDirectory() as folder:
            plan = _plan(name, given.budget, given.python.absolute(), Path(folder))
        made.append((models[name], plan))
        print(*row(*made[-1]), sep=" | ", file=sys.stderr, flush=True)
    print("\n".join(lines(made)))
    return 0


def _plan(model: str, budget: int, python: Path, folder: Path) -> plans.Plan:
    options = ("--fresh", "--gpus", str(FOUR_V100.gpus), "--objective", "time")
    job = JOB.format(script=SCRIPT, model=model)
    return plans.plan(job, FOUR_V100, (*options, "--budget", str(budget)), python, folder)


def lines(made: Sequence[tuple[llmem.Measured, plans.Plan]]) -> list[str]:
    """Return the table, and below it for how many models the same fits as when measured."""
    as_measured = sum(
        any(not _is_offloaded(way) for way in plan.verified) == (Method.ADP in measured.seconds)
        for measured, plan in made
    )
    return [
        *markdown_table(HEADINGS, [row(*each) for each in made]),
        "",
        (
            "Whether a data parallel way fits without offloading is as measured for "
            f"{as_measured} of {len(made)} models."
        ),
    ]


def row(measured: llmem.Measured, made: plans.Plan) -> list[str]:
    """Return what the table has of a model."""
    ran = measured.seconds
    fastest = min(ran, key=ran.__getitem__, default=Method.OFFLOAD)
    none = "none" if made.found else made.said
    first = plans.way(made.verified[0]) if made.verified else none
    return [
        measured.name,
        str(llmem.pick(llmem.candidates(measured.model, llmem.FOUR_V100))),
        first,
        str(len(made.verified)),
        str(made.found.get("dry_runs", 0)),
        f"{made.seconds:.0f}",
        str(ran.get(Method.ADP, "OOM")),
        f"{fastest}, {ran[fastest]}" if ran else f"{fastest}, not measured",
        agrees(fastest, made),
    ]


def agrees(fastest: Method, made: plans.Plan) -> str:
    """Say whether plan's first way is of the kind that was the fastest in the paper."""
    if fastest in (Method.TP, Method.DP_TP):
        return f"{fastest} is not offered"
    if not made.verified:
        return "no"
    is_offloaded = _is_offloaded(made.verified[0])
    return "yes" if is_offloaded == (fastest is Method.OFFLOAD) else "no"


def _is_offloaded(way: Mapping[str, Any]) -> bool:
    return bool(METHODS[way["method"]].offloaded)


if __name__ == "__main__":
    sys.exit(main())
