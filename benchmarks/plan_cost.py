"""What does a plan cost? CPU seconds until the first way fits to train Llama 8B on three sites, and
until twenty do, or the time is out.

    python -m benchmarks.plan_cost --python JOB_PYTHON [--only "4 x H100"] [--budget 240] [--fp32]

The Python needs transformers and accelerate, and DeepSpeed, or ZeRO is not tried. Each plan is made
anew. "CPU s" are those of all that `xmem-slurm plan` starts, its own included; "first after" are
those of the dry runs that had ended when the first way was seen to fit. On a busy machine a dry run
takes more of them, and may end at its limit before it has an answer.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks import plans
from benchmarks.plans import Gpus
from benchmarks.text_table import markdown_table

SCRIPT = Path(__file__).with_name("workloads") / "hf_trainer.py"
JOB = """#!/bin/sh
#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:{type}:1
srun python -m torch.distributed.run --nproc-per-node=1 {script} --shape 8b \\
  --output_dir out {precision} \\
  --max_steps 1000 --per_device_train_batch_size 8 --gradient_accumulation_steps 8 --report_to none
"""
MANY = 20
HEADINGS = (
    "GPUs",
    "the first that fits",
    "first after",
    "that fit",
    "dry runs",
    "CPU s",
)

SITES = {
    "8 x A100-40": Gpus("a100-sxm4-40gb", "a100_40", 8, 1),
    "4 x H100": Gpus("h100-sxm5-80gb", "h100", 4, 1),
    "16 x L4": Gpus("l4", "l4", 8, 2),
}


def main() -> int:
    """Print the table, and each row on stderr when it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True, help="it has transformers")
    parser.add_argument("--only", choices=SITES, action="append")
    parser.add_argument("--budget", type=int, default=240, help="CPU seconds of a plan, at most")
    parser.add_argument("--fp32", action="store_true", help="train in fp32, not in bf16")
    given = parser.parse_args()
    rows, precision = [], "" if given.fp32 else "--bf16"
    for name in given.only or SITES:
        gpus = SITES[name]
        job = JOB.format(type=gpus.type, script=SCRIPT, precision=precision)
        with tempfile.TemporaryDirectory() as folder:
            found = _plan(job, gpus, given.budget, given.python.absolute(), Path(folder))
        rows.append([name, *found])
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print("\n".join(markdown_table(HEADINGS, rows)))
    return 0


def _plan(job: str, gpus: Gpus, budget: int, python: Path, folder: Path) -> list[str]:
    counts = f"1-{gpus.gpus * gpus.nodes}"
    options = ("--fresh", "--top", str(MANY), "--gpus", counts, "--budget", str(budget))
    made = plans.plan(job, gpus, options, python, folder)
    if not made.found:
        return [made.said, "", "0", "", f"{made.seconds:.0f}"]
    first = min(made.verified, key=lambda row: row["known_after_seconds"], default=None)
    known = ["none", ""]
    if first is not None:
        known = [plans.way(first), f"{first['known_after_seconds']:.0f}"]
    return [
        *known,
        str(len(made.verified)),
        str(made.found["dry_runs"]),
        f"{made.seconds:.0f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
