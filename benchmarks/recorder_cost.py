"""What does the recorder cost a job? Its Python's start and end with it and without, in turn, in
one run.

    XMEM_TEST_PYTHON=/path/to/python python -m benchmarks.recorder_cost [--rounds 20]

Seconds are CPU seconds of the process, as other programs of the machine have less of a part in
them; the medians, and their difference with the standard error of the paired differences' mean. A
training step runs no code of the recorder's at all, which the last row shows: so many allocations
on the GPU (here of stand-in libraries), after CUDA is there.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.submission.recording import RECORDER

ALLOCATIONS = 100_000
WAYS = {
    "pass": "pass",
    "import torch": "import torch",
    f"import torch, CUDA, {ALLOCATIONS} allocations": (
        f"import torch\nfor _ in range({ALLOCATIONS}): torch.empty(1024, device='cuda')"
    ),
}


def cpu_seconds(script: str, environ: Mapping[str, str]) -> float:
    """Run it in the job's Python; return the CPU seconds that it and its children took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([os.environ["XMEM_TEST_PYTHON"], "-c", script], env=environ, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print(f"{'the job':48} {'without':>9} {'with':>9} {'difference':>20}")
    with tempfile.TemporaryDirectory() as folder:
        gpu = gpu_environment.environment(load_catalogue()["l4"], 1, Path(folder), python_path=None)
        for name, script in WAYS.items():
            plain = {**os.environ, **(gpu if "torch" in name else {"PYTHONPATH": ""})}
            path = os.pathsep.join(filter(None, [str(RECORDER), plain["PYTHONPATH"]]))
            recorded = {**plain, "PYTHONPATH": path, "XMEM_RECORD_TO": folder}
            pairs = [
                (cpu_seconds(script, plain), cpu_seconds(script, recorded)) for _ in range(rounds)
            ]
            without, with_it = (statistics.median(each) for each in zip(*pairs, strict=True))
            differences = [after - before for before, after in pairs]
            mean, error = statistics.mean(differences), statistics.stdev(differences) / rounds**0.5
            print(
                f"{name:48} {without:7.3f} s {with_it:7.3f} s {1000 * mean:+8.1f} +- "
                f"{1000 * error:4.1f} ms"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
