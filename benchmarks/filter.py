"""What do the site-wide hooks cost a job for which there is nothing to do? With and without them, in one run.

    python -m benchmarks.filter [--rounds 40] [--submissions 1000]

Starts two throw-away Slurm clusters of one site, one with xmem-slurm's hooks and one without, and prints two tables:

- sbatch: the wall time of one submission, plain and with cli_filter.lua, in turn; medians. Target: 150 ms at most where
  there is nothing to do. The last row asks for GPUs, and its owner is not among those whose jobs the filter looks at:
  all of the filter's Python starts, and finds that out.
- slurmctld: how many submissions it takes a second, from two clients at once, without job_submit.lua and with it; the
  clusters in turn, in ten parts each, medians, of the differences, too. Target: 5 % at most. cli_filter.lua has no
  part in this.
"""

import argparse
import os
import pwd
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.text_table import text_table
from xmem_slurm import hooks, lab, resources
from xmem_slurm.site.loading import load_site
from xmem_slurm.site.schema import Site

SITE = resources.tree("site-config") / "example.toml"
USER = pwd.getpwuid(os.getuid()).pw_name
TABLES = f"""
[filter]
mode = "rewrite"
not_users = ["{USER}"]

[job_submit]
mode = "advise"
reason_for = ["l4"]
"""
PLAIN = "#!/bin/bash\n#SBATCH --time=1 --output=/dev/null\ntrue\n"
GPU = PLAIN.replace("--time=1", "--time=1 --gres=gpu:h200:1")
PARTS = 10
CLIENTS = 2


class Cluster:
    """A lab. `environ` is an environment whose Slurm commands talk to it; in `plain` they have no cli_filter."""

    def __init__(self, folder: Path, site: Site, texts: Mapping[str, str]) -> None:
        self.folder = folder
        lab.up(site, folder, hooks=texts)
        path = {"PATH": os.environ["PATH"]}  # SLURM_* and SBATCH_* variables have no part in this
        self.environ = path | lab.environment(folder)
        settings = Path(self.environ["SLURM_CONF"])
        lines = settings.read_text(encoding="utf-8").splitlines()
        without = settings.with_name("plain.conf")
        without.write_text("\n".join(line for line in lines if "CliFilterPlugins" not in line), encoding="utf-8")
        self.plain = self.environ | {"SLURM_CONF": str(without)}

    def seconds(self, script: Path, environ: Mapping[str, str]) -> float:
        """Submit a held job; return the wall time."""
        started = time.perf_counter()
        done = subprocess.run(["sbatch", "-H", script], env=environ, capture_output=True, text=True, check=False)
        if done.returncode or done.stderr:
            sys.exit(f"sbatch: {done.stderr}")
        return time.perf_counter() - started

    def rate(self, script: Path, count: int) -> float:
        """Submit held jobs from several clients at once; return how many a second were taken."""
        loop = 'for _ in $(seq "$1"); do sbatch -Q -H "$2" || exit 1; done'
        command = ["sh", "-c", loop, "sh", str(count // CLIENTS), script]
        started = time.perf_counter()
        clients = [subprocess.Popen(command, env=self.plain) for _ in range(CLIENTS)]
        if any([client.wait() for client in clients]):  # noqa: C419 - all have to end
            sys.exit("sbatch failed")
        return count // CLIENTS * CLIENTS / (time.perf_counter() - started)


def of_sbatch(cluster: Cluster, scripts: Mapping[str, Path], rounds: int) -> list[str]:
    """Return the table of the wall times of sbatch."""
    rows = []
    for name, script in scripts.items():
        taken: dict[str, list[float]] = {"plain": [], "filtered": []}
        for index in range(rounds + 1):  # the first fills the page cache
            for way, environ in (("plain", cluster.plain), ("filtered", cluster.environ)):
                took = cluster.seconds(script, environ)
                taken[way] += [took] if index else []
        plain, filtered = (1000 * statistics.median(each) for each in taken.values())
        slow = 1000 * statistics.quantiles(taken["filtered"], n=10)[-1]
        rows.append([name, f"{plain:.0f} ms", f"{filtered:.0f} ms", f"{filtered - plain:+.0f} ms", f"{slow:.0f} ms"])
    return text_table([f"{rounds} submissions each", "sbatch", "with the filter", "added", "90th percentile"], rows)


def of_slurmctld(without: Cluster, hooked: Cluster, script: Path, submissions: int) -> list[str]:
    """Return the table of the submissions that slurmctld takes a second."""
    rates: dict[str, list[float]] = {"without": [], "hooked": []}
    for index in range(PARTS + 1):
        for way, cluster in (("without", without), ("hooked", hooked))[:: 1 if index % 2 else -1]:
            found = cluster.rate(script, submissions // PARTS)
            rates[way] += [found] if index else []
    plain, hook = (statistics.median(each) for each in rates.values())
    less = statistics.median(b / a - 1 for a, b in zip(*rates.values(), strict=True))
    row = ["a job with a GPU", f"{plain:.1f} /s", f"{hook:.1f} /s", f"{100 * less:+.1f} %"]
    return text_table([f"{submissions} submissions each", "slurmctld", "with job_submit.lua", "difference"], [row])


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--submissions", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as folder, ExitStack() as stack:
        parent = Path(folder)
        parent.chmod(0o755)
        site_file = parent / "site.toml"
        site_file.write_text(f"{SITE.read_text(encoding='utf-8')}\n{TABLES}", encoding="utf-8")
        site = load_site(site_file)
        scripts = {"a job without a GPU": parent / "plain.sh", "a job with one, left alone": parent / "gpu.sh"}
        for script, text in zip(scripts.values(), (PLAIN, GPU), strict=True):
            script.write_text(text, encoding="utf-8")
        for name in ("without", "hooked"):
            stack.callback(lab.down, parent / name)
        without = Cluster(parent / "without", site, {})
        hooked = Cluster(parent / "hooked", site, hooks.render(site_file, site))
        print("\n".join(of_sbatch(hooked, scripts, asked.rounds)), end="\n\n")
        print("\n".join(of_slurmctld(without, hooked, parent / "gpu.sh", asked.submissions)))


if __name__ == "__main__":
    main()
