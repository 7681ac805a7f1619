"""What does xsbatch cost over sbatch when there is nothing to do? Both, side by side, in one run.

    python -m benchmarks.overhead [--rounds 40]

Starts a throw-away Slurm cluster of the example site and submits held jobs in turn: one by sbatch,
then one by xsbatch in each of the ways below, and again. Prints the medians, what each way adds to
sbatch's, and that as a multiple of what `python -I -c pass` takes on this machine in the same run.
Targets: 5 times that where there is nothing to do, 150 ms for a job with a GPU whose estimate is
cached. The last needs a Python with a CUDA build of torch, named by XMEM_TEST_PYTHON, and is left
out without one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem_slurm import lab, resources
from xmem_slurm.site.loading import load_site

SITE = resources.tree("site-config") / "example.toml"
XSBATCH = str(Path(sys.executable).parent / "xsbatch")
PLAIN = "#!/bin/bash\n#SBATCH --time=1 --output=/dev/null\ntrue\n"
GPU = "#!/bin/bash\n#SBATCH --gres=gpu:h200:1 --output=/dev/null\n{python} train.py\n"
TRAIN = """
import torch
layer = torch.nn.Linear(1024, 1024, device="cuda")
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range(4):
    layer(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def seconds(command: Sequence[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Submit once; return the wall time in seconds."""
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return time.perf_counter() - started


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    ways: dict[str, list[str]] = {
        "python -I -c pass": [sys.executable, "-I", "-c", "pass"],
        "sbatch": ["sbatch", "-H", "plain.sh"],
        "xsbatch, no GPU": [XSBATCH, "-H", "plain.sh"],
        "xsbatch --xmem-off": [XSBATCH, "--xmem-off", "-H", "gpu.sh"],
    }
    python = os.environ.get("XMEM_TEST_PYTHON")
    if python:
        ways["xsbatch, GPU, cached estimate"] = [XSBATCH, "-H", "gpu.sh"]
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        work, cluster = Path(parent), Path(parent, "lab")
        (work / "plain.sh").write_text(PLAIN)
        (work / "gpu.sh").write_text(GPU.format(python=python))
        (work / "train.py").write_text(TRAIN)
        lab.up(load_site(SITE), cluster)
        try:
            environ = {
                **os.environ,
                **lab.environment(cluster),
                "XMEM_SITE": str(SITE),
                "XDG_STATE_HOME": str(work),
            }
            for command in ways.values():  # the first fills the caches
                seconds(command, work, environ)
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds):
                for name, command in ways.items():
                    taken[name].append(seconds(command, work, environ))
        finally:
            lab.down(cluster)
    base, python_alone = (
        statistics.median(taken[name]) for name in ("sbatch", "python -I -c pass")
    )
    print(
        f"{rounds} submissions each, medians{'':11} median     added  of python    90th percentile"
    )
    for name, each in taken.items():
        median, slow = statistics.median(each), statistics.quantiles(each, n=10)[-1]
        added = median - base if "sbatch" in name else median
        row = (
            f"{1000 * median:7.0f} ms {1000 * added:+6.0f} ms {added / python_alone:6.1f} x "
            f"{1000 * slow:14.0f} ms"
        )
        print(f"{name:38}{row}")


if __name__ == "__main__":
    main()
