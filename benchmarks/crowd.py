"""Is a job lost or doubled where many are submitted at once? Through the filter and through
xsbatch, counted.

    python -m benchmarks.crowd [--rounds 5] [--filter 200] [--xsbatch 100] [--kinds 40] [--seconds
    30] [--also nobody]

Needs a Python with a CUDA build of torch, named by XMEM_TEST_PYTHON. Starts a throw-away Slurm
cluster of the example site. Where `--also` names another user, every second job is theirs; that
takes root, and this checkout, its Python and the job's must be readable by them. Each round submits
crowds of held jobs, all of a crowd at once: with XMEM_OFF; one job that is not known yet; the same
when its answer is known; several kinds of job that are not known; and these again. Two more, one
with XMEM_OFF and one whose answer is known, lose slurmctld half way, which is started again. Prints
for each crowd how many came back with which exit code, how many jobs Slurm has and lines the site's
record, how many dry runs there were and how many of them ran at once, the wall time of a
submission, and the CPU time of all that each has started. Ends with 1 if a job was lost or doubled
or has no line, or more dry runs ran at once than the site allows; without slurmctld a job is lost
if none was with XMEM_OFF.
"""

import argparse
import functools
import itertools
import os
import pwd
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.overhead import GPU, SITE, TRAIN, XSBATCH
from benchmarks.text_table import text_table
from xmem_slurm import lab
from xmem_slurm.filter import hooks
from xmem_slurm.lab import processes
from xmem_slurm.sandbox import linux
from xmem_slurm.site.loading import load_site

FILTER = '\n[filter]\nmode = "rewrite"\nseconds = {seconds}\n\n[audit]\nfolder = "{audit}"\n'
PR_SET_CHILD_SUBREAPER = 36
"""Whoever's parent has ended is this process's child (prctl(2)): so its CPU time is known."""
BEFORE_SECONDS, AWAY_SECONDS = 0.5, 3.0
"""How long after the first submission slurmctld ends (at once with XMEM_OFF: all are made by then),
and until it is started again."""
RECORD_SECONDS = 20
"""A line is written after the answer is given."""
_DRY_RUN = re.compile(rb"/(xmem-[^/\0]+)/slurm_script\0")


@dataclass
class Crowd:
    """What came of submissions at once: exit codes, jobs as they say and as Slurm does, dry runs,
    seconds of each.
    """

    codes: Counter[int] = field(default_factory=Counter)
    printed: list[str] = field(default_factory=list)
    queued: list[str] = field(default_factory=list)
    said: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    dry_runs: set[bytes] = field(default_factory=set)
    at_once: int = 0
    recorded: int = 0
    cpu_seconds: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Whether each submission made one job, and knows it."""
        each = sorted(set(self.printed)) == sorted(self.queued)
        return each and set(self.codes) == {0} and len(self.printed) == self.codes.total()

    @property
    def lost(self) -> int:
        """How many submissions failed, printed a job that is not there, or made one that nobody was
        told of.
        """
        return self.codes.total() - self.codes[0] + len(set(self.printed) ^ set(self.queued))

    def percentile(self, part: int) -> float:
        """Return the seconds that so many percent of the submissions took at most."""
        return statistics.quantiles(self.seconds, n=100, method="inclusive")[part - 1]


def submit(
    commands: Sequence[Sequence[str]],
    folder: Path,
    environ: Mapping[str, str],
    beside: Callable[[], object] = bool,
) -> Crowd:
    """Run all commands at once, each of which prints its job's id, and count what came of it; the
    queue is empty.

    `beside` is called while they run.
    """
    crowd, over, lock = Crowd(), threading.Event(), threading.Lock()

    def run(command: Sequence[str]) -> None:
        started = time.perf_counter()
        done = subprocess.run(
            command, cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        with lock:
            crowd.seconds.append(time.perf_counter() - started)
            crowd.codes[done.returncode] += 1
            crowd.printed += done.stdout.split()
            crowd.said.update(done.stderr.splitlines())

    def watch() -> None:
        while not over.wait(0.05):
            running = dry_runs(environ)
            crowd.dry_runs |= running
            crowd.at_once = max(crowd.at_once, len(running))

    watcher = threading.Thread(target=watch)
    watcher.start()
    everybody = [threading.Thread(target=run, args=[command]) for command in commands]
    for each in everybody:
        each.start()
    beside()
    for each in everybody:
        each.join()
    while dry_runs(environ):  # those that go on by themselves
        time.sleep(0.1)
    over.set()
    watcher.join()
    shown = subprocess.run(
        ["squeue", "--noheader", "--format=%i"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    crowd.queued = shown.stdout.split()
    if crowd.queued:
        subprocess.run(["scancel", *crowd.queued], env=environ, check=True)
    return crowd


def restart(controller: Path, command: Sequence[str], before_seconds: float) -> None:
    """End the slurmctld of the lab in this folder, as a restart of its service does, and start it
    again.
    """
    time.sleep(before_seconds)
    daemon = psutil.Process(int((controller / "pid" / "slurmctld").read_text()))
    daemon.terminate()
    daemon.wait()
    time.sleep(AWAY_SECONDS)
    processes.start(controller, "slurmctld", command)


def lines(audit: Path) -> int:
    """Return how many lines the site's record has."""
    return sum(path.read_bytes().count(b"\n") for path in audit.iterdir())


def recorded(audit: Path, before: int, wanted: int) -> int:
    """Return how many lines there are more than `before`, when there are as many as are `wanted`,
    or in a while.
    """
    until = time.monotonic() + RECORD_SECONDS
    while lines(audit) - before < wanted and time.monotonic() < until:
        time.sleep(0.1)
    return lines(audit) - before


def spent() -> float:
    """Return the CPU seconds of all that this process has started, directly or not, and that has
    ended.
    """
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dry_runs(environ: Mapping[str, str]) -> set[bytes]:
    """Return the dry runs that run on this machine now for those whose cache's path begins like
    this one's, by the name of their folder.
    """
    found, ours = set[bytes](), f"XDG_CACHE_HOME={environ['XDG_CACHE_HOME']}".encode()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                named = _DRY_RUN.findall((process / "cmdline").read_bytes())
                found.update(named if named and ours in (process / "environ").read_bytes() else ())
    return found


def write_jobs(folder: Path, python: str, names: Sequence[str]) -> None:
    """Write a batch script of each name; no two are known under one answer."""
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    for name in names:
        (folder / name).write_text(f"{GPU.format(python=python)}# {name}\n", encoding="utf-8")


def become(name: str, folder: Path) -> list[str]:
    """Return the command that runs another one as this user, with a home and caches of its own."""
    account, home, cache = pwd.getpwnam(name), folder / f"home-{name}", folder / f"cache-{name}"
    for own_folder in (home, cache):
        own_folder.mkdir()
        os.chown(own_folder, account.pw_uid, account.pw_gid)
    ids = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]
    own = [f"HOME={home}", f"XDG_CACHE_HOME={cache}", f"XDG_STATE_HOME={home}/state"]
    return ["setpriv", *ids, "env", *own]


def write_site(folder: Path, seconds: float) -> tuple[Path, Path]:
    """Write the example site's file, with a filter that waits so long, and make the folder of its
    record; return both.
    """
    site_file, audit = folder / "site.toml", folder / "audit"
    audit.mkdir()
    audit.chmod(0o1733)  # as docs/administrators.md has it
    text = f"{SITE.read_text(encoding='utf-8')}{FILTER.format(seconds=seconds, audit=audit)}"
    site_file.write_text(text, encoding="utf-8")
    return site_file, audit


def main() -> None:
    """Submit the crowds, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--filter", type=int, default=200)
    parser.add_argument("--xsbatch", type=int, default=100)
    parser.add_argument("--kinds", type=int, default=40)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--also", metavar="USER", action="append", default=[])
    asked = parser.parse_args()
    python = os.environ["XMEM_TEST_PYTHON"]
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as folder:
        parent = Path(folder)
        parent.chmod(0o755)
        site_file, audit = write_site(parent, asked.seconds)
        linux.prctl(PR_SET_CHILD_SUBREAPER, 1)
        site = load_site(site_file)
        most = site.dry_run.per_machine or max(1, (os.cpu_count() or 1) // 4)
        lab.up(site, parent / "lab", hooks=hooks.render(site_file, site))
        own = {
            "XMEM_SITE": str(site_file),
            "XDG_CACHE_HOME": f"{folder}/cache",
            "XDG_STATE_HOME": f"{folder}/state",
        }
        environ = os.environ | lab.environment(parent / "lab") | own
        controller = [shutil.which("slurmctld") or "/usr/sbin/slurmctld", "-D"]
        users = [[], *(become(name, parent) for name in asked.also)]
        rows, fine, without = [], True, 0
        try:
            for turn in range(asked.rounds):
                sizes = {"sbatch": asked.filter, XSBATCH: asked.xsbatch}
                for program, size in ((name, size) for name, size in sizes.items() if size):
                    names = [f"{turn}-{kind}.sh" for kind in range(asked.kinds + 1)]
                    write_jobs(parent, python, names)
                    for what, scripts in (
                        ("off", names),
                        ("new", names[:1]),
                        ("known", names[:1]),
                        (f"{asked.kinds} new", names[1:]),
                        (f"{asked.kinds} again", names[1:]),
                        ("off, restarted", names[1:]),
                        ("known, restarted", names[:1]),
                    ):
                        words = [
                            [*user, program, "--hold", "--parsable", scripts[n % len(scripts)]]
                            for n, user in zip(range(size), itertools.cycle(users))
                        ]
                        before, started = lines(audit), spent()
                        off, restarted = what.startswith("off"), what.endswith("restarted")
                        after = 0.0 if off else BEFORE_SECONDS
                        beside = (
                            functools.partial(restart, parent / "lab", controller, after)
                            if restarted
                            else bool
                        )
                        crowd = submit(
                            words, parent, environ | ({"XMEM_OFF": "1"} if off else {}), beside
                        )
                        wanted = 0 if off else size
                        crowd.recorded = recorded(audit, before, wanted)
                        crowd.cpu_seconds = spent() - started
                        without = crowd.lost if off else without
                        fine &= crowd.is_whole or (restarted and crowd.lost <= without)
                        fine &= crowd.at_once <= most and crowd.recorded == wanted
                        rows.append(_row(turn, Path(program).name, what, crowd))
                        print(
                            *rows[-1], dict(crowd.said.most_common(4)), file=sys.stderr, flush=True
                        )
        finally:
            lab.down(parent / "lab")
    head = [
        "round",
        "through",
        "job",
        "exit codes",
        "jobs",
        "lines",
        "dry runs",
        "at once",
        "p50",
        "p99",
        "CPU each",
    ]
    print("\n".join(text_table(head, rows)))
    lost = f"{'no' if fine else 'A'} job was lost or doubled or has no line"
    print(f"at most {most} dry runs at once; {lost}; {os.cpu_count()} cores")
    sys.exit(0 if fine else 1)


def _row(turn: int, program: str, what: str, crowd: Crowd) -> list[str]:
    codes = ", ".join(f"{count} x {code}" for code, count in sorted(crowd.codes.items()))
    times = [f"{crowd.percentile(part):.2f} s" for part in (50, 99)]
    return [
        str(turn + 1),
        program,
        what,
        codes,
        f"{len(crowd.queued)}",
        f"{crowd.recorded}",
        f"{len(crowd.dry_runs)}",
        f"{crowd.at_once}",
        *times,
        f"{crowd.cpu_seconds / len(crowd.seconds):.3f} s",
    ]


if __name__ == "__main__":
    main()
