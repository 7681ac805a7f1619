"""What does a dry run cost in a container, beside the same job without one, and is its peak the
same to the byte?

    sudo -E python -m benchmarks.containers --python JOB_PYTHON [--repeat 3]

As in `tests/integration/dryrun/test_containers.py`: an ordinary user, an image of this machine's Python
and shell, the job's torch bound into it; the runtimes that are on PATH. One round runs every way
once, so that a machine that gets busy slows all of them; of each way the least CPU time counts.
What is a package and what the job's own the probe knows by the folder's name: so torch has to lie
in a site-packages inside, too.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.text_table import markdown_table
from tests.integration.dryrun.test_containers import SYSTEM_PYTHON, Machine

WORKLOAD = Path(__file__).parent / "workloads" / "cost.py"
MODELS = ("gpt2", "resnet50")
HEADINGS = ("", "peak, bytes", "CPU s", "more")
INSIDE = "python3 cost.py {model}"
THERE = "/opt/site-packages"
CH_RUN = "PYTHONPATH={there} ch-run -b {packages}:{there} -b $PWD:/srv -c /srv "
SINGULARITY = (
    "PYTHONPATH={there} singularity exec --nv -B {packages}:{there},$PWD:/srv --pwd /srv {image} "
)
ENROOT = "enroot start -m {packages}:{there} -m $PWD:/srv -e PYTHONPATH={there} {image}.sqsh "
PODMAN = "podman run --rm -v {packages}:{there} -v $PWD:/srv -w /srv -e PYTHONPATH={there} x "
WAYS = {
    "without": ("sh", f"PYTHONPATH={{packages}} {SYSTEM_PYTHON} cost.py {{model}}"),
    "ch-run, folder": ("ch-run", CH_RUN + "{image} -- " + INSIDE),
    "ch-run, squashfs": ("ch-run", CH_RUN + "{image}.sqsh -- " + INSIDE),
    "enroot, squashfs": ("enroot", ENROOT + "python3 /srv/cost.py {model}"),
    "singularity, folder": ("singularity", SINGULARITY + INSIDE),
    "podman, imported": ("podman", PODMAN + INSIDE),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    ways = {name: line for name, (program, line) in WAYS.items() if shutil.which(program)}
    asked = [given.python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"]
    with tempfile.TemporaryDirectory(prefix="xmem-containers-", dir="/var/tmp") as folder:
        machine = Machine(Path(folder))
        machine.packages = Path(subprocess.check_output(asked, text=True).strip())
        shutil.copy(WORKLOAD, machine.job)
        machine.with_image()
        if "podman, imported" in ways:
            machine.import_image()
        for model in MODELS:
            print(
                f"\n{model}\n",
                *markdown_table(HEADINGS, _rows(machine, ways, model, given.repeat)),
                sep="\n",
            )


def _rows(machine: Machine, ways: dict[str, str], model: str, repeat: int) -> list[list[str]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peaks: dict[str, set[str]] = {name: set() for name in ways}
    for name, line in [*ways.items()] * repeat:
        script = line.format(
            packages=machine.packages, image=machine.image, model=model, there=THERE
        )
        found = machine.run(script, ENROOT_LOGIN_SHELL="no")
        peaks[name].add(found.get("why") or f"{found['bytes'][0]['allocated_bytes']:,}")
        seconds[name].append(found["cpu_seconds"])
        print(model, name, *peaks[name], found["cpu_seconds"], file=sys.stderr)
    least = {name: min(each) for name, each in seconds.items()}
    more = {name: f"{each - least['without']:+.1f}" for name, each in least.items()}
    return [[name, " or ".join(peaks[name]), f"{least[name]:.1f}", more[name]] for name in ways]


if __name__ == "__main__":
    main()
