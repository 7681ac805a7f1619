"""What does `xmem-slurm plan` say of a job on a site with one kind of GPU, and what does it cost?"""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from xmem_slurm.units import GIB

ROOT = Path(__file__).resolve().parents[1]
SITE = """
schema_version = 1
name = "plans"
[option.{type}]
gpu = "{gpu}"
type = "{type}"
cost = 1.0
[[nodes]]
names = "n[1-{nodes}]"
cpus = 64
memory_mib = 1000000
gpus = {{ {type} = {gpus} }}
partitions = ["gpu"]
[partition.gpu]
default = true
"""
PROGRAM = (sys.executable, "-c", "from xmem_slurm.cli.main import main; main()")
"""xmem-slurm."""


class Gpus(NamedTuple):
    """The GPUs of a site: the catalogue's name, Slurm's type, how many on a node, and nodes."""

    gpu: str
    type: str
    gpus: int
    nodes: int


class Plan(NamedTuple):
    """A plan as `--json` has it, empty where there is none; what it said otherwise; CPU seconds of
    all that it started, its own included.
    """

    found: dict[str, Any]
    said: str
    seconds: float

    @property
    def verified(self) -> list[dict[str, Any]]:
        """The ways that were seen to fit, best first."""
        return [row for row in self.found.get("candidates", ()) if row["status"] == "verified"]


def plan(job: str, gpus: Gpus, options: Sequence[str], python: Path, folder: Path) -> Plan:
    """Plan a job script in a folder, with that job's Python; anew where `options` have --fresh."""
    (folder / "site.toml").write_text(SITE.format(**gpus._asdict()))
    (folder / "job.sh").write_text(job)
    site = ("--site", str(folder / "site.toml"))
    command = [*PROGRAM, "plan", "--json", *site, *options, "job.sh"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env=environ(python), capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(done.stdout) if done.stdout else {}
    return Plan(found, " ".join(done.stderr.split()), spent)


def environ(python: Path) -> dict[str, str]:
    """Return the variables with which xmem-slurm finds a job's Python, and itself."""
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}


def way(row: dict[str, Any]) -> str:
    """Return a way in a few words: method, GPUs, micro batch x accumulation, and what it needs."""
    checkpointing = " with checkpointing" if row["checkpointing"] else ""
    return (
        f"{row['method']} on {row['gpus']}, {row['micro_batch']} x {row['accumulation']}"
        f"{checkpointing}, {row['required_bytes'] / GIB:.2f} GiB"
    )
