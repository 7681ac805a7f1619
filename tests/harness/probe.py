"""Scripts under the probe, without a sandbox: what tests the probe, or what is estimated of its
traces, runs here.

The Python may be warm (`warm`), which takes a twentieth of the time.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xmem_slurm.device.builder import build
from xmem_slurm.dryrun import gpu_environment
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.trace import Trace
from xmem_slurm.trace_file import read

CACHE = Path(__file__).parents[2] / "build" / "device"
HANG_SECONDS = 120
H100 = load_catalogue()["h100-sxm5-80gb"]


@dataclass(frozen=True)
class Ran:
    """A script that has ended, and the traces of its processes, those that used no GPU memory
    included."""

    returncode: int
    stdout: str
    stderr: str
    traces: Sequence[Trace]

    @property
    def trace(self) -> Trace:
        """The only trace."""
        (trace,) = self.traces
        return trace

    @property
    def out(self) -> dict[str, Any]:
        """What the script printed, as JSON."""
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return found

    @property
    def used(self) -> list[Trace]:
        """The traces of the processes that used GPU memory."""
        return [trace for trace in self.traces if trace.allocations]


Run = Callable[..., Ran]


def stand_ins(python: Path) -> Path:
    """Return the stand-ins for the torch of a Python, built once for all tests."""
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    found = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True)
    return build(Path(found.stdout.strip()), CACHE)


def runs(python: Path, stand_ins: Path, folder: Path) -> Run:
    """Return a function that runs a script in a folder; `arguments` are for the Python in its
    place.

    Keywords that are not named are environment variables. `seconds` is how long a dry run it shall
    think it is."""
    traces, script = folder / "traces", folder / "train.py"
    traces.mkdir(exist_ok=True)
    # run after run: by their names alone process 10000 would come before process 9999
    written = list[Path]()

    def run(
        code: str,
        arguments: Sequence[str] = (str(script),),
        seconds: float | None = None,
        gpus: int = 1,
        without: Sequence[str] = (),
        **environment: str,
    ) -> Ran:
        script.write_text(code, encoding="utf-8")
        environ = {
            name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ
        }
        environ |= gpu_environment.environment(
            H100, gpus, traces, environment.pop("PYTHONPATH", None)
        )
        environ["XMEM_ENGINE"] = "device"
        environ["XMEM_DEVICE_BUILD"] = json.dumps(["sh", "-c", 'echo "$0"', str(stand_ins)])
        if seconds is not None:
            environ["XMEM_DEADLINE"] = str(time.monotonic() + seconds)
            environ["XMEM_CPU_SECONDS"] = str(seconds)
        ran = subprocess.run(
            [python, *arguments],
            env={
                name: value
                for name, value in (environ | environment).items()
                if name not in without
            },
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=HANG_SECONDS,
        )
        written.extend(sorted(set(traces.glob("*.json.gz")) - {*written}))
        return Ran(ran.returncode, ran.stdout, ran.stderr, [read(file) for file in written])

    return run
