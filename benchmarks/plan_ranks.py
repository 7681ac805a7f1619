"""Does what a plan advises hold among all ranks, whatever trains? Plans of a small Llama by each
kind of trainer whose way of training a plan can change; the best way of each method that it advises
is run again with all of its ranks.

    python -m benchmarks.plan_ranks --python JOB_PYTHON [--only Trainer] [--budget 180]

The Python needs transformers, accelerate, DeepSpeed, Lightning and torchtitan. "CPU s" are those of
the plan, its imports included. The last two columns are of the ways that were run again: how many,
and by how much the largest need of any rank is off the one that the plan gives, by rank 0 alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import plans
from benchmarks.plan_cost import SITES
from benchmarks.plans import Plan
from benchmarks.text_table import markdown_table

WORKLOADS = Path(__file__).parent / "workloads"
GPUS = SITES["4 x H100"]
MOST = 4
"""So many ways of a job are run with all ranks."""
SECONDS = 600
"""Of CPU time, that all ranks of a way may take together."""
JOB = """#!/bin/sh
#SBATCH --nodes=1 --ntasks-per-node=1 --gres=gpu:h100:1
srun python -m torch.distributed.run --standalone --nproc-per-node=1 {command}
"""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 8,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}
TORCHTITAN = """
[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "tokenizer"
[training]
local_batch_size = 8
seq_len = 2048
steps = 30
dataset = "c4_test"
[activation_checkpoint]
mode = "none"
"""
HEADINGS = (
    *("trained by", "the best way", "ways that fit", "dry runs", "CPU s"),
    *("run with all ranks", "off by"),
)


@dataclass(frozen=True)
class Case:
    """What trains: the command, the files beside it, the workload that writes others, and a plan's
    options.
    """

    command: str
    files: dict[str, str] = field(default_factory=dict)
    setup: str = ""
    options: tuple[str, ...] = ()


TRAINER = (
    f"{WORKLOADS / 'hf_trainer.py'} --output_dir out --max_steps 30 "
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 2 --report_to none "
    "--save_strategy no"
)
LIGHTNING = (
    f"{WORKLOADS / 'lightning_cli.py'} fit --model.batch_size 8 --trainer.devices 1 "
    "--trainer.max_steps 30 --trainer.accelerator gpu --trainer.precision bf16-mixed "
    "--trainer.logger false --trainer.enable_checkpointing false --trainer.enable_progress_bar false"
)
CASES = {
    "Trainer, bf16": Case(f"{TRAINER} --bf16"),
    "Trainer, fp32": Case(TRAINER),
    "accelerate": Case(
        f"{WORKLOADS / 'accelerate_loop.py'} --batch-size 8 --steps 30",
        options=("--vary", "batch_size=--batch-size"),
    ),
    "DeepSpeed": Case(
        f"{WORKLOADS / 'deepspeed_loop.py'} --deepspeed --deepspeed_config ds.json",
        {"ds.json": json.dumps(DEEPSPEED)},
    ),
    "Lightning": Case(LIGHTNING, options=("--vary", "batch_size=--model.batch_size")),
    "torchtitan": Case(
        "-m torchtitan.train --job.config_file train.toml",
        {"train.toml": TORCHTITAN},
        "torchtitan_text.py",
    ),
}


class Planner:
    """Plans and estimates of one case, in a folder of its own."""

    def __init__(self, case: Case, python: Path, folder: Path) -> None:
        self._case, self._python, self._folder = case, python, folder
        for name, text in case.files.items():
            (folder / name).write_text(text)
        if case.setup:
            subprocess.run([python, WORKLOADS / case.setup], cwd=folder, check=True)

    def plan(self, *options: str) -> Plan:
        """Plan the job; anew where `options` say so."""
        job = JOB.format(command=self._case.command)
        given = (*options, *self._case.options)
        return plans.plan(job, GPUS, given, self._python, self._folder)

    def needs(self, row: dict[str, Any]) -> tuple[int, int] | None:
        """Return what a plan says that the best way of the method in `row` needs, and the most that
        any of its ranks does where all run, without the margins; None where there is no answer.
        """
        script = self._folder / f"{row['method']}.sh"
        some = ("--allow", row["method"], "--gpus", str(row["gpus"]), "--top", "1")
        again = self.plan(*some, "--write", str(script))
        among = self._estimate(script) if again.verified else {}
        if len(among.get("ranks", ())) != row["gpus"]:
            return None
        alone, together = (
            each["required_bytes"] - each["margin_bytes"] for each in (again.verified[0], among)
        )
        return alone, together

    def _estimate(self, script: Path) -> dict[str, Any]:
        """Return what is said of a script all of whose ranks run; nothing where there is no
        answer.
        """
        all_ranks = ("--ranks", "all", "--budget", str(SECONDS), "--gpu", GPUS.gpu)
        done = subprocess.run(
            [*plans.PROGRAM, "estimate", "--json", "--fresh", *all_ranks, script.name],
            cwd=self._folder,
            env=plans.environ(self._python),
            capture_output=True,
            text=True,
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found


def main() -> int:
    """Print the table, and each row on stderr when it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True, help="it has what trains")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--budget", type=int, default=180, help="CPU seconds of a plan, at most")
    given = parser.parse_args()
    rows = []
    for name, case in CASES.items():
        if given.only in name:
            with tempfile.TemporaryDirectory() as folder:
                planner = Planner(case, given.python.absolute(), Path(folder))
                rows.append([name, *_row(planner, given.budget)])
            print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)
    print("\n".join(markdown_table(HEADINGS, rows)))
    return 0


def _row(planner: Planner, budget: int) -> list[str]:
    made = planner.plan("--fresh", "--top", "5", "--gpus", "1-4", "--budget", str(budget))
    if not made.found:
        return [made.said, "0", "", f"{made.seconds:.0f}", "", ""]
    fit = made.verified
    first = plans.way(fit[0]) if fit else "none"
    known = [first, str(len(fit)), str(made.found["dry_runs"]), f"{made.seconds:.0f}"]
    of_several = [row for row in fit if row["gpus"] > 1]
    methods = list(dict.fromkeys(row["method"] for row in of_several))
    best = [next(row for row in of_several if row["method"] == method) for method in methods]
    pairs = [planner.needs(row) for row in best[:MOST]]
    found = [pair for pair in pairs if pair is not None]
    off = [(among - alone) / alone for alone, among in found]
    worst = f"{100 * max(off, key=abs):+.2f} %" if off else ""
    return [*known, f"{len(found)} of {len(pairs)}", worst]


if __name__ == "__main__":
    sys.exit(main())
