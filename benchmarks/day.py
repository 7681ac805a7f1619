"""What does a day of submissions through the filter cost a login node? CPU hours, bytes kept and
files asked for, of one job of each kind, and of a day of them.

    python -m benchmarks.day [--submissions 20000] [--known 0.7] [--rounds 10]

Needs a Python with a CUDA build of torch, named by XMEM_TEST_PYTHON; with XMEM_TEST_TRAINERS, one
that has transformers, too, a job of the Trainer is measured beside a plain loop. Starts a throw-away
Slurm cluster of the example site, and submits each job once as a new one (after another with the
same Python: stand-in libraries are built once), and `--rounds` times as a known one. CPU seconds are
those of all that a submission started, the dry run included; bytes are what it left in its user's
cache. Of two known submissions strace, where there is one, counts the system calls that ask for a
file, which is what a home on a network file system has to answer: of one by itself, and of one that
follows at once, as in a sweep.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.crowd import PR_SET_CHILD_SUBREAPER, dry_runs, spent, write_site
from benchmarks.overhead import GPU, TRAIN
from benchmarks.text_table import text_table
from xmem_slurm import lab
from xmem_slurm.filter import hooks
from xmem_slurm.sandbox import linux
from xmem_slurm.site.loading import load_site
from xmem_slurm.submission import answers

SECONDS = 300
"""How long the filter waits for a new job's dry run: all are answered."""
TRAINER = Path(__file__).with_name("workloads") / "hf_trainer.py"
TRAINER_JOB = (
    "#!/bin/bash\n#SBATCH --gres=gpu:h200:1 --output=/dev/null\n"
    "{python} train.py --output_dir=out --max_steps=20 --report_to=none\n"
)


class Cost(NamedTuple):
    """What submissions of one kind of job cost, each."""

    new_seconds: float
    known_seconds: float
    kept_bytes: int
    calls: tuple[int, ...]


def submit(
    environ: Mapping[str, str], folder: Path, script: str = "job.sh", before: Sequence[str] = ()
) -> bytes:
    """Submit a job of this folder, held; return what was said of it."""
    done = subprocess.run(
        [*before, "sbatch", "--hold", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        check=True,
    )
    return done.stderr


def measure(environ: Mapping[str, str], folder: Path, rounds: int) -> Cost:
    """Submit the job in this folder as a new one, and then as a known one."""
    cache = Path(environ["XDG_CACHE_HOME"])
    submit(environ, folder, "first.sh")
    _settled()
    kept, started = _bytes(cache), spent()
    said = submit(environ, folder)
    if b"GPU memory needed" not in said:
        sys.exit(said.decode())
    while dry_runs(environ):
        time.sleep(0.1)
    new_seconds, kept_bytes = _settled() - started, _bytes(cache) - kept
    started = spent()
    for _ in range(rounds):
        said = submit(environ, folder)
        if b"known since" not in said:
            sys.exit(said.decode())
    known_seconds = (_settled() - started) / rounds
    return Cost(new_seconds, known_seconds, kept_bytes, _calls(environ, folder))


def _calls(environ: Mapping[str, str], folder: Path) -> tuple[int, ...]:
    """Return how many system calls of a known submission ask for a file: alone, and at once
    behind another; nothing where there is no strace.
    """
    if not shutil.which("strace"):
        return ()
    time.sleep(answers.PACKAGES_SECONDS)
    logs = [folder / "alone", folder / "behind"]
    for log in logs:
        strace = ("strace", "-f", "-qq", "-e", "trace=%file", "-o", str(log))
        submit(environ, folder, before=strace)
    return tuple(len(log.read_bytes().splitlines()) for log in logs)


def _settled() -> float:
    """Return the CPU seconds of what was started, once no more of it ends."""
    seconds = spent()
    while True:
        time.sleep(1)
        if (later := spent()) == seconds:
            return seconds
        seconds = later


def _bytes(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--submissions", type=int, default=20_000)
    parser.add_argument("--known", type=float, default=0.7)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    jobs = {"a plain loop": (GPU.format(python=os.environ["XMEM_TEST_PYTHON"]), TRAIN)}
    if trainers := os.environ.get("XMEM_TEST_TRAINERS"):
        text = TRAINER.read_text(encoding="utf-8")
        jobs["transformers' Trainer"] = TRAINER_JOB.format(python=trainers), text
    linux.prctl(PR_SET_CHILD_SUBREAPER, 1)
    rows = []
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as folder:
        parent = Path(folder)
        parent.chmod(0o755)
        site_file, _ = write_site(parent, SECONDS)
        site = load_site(site_file)
        lab.up(site, parent / "lab", hooks=hooks.render(site_file, site))
        environ = os.environ | lab.environment(parent / "lab")
        environ |= {"XDG_CACHE_HOME": f"{folder}/cache", "XDG_STATE_HOME": f"{folder}/state"}
        try:
            for number, (name, (script, train)) in enumerate(jobs.items()):
                work = parent / str(number)
                work.mkdir()
                (work / "job.sh").write_text(script, encoding="utf-8")
                (work / "first.sh").write_text(f"{script}# another\n", encoding="utf-8")
                (work / "train.py").write_text(train, encoding="utf-8")
                rows.append(_row(name, measure(environ, work, asked.rounds), asked))
        finally:
            lab.down(parent / "lab")
    head = ["job", "new", "known", "kept", "files", "in a sweep", "a day's CPU", "kept", "files"]
    print("\n".join(text_table(head, rows)))
    print(f"a day: {asked.submissions:,} submissions, {asked.known:.0%} of them known")


def _row(name: str, cost: Cost, asked: argparse.Namespace) -> list[str]:
    known = asked.submissions * asked.known
    new = asked.submissions - known
    hours = (new * cost.new_seconds + known * cost.known_seconds) / 3600
    return [
        name,
        f"{cost.new_seconds:.1f} s",
        f"{cost.known_seconds:.2f} s",
        f"{cost.kept_bytes / 1024:.0f} KiB",
        *([f"{count:,}" for count in cost.calls] or ["", ""]),
        f"{hours:.1f} h",
        f"{new * cost.kept_bytes / 1024**2:,.0f} MiB",
        f"{known * cost.calls[0] / 1e6:.1f} million" if cost.calls else "",
    ]


if __name__ == "__main__":
    main()
