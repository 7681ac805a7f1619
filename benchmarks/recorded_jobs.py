"""Is what is recorded of jobs what was estimated, and what is said of them what Slurm's accounting
says? 40 jobs of 8 scripts, submitted again and again, one of which runs out of memory once.

    python -m benchmarks.recorded_jobs

Needs a Python with a CUDA build of torch, named by XMEM_TEST_PYTHON. Starts a throw-away Slurm
cluster of the example site that keeps accounts; on its nodes torch has stand-ins for GPUs. Each
script is submitted in five rounds by `xsbatch --xmem-record`, all of a round at once. The GPU of one
of them is too small when it first runs, which no dry run sees: it was submitted with
`--xmem-retry=1`, so that its next job is the one that was there for that case. Prints for each
script how many jobs reserved to the byte what was estimated, and at the end what `xmem-slurm trust`
and `waste` say beside a count of sacct's rows. Ends with 1 where they differ, or a job did not end
as it should.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.overhead import SITE, XSBATCH
from benchmarks.text_table import text_table
from xmem_slurm import lab
from xmem_slurm.outcomes import records
from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.site.loading import load_site
from xmem_slurm.units import MIB

ROUNDS = 5
XMEM_SLURM = str(Path(sys.executable).parent / "xmem-slurm")
TRAIN = """
import torch
model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).cuda()
optimizer = torch.optim.OPTIMIZER(model.parameters(), lr=1e-3)
for _ in range(8):
    model(torch.ones(BATCH, WIDTH, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SCRIPTS: Mapping[str, tuple[int, int, str, int]] = {
    "narrow": (512, 4, "SGD", 64),
    "narrow, Adam": (512, 4, "AdamW", 64),
    "wide": (4096, 4, "SGD", 64),
    "wide, Adam": (4096, 4, "AdamW", 64),
    "deep": (1024, 24, "SGD", 256),
    "deep, Adam": (1024, 24, "AdamW", 256),
    "large batch": (1024, 8, "AdamW", 8192),
    "too large once": (2048, 8, "AdamW", 1024),
}
"""Width, layers, optimizer and batch of each."""
RUNS_OUT = "too large once"
SMALL_AT_FIRST = (
    '[ -n "$XMEM_SHIMS" ] || [ -e ran ] || export XMEM_DEVICE_LIMIT_BYTES=900000000; touch ran\n'
)
"""Makes the GPU of the first job that really runs too small."""
_SECONDS = 900
_GOES_ON = ("PENDING", "RUNNING", "COMPLETING")


class Row(NamedTuple):
    """A job as sacct has it."""

    number: str
    name: str
    state: str
    gpu_seconds: int


def submit(folder: Path, environ: Mapping[str, str], *options: str) -> None:
    """Submit the script in a folder, and end with what is said where that fails."""
    command = [XSBATCH, "--parsable", "--xmem-record", *options, f"--job-name={folder.name}"]
    done = subprocess.run(
        [*command, "job.sh"], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode or "submitted as written" in done.stderr:
        sys.exit(f"{folder.name}: {done.stderr}")


def accounted(environ: Mapping[str, str]) -> list[Row]:
    """Return all jobs of the cluster."""
    shown = subprocess.run(
        ["sacct", "-aXnP", "--format=JobIDRaw,JobName,State,ElapsedRaw,AllocTRES"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [line.split("|") for line in shown.splitlines()]
    return [
        Row(number, name, state.split()[0], int(seconds) * ("gres/gpu" in tres))
        for number, name, state, seconds, tres in rows
    ]


def settled(environ: Mapping[str, str], count: int) -> list[Row]:
    """Return the jobs once there are so many and all have ended."""
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        rows = accounted(environ)
        if len(rows) >= count and not any(row.state in _GOES_ON for row in rows):
            return rows
        time.sleep(1)
    sys.exit(f"not {count} jobs have ended: {accounted(environ)}")


def said(environ: Mapping[str, str], verb: str) -> Mapping[str, Any]:
    """Return what a verb of ours says of the jobs."""
    done = subprocess.run(
        [XMEM_SLURM, verb, "--json"], env=environ, capture_output=True, text=True, check=True
    )
    content: Mapping[str, Any] = json.loads(done.stdout)
    return content


def table(rows: Sequence[Row], outcomes: Sequence[JobOutcome]) -> list[list[str]]:
    """Return a row a script: its jobs, how they ended, and how near what was reserved was."""
    recorded = {outcome.job: outcome for outcome in outcomes}
    by_name = defaultdict[str, list[Row]](list)
    for row in rows:
        by_name[row.name].append(row)
    lines = []
    for name, jobs in by_name.items():
        found = [recorded[job.number] for job in jobs if job.number in recorded]
        compared = [
            (outcome.device.reserved, outcome.prediction.reserved_bytes)
            for outcome in found
            if outcome.finished and outcome.prediction and outcome.prediction.reserved_bytes
        ]
        lines.append(
            [
                name,
                str(len(jobs)),
                str(len(found)),
                str(sum(job.state == "COMPLETED" for job in jobs)),
                str(sum(outcome.ran_out for outcome in found)),
                f"{compared[0][1] // MIB:,}",
                f"{sum(used == estimated for used, estimated in compared)} of {len(compared)}",
            ]
        )
    return lines


def main() -> int:
    """Submit, wait, and print the table."""
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        work, cluster = Path(parent), Path(parent, "lab")
        for name, (width, layers, optimizer, batch) in SCRIPTS.items():
            folder = work / name
            folder.mkdir()
            text = TRAIN.replace("WIDTH", str(width)).replace("LAYERS", str(layers))
            text = text.replace("OPTIMIZER", optimizer).replace("BATCH", str(batch))
            (folder / "train.py").write_text(text)
            head = "#!/bin/bash\n#SBATCH --gres=gpu:h200:1 --output=%j.out\n"
            before = SMALL_AT_FIRST if name == RUNS_OUT else ""
            python = os.environ["XMEM_TEST_PYTHON"]
            (folder / "job.sh").write_text(f"{head}{before}{python} train.py\n")
        lab.up(load_site(SITE), cluster, accounting=True)
        try:
            environ = os.environ | lab.environment(cluster) | {"XMEM_SITE": str(SITE)}
            environ |= {"XDG_STATE_HOME": f"{work}/state", "XMEM_BUDGET": "300"}
            rows = list[Row]()
            for number in range(ROUNDS):
                is_first = number == 0
                for name in SCRIPTS:
                    if name != RUNS_OUT:
                        submit(work / name, environ)
                    elif is_first:
                        submit(work / name, environ, "--xmem-retry=1")
                    elif number > 1:  # its job of the second round was there with the first
                        submit(work / name, environ)
                rows = settled(environ, len(SCRIPTS) * (number + 1) + is_first)
            outcomes = records.outcomes(Path(environ["XDG_STATE_HOME"], "xmem-slurm", "outcomes"))
            trust, waste = said(environ, "trust"), said(environ, "waste")
        finally:
            lab.down(cluster)
    heads = ["script", "jobs", "recorded", "completed", "ran out", "MiB estimated", "to the byte"]
    print(*text_table(heads, table(rows, outcomes)), sep="\n")
    hours = sum(row.gpu_seconds for row in rows) / 3600
    had = sum(waste["had"].values())
    print(f"trust: {trust['enough']} of {trust['compared']} enough, {trust['ran_out']} ran out")
    print(f"waste: {waste['jobs']} jobs, {had:.4f} GPU hours; sacct: {len(rows)}, {hours:.4f}")
    failed = sum(row.state != "COMPLETED" for row in rows)
    whole = len(rows) == len(SCRIPTS) * ROUNDS == len(outcomes) == waste["jobs"]
    return 0 if whole and failed == trust["ran_out"] == 1 and abs(had - hours) < 1e-9 else 1


if __name__ == "__main__":
    sys.exit(main())
