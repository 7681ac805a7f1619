"""What does the product estimate for each real figure? A job for each run, a line of JSON for each
row it answers.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import repeat
from pathlib import Path

from benchmarks.published_dry_runs import torch_version
from benchmarks.real_runs.rows import Row
from xmem_slurm import __version__
from xmem_slurm.dryrun import dispatch
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.errors import XmemError
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.sizing import sizing
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.sizing.premises import Premises
from xmem_slurm.slurm.submission import Submission


def peak(row: Row, estimate: Estimate) -> int:
    """Return the peak over the whole job, of the rank that needs the most, in bytes: allocated or
    reserved.
    """
    rank = estimate.largest
    return {"allocated": rank.replay.peak_allocated_bytes, "reserved": rank.peak_reserved_bytes}[
        _counted(row)
    ]


def peak_between_resets(row: Row, estimate: Estimate, number: int = -1) -> int:
    """Return the peak up to a reset by the script (reset_peak_memory_stats), -1: since the last
    one.
    """
    return estimate.largest.trace.between_resets[number][f"{_counted(row)}_bytes"]


def _counted(row: Row) -> str:
    """Return what a row counts.

    Raises:
        ValueError: neither of the two that are known of the allocator.
    """
    found = [word for word in ("allocated", "reserved") if word in row.metric]
    if len(found) != 1:
        raise ValueError(f"metric {row.metric!r} is neither what is allocated nor what is reserved")
    return found[0]


def gpu_of(row: Row) -> str:
    """Return what the catalogue calls a row's GPU: that which CUDA calls so, else the largest whose
    name has its words.

    Raises:
        ValueError: it has none of that name.
    """
    said, words = row.columns["gpu"], set(re.findall(r"\w+", row.columns["gpu"].lower()))
    gpus = {name: gpu for name, gpu in load_catalogue().items() if gpu.mig_of is None}
    like = [
        name
        for name, gpu in gpus.items()
        if words and words <= set(re.findall(r"\w+", gpu.cuda_name.lower()))
    ]
    if not like:
        raise ValueError(f"site-config/gpus.toml has no GPU that CUDA calls {said!r}")
    return max(like, key=lambda name: (gpus[name].cuda_name == said, gpus[name].total_bytes))


def no_history(_row: Row, _estimate: Estimate) -> str:
    """Say nothing: where no real allocator history was published, none can be compared."""
    return ""


@dataclass(frozen=True)
class Run:
    """A job, and the rows that it answers.

    `script` is a batch script for bash, with the `#SBATCH` lines that it needs; `python` and
    `torchrun` in it are those of the Python whose torch is nearest to the release `torch`. `folder`
    is its working directory, `gpu` a name of the catalogue. `answer` and `parting` go to another
    process: functions of a module, or partials of them. `parting` says where a published allocator
    history and ours first part, "" where nothing is to be said.
    """

    key: str
    rows: Sequence[Row]
    script: str
    folder: Path
    gpu: str
    torch: str
    answer: Callable[[Row, Estimate], int] = peak
    parting: Callable[[Row, Estimate], str] = no_history
    environ: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 300
    """What the dry runs may take."""


@dataclass(frozen=True)
class Result:
    """The product on one row (sizes in bytes), or the `reason` why it says nothing. A line says all
    that a page needs.

    `required_bytes` has what lies outside of torch's allocator, `outside_allocator_bytes`, in it.
    """

    key: str
    source: str
    metric: str
    ground_bytes: int
    date: str
    torch: str
    version: str
    gpu: str
    seconds: float
    reason: str | None = None
    estimated_bytes: int = 0
    required_bytes: int = 0
    outside_allocator_bytes: int = 0
    confidence: str = ""
    doubts: Sequence[str] = ()
    engine: str = ""
    steps: int = 0
    state: str = ""
    parting: str = ""

    @property
    def error(self) -> float:
        """The signed relative error."""
        return self.estimated_bytes / self.ground_bytes - 1

    @property
    def falls_short(self) -> bool:
        """Whether less is required than there was: of the allocator, but where nvidia-smi saw the
        whole process.
        """
        outside = 0 if self.metric.startswith("nvidia-smi") else self.outside_allocator_bytes
        return self.required_bytes - outside < self.ground_bytes


def load(path: Path) -> dict[str, Result]:
    """Read the results so far, by the row's key; the last line of a key holds."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {result.key: result for result in (Result(**json.loads(line)) for line in lines)}


def run_missing(
    runs: Iterable[Run], pythons: Mapping[str, str], path: Path, jobs: int
) -> Iterator[tuple[Run, list[Result]]]:
    """Size every run of which a row has no estimate in `path`, append the results to it at once,
    and yield them.

    `pythons` are the jobs' Pythons by release of torch (`by_release`).
    """
    done = {key for key, result in load(path).items() if result.reason is None}
    missing = [run for run in runs if any(row.key not in done for row in run.rows)]
    path.parent.mkdir(parents=True, exist_ok=True)
    pool: Executor | nullcontext[None] = ProcessPoolExecutor(jobs) if jobs > 1 else nullcontext()
    with pool as executor, path.open("a", encoding="utf-8") as file:
        each = executor.map if executor is not None else map
        for run, results in zip(missing, each(size, missing, repeat(pythons)), strict=True):
            file.writelines(json.dumps(asdict(result)) + "\n" for result in results)
            file.flush()
            yield run, results


def size(run: Run, pythons: Mapping[str, str]) -> list[Result]:
    """Size one run as the product would on a machine without a GPU, and answer its rows."""
    started, release = time.monotonic(), nearest(run.torch, pythons)

    def result(row: Row, **found: object) -> Result:
        seconds = round(time.monotonic() - started, 2)
        date = time.strftime("%Y-%m-%d", time.gmtime())
        about = (
            row.key,
            row.source,
            row.metric,
            row.ground_bytes,
            date,
            release,
            __version__,
            run.gpu,
            seconds,
        )
        return Result(*about, **found)  # type: ignore[arg-type]

    try:
        estimate = _estimate(run, pythons[release])
    except Exception as error:
        return [result(row, reason=_words(error)) for row in run.rows]

    def answered(row: Row) -> Result:
        try:
            return result(row, **_found(run, row, estimate))
        except Exception as error:
            return result(
                row, reason=f"the dry run does not show what this row is of: {_words(error)}"
            )

    return [answered(row) for row in run.rows]


def _found(run: Run, row: Row, estimate: Estimate) -> dict[str, object]:
    """Return the fields of a row's result that an estimate gives."""
    rank = estimate.largest
    return {
        "estimated_bytes": run.answer(row, estimate),
        "required_bytes": estimate.required_bytes,
        "outside_allocator_bytes": rank.outside_allocator_bytes,
        "confidence": estimate.confidence,
        "doubts": sorted({doubt.code for doubt in estimate.doubts}),
        "engine": estimate.engine,
        "steps": rank.trace.steps,
        "state": rank.trace.state,
        "parting": run.parting(row, estimate),
    }


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, XmemError) else f"{type(error).__name__}: {error}"


def _estimate(run: Run, python: str) -> Estimate:
    """Return what the product says of a run.

    Raises:
        XmemError: it says nothing.
    """
    environ = {**os.environ, **run.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}
    job = Submission(("--chdir", str(run.folder), "run.sh"), environ, run.script.encode())
    on_one = Premises(None, {run.gpu: load_catalogue()[run.gpu]}, Budget(run.seconds))
    orders = sizing.size_components(job, [0], on_one)
    (sized,) = dispatch.one(orders, DryRuns()).values()
    if isinstance(sized, XmemError):
        raise sized
    return sized.estimate


def by_release(pythons: Sequence[str]) -> dict[str, str]:
    """Return the Pythons by the release of their torch."""
    return {
        torch_version(python).partition("+")[0]: str(Path(python).absolute()) for python in pythons
    }


def nearest(wanted: str, releases: Iterable[str]) -> str:
    """Return the release that is nearest to the one wanted; of two, the newer. A nightly is like
    its release.

    Where it is not said which is wanted, that is the newest.
    """

    def numbers(release: str) -> tuple[int, int, int]:
        found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", release)
        major, minor, patch = map(int, found.groups("0")) if found else [sys.maxsize] * 3
        return major, minor, patch

    def apart(release: str) -> tuple[object, ...]:
        there, here = numbers(release), numbers(wanted)
        return *(abs(one - other) for one, other in zip(there, here, strict=True)), [
            -each for each in there
        ]

    return min(releases, key=apart)
