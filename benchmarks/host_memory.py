"""Is the host memory that a dry run sees what the script takes? 24 scripts, plainly and dry.

    python -m benchmarks.host_memory --python JOB_PYTHON [CASE...]

Plainly is without the probe and the sandbox, on this machine's CPU, by the same Python; where it
has no CUDA libraries of its own torch is loaded with the stand-ins. `workloads/host_memory.py` has
the scripts, and says how they are measured. Nothing of it is what CUDA takes on the host.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.text_table import text_table
from xmem_slurm.device.builder import build
from xmem_slurm.dryrun import runner
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.units import MIB

WORKLOAD = Path(__file__).parent / "workloads" / "host_memory.py"
GPU = load_catalogue()["a100-sxm4-80gb"]
_FIND = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"


def plainly(python: Path, case: str, stand_ins: Path, folder: Path) -> int:
    """Return the most bytes that it held, all of its ranks together."""
    environ = {**os.environ, "XMEM_PLAIN": "1", "LD_LIBRARY_PATH": str(stand_ins.resolve())}
    ran = subprocess.run(
        [python, WORKLOAD, case],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return sum(map(int, ran.stdout.split()))


def dry(python: Path, case: str, folder: Path) -> int:
    """Return what its trace says of it."""
    script = f"#!/bin/sh\nexec {shlex.join([str(python), str(WORKLOAD), case])}\n"
    job = Job(script.encode(), [], folder, {"PATH": "/usr/bin:/bin"})
    traces = runner.run(DryRunOrder.of(job, GPU, Budget())).traces  # spawned workers have theirs
    trace = max(traces, key=lambda trace: trace.steps)
    return trace.host_bytes * trace.world_size  # it is all on one node


def main() -> int:
    """Print one row a case."""
    cases = re.findall(r'^    "(.+)": ', WORKLOAD.read_text(encoding="utf-8"), re.MULTILINE)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("cases", nargs="*", default=cases)
    wanted = parser.parse_args()
    torch = subprocess.run([wanted.python, "-c", _FIND], capture_output=True, text=True, check=True)
    stand_ins = build(Path(torch.stdout.strip()), Path("build") / "device")
    rows = []
    for case in wanted.cases:
        with tempfile.TemporaryDirectory() as folder:
            real = plainly(wanted.python, case, stand_ins, Path(folder))
            seen = dry(wanted.python, case, Path(folder))
        rows.append(
            [case, f"{real // MIB:,}", f"{seen // MIB:,}", f"{100 * (seen / real - 1):+.1f}"]
        )
        print(*text_table(["", "MiB plainly", "dry", "%"], rows[-1:])[1:], sep="\n", flush=True)
    print(*text_table(["", "MiB plainly", "dry", "%"], rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
