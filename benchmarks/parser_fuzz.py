"""Does the script parser and editor ever raise what it should not, or change a byte that it should
not?

    python -m benchmarks.parser_fuzz [--inputs 1000000] [--seed 0] [--processes 2]

Each input is a random batch script with a random command line and SBATCH_* variables. Of each it is
asked that

- parsing raises nothing but its own ScriptError, and editing nothing but EditError, ScriptError or
  GresError;
- editing nothing changes nothing;
- an option that was set is read back, in every component, and every other as before (`apply` checks
  it);
- all bytes outside the edited lines stay;
- reading the body raises nothing, changing no type in it changes nothing, and changing what can be
  changed of its job steps leaves every byte outside the changed values.

A failure is printed with its seed, and the command then ends with status 1.
"""

import argparse
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.body import commands, gpu_steps, with_types
from xmem_slurm.slurm.edit import Edit, EditError, apply, type_edits
from xmem_slurm.slurm.gres import GresError
from xmem_slurm.slurm.options import SBATCH
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.script import ScriptError
from xmem_slurm.slurm.submission import Submission

BATCH = 2000
WORDS = [
    "--gres=gpu:1", "--gres", "gpu:h200:2", "-G", "-G2", "--gpus=a100:1", "--gpus-per-node=1",
    "--gpus-per-task=1",
    "--tres-per-task=gres/gpu:1", "-C", "-Ca|b", "'a&b'", '"x y"', "'x", '"', "\\", "\\ ", "#c",
    "--mem=1G", "-N2",
    "--comment=a#b", "--comm='q r'", '""', "hetjob", "packjob", "HetJob", ":x", "--", "-",
    "--nosuch", "--nosuch=1",
    "-HQ", "-Z", "--gre=gpu:1", "--wrap=x", "--exclusive", "--nice=3", "=", "--=", "\t", "\v",
    "\r", "\0", "\x7f", "é",
    "\udcff", "gpu:1g.10gb:1", "gpu:1,shard:2", "mps:50", "none", "gpu", "gpu:", ",", "gpu::1",
]  # fmt: skip
STARTS = [
    "#SBATCH ",
    "#SBATCH",
    "#SLURM ",
    "#SBATCH\t",
    " #SBATCH ",
    "##SBATCH ",
    "# ",
    "#XMEM ",
    "#PBS ",
    "#BSUB ",
    "",
    "srun ",
]
SHELL = [
    "srun ", "srun ", "--gres=gpu:1 ", "--gres=gpu:h200:2 ", "-G1 ", "--gpus 2 ", "--het-group=1 ",
    ": ", "$X ",
    '"$@" ', "'", '"', "$(", "`", ")", "(", "{ ", "} ", "<<E\n", "\nE\n", "\n", "\n", "| ", "&& ",
    "; ", "if ",
    "then ", "fi ", "for x in ", "do ", "done ", "case x in ",
    "esac", ";; ", "${", "#", "[[ ", "]] ", "((", "))", "\\", "\\\n", "\t",
    "\0", "é", "\udcff", "f() ", "! ", "<(", ">", "<", "&", "X=", "X=(", "time ", "eval ", "\r",
    "$'", "<<<",
    "python t.py ",
]  # fmt: skip
"""What scripts are made of, to a shell."""
VARIABLES = sorted({name for option in SBATCH.options for name in option.variables})


def random_script(dice: random.Random) -> bytes:
    """Draw a script: mostly lines that look like options, now and then any bytes."""
    if dice.random() < 0.05:
        return dice.randbytes(dice.randrange(200))
    lines = [dice.choice(["#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env python3", "", "#!"])]
    for _ in range(dice.randrange(8)):
        words = (dice.choice(WORDS) for _ in range(dice.randrange(4)))
        lines.append(dice.choice(STARTS) + dice.choice([" ", "  ", "\t"]).join(words))
    lines += dice.choice([["true"], ["srun --gres=gpu:1 x"], []])
    return dice.choice(["\n", "\n", "\n", "\r\n"]).join(lines).encode(errors="surrogateescape")


def random_job(dice: random.Random) -> Submission:
    """Draw a submission."""
    typed = (
        [dice.choice([*WORDS, ":"]) for _ in range(dice.randrange(5))]
        if dice.random() < 0.5
        else []
    )
    environ = {
        dice.choice(VARIABLES): dice.choice(WORDS) for _ in range(dice.choice([0, 0, 0, 1, 2]))
    }
    return Submission((*typed, "job.sh"), environ, random_script(dice))


def check(dice: random.Random) -> str:
    """Run one input; return what became of it."""
    job = random_job(dice)
    assert job.script is not None
    check_body(job.script)
    check_body("".join(dice.choices(SHELL, k=dice.randrange(30))).encode(errors="surrogateescape"))
    refused = refusal(job)
    try:
        script = scripts.parse(job.script)
    except ScriptError:
        assert refused is not None or job.command_line.wrap is not None
        return "no script to sbatch"
    assert script.data == job.script
    assert apply([], job) == job
    scripts.without_own_lines(script)
    try:
        edits = [*type_edits(job.request, dice.choice(["l4", "1g.10gb", None]))]
        if dice.random() < 0.5:
            edits.append(
                Edit("constraint", dice.choice(["a&b", "(a|b)&c", "x y", "q'uote", "#hash"]))
            )
        edited = apply(edits, job)
    except (EditError, ScriptError, GresError):
        return "not to be edited"
    assert edited.script is not None
    before, after = job.script.split(b"\n"), edited.script.split(b"\n")
    kept = [line for line in before if b"SBATCH" not in line and b"SLURM" not in line]
    assert [line for line in after if b"SBATCH" not in line and b"SLURM" not in line] == kept
    return "edited" if edits else "as it was"


def check_body(data: bytes) -> None:
    """Read a script as a shell would, change no type in it, and then each that can be changed."""
    commands(data)
    steps = gpu_steps(data)
    types = ("T", "U")
    assert (
        with_types(data, [step for step in steps if step.can_have([None, None])], [None, None])
        == data
    )
    sure = [step for step in steps if step.can_have(types)]
    changed = with_types(data, sure, types)
    pieces, end = list[bytes](), 0
    for step in sure:
        assert step.start is not None
        assert data[step.start : step.end].decode() == step.value
        pieces += [data[end : step.start], step.with_type(types[step.components[0]]).encode()]
        end = step.end
    assert changed == b"".join([*pieces, data[end:]])


def run_batch(seed: int, batch: int) -> dict[str, int]:
    """Run BATCH inputs; count what became of them."""
    counts: dict[str, int] = {}
    for number in range(batch * BATCH, (batch + 1) * BATCH):
        try:
            outcome = check(random.Random(f"{seed}:{number}"))
        except BaseException:
            print(f"failed: seed {seed}, input {number}", file=sys.stderr)
            raise
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def main() -> None:
    """Run the fuzz and print the counts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    started, totals = time.monotonic(), dict[str, int]()
    with ProcessPoolExecutor(arguments.processes) as pool:
        for counts in pool.map(
            partial(run_batch, arguments.seed), range(-(-arguments.inputs // BATCH))
        ):
            for outcome, count in counts.items():
                totals[outcome] = totals.get(outcome, 0) + count
    for outcome, count in sorted(totals.items()):
        print(f"{outcome:24} {count:>9,}")
    print(
        f"{'all, without a failure':24} {sum(totals.values()):>9,}  in "
        f"{time.monotonic() - started:.0f} s"
    )


if __name__ == "__main__":
    main()
