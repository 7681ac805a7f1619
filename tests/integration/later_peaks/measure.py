"""What a script of the list truly needs, and what is said of it."""

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.integration.later_peaks.listing import Listing, Peaks
from xmem_slurm.device.builder import build
from xmem_slurm.dryrun import dispatch, gpu_environment
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import Gpu
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.units import MIB, round_up

A100 = load_catalogue()["a100-sxm4-80gb"]
SECONDS = Budget().seconds
"""What a dry run may cost unless somebody says otherwise."""
TOLERANCE = 0.02
_SEARCH = 0.01
"""So near to the least memory on which a script runs: half of the tolerance."""
_CLEAR = 0.1
"""With so much more none may fail: what runs and what does not may take turns, as with fewer
fragments kept."""
_BUILDS = Path(__file__).parents[3] / "build" / "device"
_PROBE = Path(gpu_environment.__file__).parents[1] / "probe"
_WHOLE = Path(__file__).with_name("whole.py")


def whole_run(scripts: Listing, name: str, python: Path, folder: Path) -> tuple[str, Peaks]:
    """Run a script without any cut; return torch's version and its own peaks."""
    case, script = scripts.cases[name], folder / "train.py"
    script.write_text(scripts.twin(name), encoding="utf-8")
    find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    torch = subprocess.run(
        [python, "-c", find], capture_output=True, text=True, check=True
    ).stdout.strip()
    stand_ins = build(Path(torch), _BUILDS)
    environ = {
        variable: os.environ[variable]
        for variable in ("PATH", "HOME", "LANG")
        if variable in os.environ
    }
    shown = gpu_environment.environment(A100, 1, folder, None)
    environ |= {
        variable: value for variable, value in shown.items() if variable.startswith("XMEM_DEVICE_")
    }

    if case.values:
        environ["PROBE_FOR_VALUES"] = str(_PROBE)

    def run(*most: str) -> subprocess.CompletedProcess[str]:
        command = [python, _WHOLE, script, stand_ins, *most]
        return subprocess.run(
            command, env=environ, cwd=folder, capture_output=True, text=True, check=False
        )

    ran = run()
    assert ran.returncode == 0, ran.stderr
    peaks = json.loads(ran.stdout.splitlines()[-1])
    version = str(peaks.pop("torch"))
    peaks.pop("gpu")
    if case.varies:
        peaks["fits"] = _least(lambda most: run(str(most)).returncode == 0, peaks)
    return version, peaks


def _least(runs_on: Callable[[int], bool], peaks: Peaks) -> int:
    """Return the least memory on which a script runs, and on all tried up to `_CLEAR` more, too."""
    fails, fits = peaks["allocated"] - 1, round_up(peaks["reserved"], 2 * MIB)
    stride = int(_SEARCH * peaks["allocated"])
    while fits - fails > _SEARCH * fits:
        middle = min((fits + fails) // 2, fails + stride)  # it is near to what was allocated
        if runs_on(middle):
            fits = middle
        else:
            fails, stride = middle, 2 * stride
    more, runs = fits, True
    while more < peaks["reserved"] and (not runs or more < (1 + _CLEAR) * fits):
        more += int(2 * _SEARCH * fits)
        was_running, runs = runs, runs_on(more)
        fits = more if runs and not was_running else fits
    return fits


@dataclass(frozen=True)
class Answer:
    """What one dry run said. `confidence` is "none" where there is no estimate; `reasons` then say
    why.

    `promise` is what torch's allocator is said to need, margin included, in bytes; 0 where nothing
    is."""

    version: str
    peaks: Peaks
    confidence: str
    reasons: tuple[str, ...]
    state: str
    steps: int
    cpu_seconds: float
    promise: int = 0


def dry_run(
    scripts: Listing,
    name: str,
    python: Path,
    folder: Path,
    seconds: float = SECONDS,
    gpu: Gpu = A100,
) -> Answer:
    """Run a script dry as `xsbatch` would for one kind of GPU, with a budget of so many seconds."""
    shutil.copy(scripts.script(name), folder / "train.py")
    job = Job(f"#!/bin/sh\nexec {python} train.py\n".encode(), [], folder, dict(os.environ))
    before = _cpu_seconds()
    try:
        traces = dispatch.here(DryRunOrder.of(job, gpu, Budget(seconds=seconds))).traces
        found = estimate(traces, "a100", gpu)
    except NoEstimate as error:
        return Answer("", {}, "none", (str(error),), "", 0, _cpu_seconds() - before)
    seconds, largest = _cpu_seconds() - before, found.largest
    peaks = {
        "allocated": largest.replay.peak_allocated_bytes,
        "reserved": largest.peak_reserved_bytes,
    }
    if scripts.cases[name].varies:
        peaks["fits"] = largest.fits_in_bytes
    return Answer(
        version=largest.trace.torch_version,
        peaks=peaks,
        confidence=found.confidence,
        reasons=tuple(found.reasons),
        state=largest.trace.state,
        steps=largest.trace.steps,
        cpu_seconds=seconds,
        promise=largest.fits_in_bytes + largest.margin_bytes,
    )


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
