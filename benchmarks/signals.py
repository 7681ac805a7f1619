"""Is a job lost, doubled or misreported where xsbatch gets a signal, and is anything left? Random
ones, counted.

    python -m benchmarks.signals [--signals 300] [--at-once 3] [--seed 0]

Needs a Python with a CUDA build of torch, named by XMEM_TEST_PYTHON. Starts a throw-away Slurm
cluster of the example site. Each submission of a held job gets one signal at a random moment of
what such a submission takes; Ctrl-C goes to all of its processes, as a terminal sends it. Then one
more job is submitted, in peace, and nothing of the others may be there: no process, no folder.
Prints for each signal what became of the jobs. "unsaid" is a job whose number was not printed, as
sbatch was ended between the two; that is sbatch's own. Ends with 1 if a job was lost or doubled, or
something was left.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from benchmarks.crowd import write_jobs
from benchmarks.overhead import SITE, XSBATCH
from benchmarks.text_table import text_table
from xmem_slurm import lab
from xmem_slurm.site.loading import load_site

SIGNALS = ("INT", "TERM", "HUP", "QUIT", "ALRM", "XCPU", "USR1", "USR2", "PIPE", "KILL")
JOB = "job.sh"
OUTCOMES = ("submitted", "not submitted", "unsaid", "lost", "doubled", "misreported")


class Order(NamedTuple):
    """One submission: the job's name, the signal, and after how many seconds it comes."""

    name: str
    signal: str
    after: float


def submit(order: Order, folder: Path, environ: Mapping[str, str]) -> str:
    """Submit a job, send its signal, and return what became of it."""
    command = [XSBATCH, "--hold", "--parsable", f"--job-name={order.name}", JOB]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    ) as running:
        with suppress(subprocess.TimeoutExpired):
            running.wait(order.after)
        send = os.killpg if order.signal == "INT" else os.kill
        with suppress(ProcessLookupError):
            send(running.pid, signal.Signals[f"SIG{order.signal}"])
        printed = running.communicate()[0].split()
    show = ["squeue", "--noheader", "--format=%i", f"--name={order.name}"]
    queued = subprocess.run(
        show, env=environ, capture_output=True, text=True, check=True
    ).stdout.split()
    if len(queued) > 1:
        return "doubled"
    if printed and printed != queued:
        return "misreported"
    if running.returncode == 0:
        return "submitted" if printed else "lost"
    return "unsaid" if queued else "not submitted"


def left(environ: Mapping[str, str]) -> list[str]:
    """Return what there is of earlier submissions: processes with this cache, and what lies in
    TMPDIR.
    """
    ours, found = f"XDG_CACHE_HOME={environ['XDG_CACHE_HOME']}\0".encode(), []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with suppress(OSError):
                if ours in (process / "environ").read_bytes():
                    found.append(
                        (process / "cmdline")
                        .read_bytes()
                        .replace(b"\0", b" ")
                        .decode(errors="replace")
                    )
    return found + [str(each) for each in Path(environ["TMPDIR"]).iterdir()]


def main() -> None:
    """Send the signals, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--signals", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as folder:
        parent = Path(folder)
        (parent / "tmp").mkdir()
        write_jobs(parent, os.environ["XMEM_TEST_PYTHON"], [JOB])
        lab.up(load_site(SITE), parent / "lab")
        own = {name: f"{folder}/{name}" for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME")}
        environ = os.environ | lab.environment(parent / "lab") | own
        environ |= {"XMEM_SITE": str(SITE), "TMPDIR": f"{folder}/tmp"}
        try:
            # it builds the stand-ins
            peace = [submit(Order("first", "USR1", 600), parent, environ)]
            began = time.monotonic()
            peace.append(submit(Order("second", "USR1", 600), parent, environ))
            longest = (time.monotonic() - began) * asked.at_once
            orders = [
                Order(f"n{n}", SIGNALS[n % len(SIGNALS)], chance.uniform(0, longest))
                for n in range(asked.signals)
            ]
            with ThreadPoolExecutor(asked.at_once) as pool:
                became = list(pool.map(lambda order: submit(order, parent, environ), orders))
            peace.append(submit(Order("last", "USR1", 600), parent, environ))
            remains = left(environ)
        finally:
            lab.down(parent / "lab")
    counts = defaultdict[str, Counter[str]](Counter)
    for order, outcome in zip(orders, became, strict=True):
        counts[order.signal][outcome] += 1
    print(
        "\n".join(text_table(["signal", *OUTCOMES], [_row(name, counts[name]) for name in SIGNALS]))
    )
    print(
        f"{len(orders)} signals in 0 to {longest:.1f} s; in peace: {', '.join(peace)}; left: "
        f"{remains or 'nothing'}"
    )
    wrong = {"lost", "doubled", "misreported"} & set(became)
    sys.exit(1 if wrong or remains or set(peace) != {"submitted"} else 0)


def _row(name: str, counts: Counter[str]) -> list[str]:
    return [name, *(str(counts[outcome]) for outcome in OUTCOMES)]


if __name__ == "__main__":
    main()
