"""What do the site-wide hooks cost a job for which there is nothing to do? With and without them,
in one run.

    python -m benchmarks.filter [--rounds 100] [--submissions 1000]

Starts two throw-away Slurm clusters of one site, one with xmem-slurm's hooks and one without, and
prints two tables:

- sbatch: the wall time of one submission, plain and with cli_filter.lua, in turn; medians. Target:
  150 ms at most where there is nothing to do. In the last row the filter looks at the job, and
  knows the answer; it needs a Python with a CUDA build of torch, named by XMEM_TEST_PYTHON, and is
  left out without one.
- slurmctld: how many submissions it takes a second, from two clients at once, without
  job_submit.lua and with it. Target: 5 % at most. The clusters take turns of 20 submissions each,
  so that what else the machine does meets both alike: the difference is the median over the turns,
  with its 95 % confidence interval; beside it, what slurmctld itself computes for a submission.
  cli_filter.lua has no part in this.
"""

import argparse
import math
import os
import pwd
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.overhead import GPU, PLAIN, SITE, TRAIN
from benchmarks.text_table import text_table
from xmem_slurm import lab
from xmem_slurm.filter import hooks
from xmem_slurm.site.loading import load_site
from xmem_slurm.site.schema import Site

USER = pwd.getpwuid(os.getuid()).pw_name
PYTHON = os.environ.get("XMEM_TEST_PYTHON")
TURN = 20
CLIENTS = 2
FILTER = '\n[filter]\nmode = "rewrite"\nseconds = 600\n'
JOB_SUBMIT = '\n[job_submit]\nmode = "advise"\nreason_for = ["l4"]\n'
CASES = {
    "a job without a GPU": ("plain.sh", ""),
    "a job with one, whose owner is left alone": ("gpu.sh", f'not_users = ["{USER}"]\n'),
    "a job with one, not opted in": ("gpu.sh", "opt_in = true\n"),
    **({"a job with one, whose answer is known": ("gpu.sh", "")} if PYTHON else {}),
}
"""The script, and what [filter] says."""


class Cluster:
    """A lab. `environ` is an environment whose Slurm commands talk to it; in `plain` they have no
    cli_filter.
    """

    def __init__(self, folder: Path, site: Site, texts: Mapping[str, str]) -> None:
        self.folder = folder
        lab.up(site, folder, hooks=texts)
        path = {
            "PATH": os.environ["PATH"],
            "XDG_CACHE_HOME": str(folder.parent / "cache"),
        }  # no SLURM_* or SBATCH_*
        self.environ = path | lab.environment(folder)
        settings = Path(self.environ["SLURM_CONF"])
        lines = settings.read_text(encoding="utf-8").splitlines()
        without = settings.with_name("plain.conf")
        without.write_text(
            "\n".join(line for line in lines if "CliFilterPlugins" not in line), encoding="utf-8"
        )
        self.plain = self.environ | {"SLURM_CONF": str(without)}

    def seconds(self, script: Path, environ: Mapping[str, str]) -> float:
        """Submit a held job; return the wall time."""
        command = ["sbatch", "-H", script.name]
        started = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=script.parent,
            env=environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        if done.returncode or b"as written" in done.stderr:
            sys.exit(f"sbatch: {done.stderr.decode()}")
        return time.perf_counter() - started

    def rate(self, script: Path) -> float:
        """Submit a turn of held jobs from several clients at once; return how many a second were
        taken.
        """
        loop = 'for _ in $(seq "$1"); do sbatch -Q -H "$2" || exit 1; done'
        command = ["sh", "-c", loop, "sh", str(TURN // CLIENTS), script]
        started = time.perf_counter()
        clients = [subprocess.Popen(command, env=self.plain) for _ in range(CLIENTS)]
        if any([client.wait() for client in clients]):  # noqa: C419 - all have to end
            sys.exit("sbatch failed")
        return TURN / (time.perf_counter() - started)

    def computed(self) -> float:
        """Return the CPU seconds of slurmctld until now."""
        process = (self.folder / "pid" / "slurmctld").read_text(encoding="utf-8").strip()
        fields = (
            Path("/proc", process, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        )
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and its 95 % confidence interval, by order statistics: nothing is assumed
    of the values.
    """
    ordered, count = sorted(values), len(values)
    below = 0.0
    for rank in range(count // 2):
        below += math.comb(count, rank) / 2**count
        if below > 0.025:
            return (
                ordered[max(rank - 1, 0)],
                statistics.median(ordered),
                ordered[count - 1 - max(rank - 1, 0)],
            )
    return ordered[0], statistics.median(ordered), ordered[-1]


def of_sbatch(cluster: Cluster, site_file: Path, rounds: int) -> list[str]:
    """Return the table of the wall times of sbatch."""
    rows = []
    site = site_file.read_text(encoding="utf-8").replace(FILTER, "")
    for name, (script, said) in CASES.items():
        site_file.write_text(f"{site}{FILTER}{said}", encoding="utf-8")
        taken: dict[str, list[float]] = {"plain": [], "filtered": []}
        # the first fills the page cache, and runs dry what is to be known
        for index in range(rounds + 1):
            for way, environ in (("plain", cluster.plain), ("filtered", cluster.environ)):
                took = cluster.seconds(site_file.parent / "jobs" / script, environ)
                taken[way] += [1000 * took] if index else []
        added = [after - before for before, after in zip(*taken.values(), strict=True)]
        plain, filtered = map(statistics.median, taken.values())
        slow = statistics.quantiles(added, n=20)[-1]
        rows.append(
            [name, *(f"{ms:.0f} ms" for ms in (plain, filtered, statistics.median(added), slow))]
        )
    return text_table(
        [f"{rounds} submissions each", "sbatch", "with the filter", "added", "95th percentile"],
        rows,
    )


def of_slurmctld(clusters: Sequence[Cluster], script: Path, submissions: int) -> list[str]:
    """Return the table of the submissions that slurmctld takes a second, without the hook and with
    it.
    """
    rates: list[list[float]] = [[], []]
    for cluster in clusters:
        cluster.rate(script)  # the first connections, the first job
    before = [cluster.computed() for cluster in clusters]
    for index in range(submissions // TURN):
        for which in (0, 1) if index % 2 else (1, 0):
            rates[which].append(clusters[which].rate(script))
    each = [
        1000 * (cluster.computed() - start) / (submissions // TURN * TURN)
        for cluster, start in zip(clusters, before, strict=True)
    ]
    low, middle, high = (
        100 * (ratio - 1) for ratio in median_interval([b / a for a, b in zip(*rates, strict=True)])
    )
    rows = [
        [
            "taken",
            *(f"{statistics.median(rate):.1f} /s" for rate in rates),
            f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})",
        ],
        [
            "slurmctld's CPU time",
            *(f"{ms:.2f} ms" for ms in each),
            f"{100 * (each[1] / each[0] - 1):+.1f} %",
        ],
    ]
    return text_table(
        [f"{submissions} submissions each", "slurmctld", "with job_submit.lua", "difference"], rows
    )


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--submissions", type=int, default=1000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as folder, ExitStack() as stack:
        parent = Path(folder)
        parent.chmod(0o755)
        jobs = parent / "jobs"
        jobs.mkdir()
        for name, text in (
            ("plain.sh", PLAIN),
            ("gpu.sh", GPU.format(python=PYTHON)),
            ("train.py", TRAIN),
        ):
            (jobs / name).write_text(text, encoding="utf-8")
        site_file = parent / "site.toml"
        site_file.write_text(
            f"{SITE.read_text(encoding='utf-8')}{JOB_SUBMIT}{FILTER}", encoding="utf-8"
        )
        site = load_site(site_file)
        for name in ("without", "hooked"):
            stack.callback(lab.down, parent / name)
        without = Cluster(parent / "without", site, {})
        hooked = Cluster(parent / "hooked", site, hooks.render(site_file, site))
        print("\n".join(of_sbatch(hooked, site_file, asked.rounds)), end="\n\n")
        print("\n".join(of_slurmctld((without, hooked), jobs / "gpu.sh", asked.submissions)))
        print(
            f"load average: {' '.join(f'{load:.1f}' for load in os.getloadavg())}, "
            f"{os.cpu_count()} cores"
        )


if __name__ == "__main__":
    main()
