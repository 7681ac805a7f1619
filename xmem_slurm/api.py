"""The Python interface: `estimate` a command, `plan` its training, `submit` a job; sizes are whole bytes.

    import xmem_slurm
    found = xmem_slurm.estimate("train.py --batch-size 16", gpu="l4")
    found.required_bytes, found.choice, found.fits("l4")

Each call runs the command of the same name in a process of its own: a notebook has threads, and a dry run forks.
"""

import contextlib
import html
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from xmem_slurm.errors import NoEstimate, SlurmError, UsageError, XmemError
from xmem_slurm.estimating import asked
from xmem_slurm.report import files
from xmem_slurm.report import html as html_report
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.submission import answers
from xmem_slurm.units import human

__all__ = [
    "Estimate",
    "GpuFit",
    "NoEstimate",
    "Submitted",
    "TrainingPlan",
    "Way",
    "XmemError",
    "estimate",
    "plan",
    "submit",
]

_ERRORS: Mapping[int, type[XmemError]] = {2: UsageError, 3: NoEstimate}
"""By the exit status of the commands."""


@dataclass(frozen=True, slots=True)
class GpuFit:
    """A GPU that the job could have: `fits` is None where a better one fits, and this one was not tried."""

    name: str
    total_bytes: int
    fits: bool | None
    spare_bytes: int


@dataclass(frozen=True)
class Estimate:
    """What a command needs of a GPU, the margin included; `document` is what `xmem-slurm estimate --json` prints.

    `confidence` is "high" or "medium", and `reasons` say why it is not high. `breakdown_bytes` is what is allocated at
    the peak, by category (PARAM, BUFFER, GRAD, ACT, TEMP, OPT, OTH). `choice` names the best of the `options` that
    fits, None where none does. In a notebook an estimate shows its report, chart and all.
    """

    command: tuple[str, ...]
    required_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    margin_bytes: int
    confidence: str
    reasons: tuple[str, ...]
    breakdown_bytes: Mapping[str, int]
    options: tuple[GpuFit, ...]
    choice: str | None
    document: Mapping[str, Any] = field(repr=False)
    _sizing: Sizing | None = field(default=None, repr=False, compare=False)

    def fits(self, name: str) -> bool | None:
        """Whether the job fits this one of the `options`; None where that was not tried.

        Raises:
            KeyError: there is no option of this name.
        """
        return {option.name: option.fits for option in self.options}[name]

    def write(self, path: str | Path) -> None:
        """Write a report: .html, .pickle (torch's snapshot), .trace.json (Perfetto), else JSON.

        Raises:
            OSError: it cannot be written.
            XmemError: there was no room to keep what it would be made of.
        """
        if self._sizing is None:
            raise XmemError("what a report is made of was not kept: is there room in ~/.cache/xmem-slurm?")
        files.write(Path(path), {0: self._sizing})

    def __str__(self) -> str:
        where = f"fits {self.choice}" if self.choice else "fits none of the GPUs in question"
        return f"{human(self.required_bytes)} of GPU memory needed, confidence {self.confidence}; {where}"

    def _repr_html_(self) -> str:
        if self._sizing is None:
            return f"<p>{html.escape(str(self))}</p>"
        page, title = html.escape(html_report.render(self._sizing)), html.escape(str(self))
        return f'<iframe srcdoc="{page}" title="{title}" style="width:100%;height:40em;border:0"></iframe>'


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job in the queue. `told` is what xsbatch and sbatch said of it on stderr, line by line."""

    job_id: int
    cluster: str | None
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """A way of training a job on GPUs of a site that fits, as a dry run of just this way showed.

    `micro_batch` is of one process, None where it is not known. `relative_time` and `relative_cost` are of one sample,
    as multiples of the least, None where they are not known. `variables` and `arguments` make it so, beside the number
    of processes; `changes` say what of the training itself is another by it.
    """

    option: str
    gpus: int
    nodes: int
    method: str
    micro_batch: int | None
    accumulation: int
    checkpointing: bool
    required_bytes: int
    relative_time: float | None
    relative_cost: float | None
    variables: Mapping[str, str]
    arguments: Mapping[str, str]
    changes: tuple[str, ...]


@dataclass(frozen=True)
class TrainingPlan:
    """The ways that fit, best first; `document` is what `xmem-slurm plan --json` prints, with those that do not."""

    command: tuple[str, ...]
    ways: tuple[Way, ...]
    document: Mapping[str, Any] = field(repr=False)


def estimate(
    command: str | Path | Sequence[str],
    *,
    gpu: str | None = None,
    site: str | Path | None = None,
    budget: float | None = None,
    margin: float | None = None,
    engine: str | None = None,
    ranks: str | None = None,
    fresh: bool = False,
    folder: str | Path = ".",
) -> Estimate:
    """Say how much GPU memory a job script, a .py file or a command needs, run in `folder`; nothing is submitted.

    A string is split as a shell does. The keywords are the options of `xmem-slurm estimate`: `gpu` names one of the
    catalogue in place of a site's, `budget` is in CPU seconds, `margin` in percent of each GPU.

    Raises:
        NoEstimate: the dry run gave nothing to estimate from; the message says why.
        UsageError: there is no such command, GPU or site file.
        XmemError: a fault of this machine or of ours.
    """
    words, place = _words(command), None if site is None else Path(site).resolve()
    wanted = {"gpu": gpu, "site": place, "budget": budget, "margin": margin, "engine": engine, "ranks": ranks}
    options = [f"--{name}={value}" for name, value in wanted.items() if value is not None]
    options += ["--fresh"] if fresh else []
    document = _object(["estimate", "--json", *options, "--", *words], folder)
    if "components" in document:
        raise UsageError("a heterogeneous job: `xmem-slurm estimate --json` has its components")
    job = asked.job_of(words, os.environ, Path(folder))
    last = answers.find(job.argv, Path(folder).resolve())
    sizing = None
    if last is not None:
        with contextlib.suppress(XmemError):
            sizing = last.sized()[0]
    return _estimate(words, document, sizing)


def _estimate(command: tuple[str, ...], document: Mapping[str, Any], sizing: Sizing | None) -> Estimate:
    """Return the value of an object of `estimate --json`; `sizing` is what reports are made of."""
    largest = max(document["ranks"], key=lambda rank: int(rank["required_bytes"]))
    options = [
        GpuFit(each["name"], each["capacity_bytes"], each["fits"], each["headroom_bytes"])
        for each in document["options"]
    ]
    return Estimate(
        command=command,
        required_bytes=document["required_bytes"],
        peak_allocated_bytes=largest["peak_allocated_bytes"],
        peak_reserved_bytes=largest["peak_reserved_bytes"],
        margin_bytes=document["margin_bytes"],
        confidence=document["confidence"]["level"],
        reasons=tuple(document["confidence"]["reasons"]),
        breakdown_bytes=largest["breakdown"],
        options=tuple(options),
        choice=document["choice"],
        document=document,
        _sizing=sizing,
    )


def plan(
    command: str | Path | Sequence[str],
    *,
    gpus: str | int | None = None,
    on: Sequence[str] = (),
    objective: str | None = None,
    allow: Sequence[str] = (),
    forbid: Sequence[str] = (),
    keep_global_batch: bool = True,
    top: int | None = None,
    vary: str | None = None,
    site: str | Path | None = None,
    budget: float | None = None,
    fresh: bool = False,
    write: str | Path | None = None,
    folder: str | Path = ".",
) -> TrainingPlan:
    """Say how a job script, a .py file or a command could be trained on a site's GPUs; nothing is submitted.

    The keywords are the options of `xmem-slurm plan`; `write` names a file for the script of the first way.

    Raises:
        NoEstimate: it cannot be run dry, or none of the ways that were looked at fits.
        UsageError: there is no such command, option of the site or method.
        XmemError: a fault of this machine or of ours.
    """
    place, file = (None if each is None else Path(each).resolve() for each in (site, write))
    wanted = {"gpus": gpus, "objective": objective, "top": top, "vary": vary, "site": place, "budget": budget}
    wanted |= {"on": ",".join(on) or None, "allow": ",".join(allow) or None, "forbid": ",".join(forbid) or None}
    options = [f"--{name}={value}" for name, value in {**wanted, "write": file}.items() if value is not None]
    options += [] if keep_global_batch else ["--any-global-batch"]
    options += ["--fresh"] if fresh else []
    words = _words(command)
    document = _object(["plan", "--json", *options, "--", *words], folder)
    ways = [
        Way(**{each.name: candidate[each.name] for each in fields(Way)} | {"changes": tuple(candidate["changes"])})
        for candidate in document["candidates"]
        if candidate["status"] == "verified"
    ]
    return TrainingPlan(words, tuple(ways), document)


def submit(script: str | Path, *arguments: str, options: Sequence[str] = (), folder: str | Path = ".") -> Submitted:
    """Submit a job script from `folder` as `xsbatch` does; `options` are sbatch's and xsbatch's own, as typed.

    Raises:
        SlurmError: it was not submitted; the message carries Slurm's own words.
    """
    done = _run("xsbatch", ["--parsable", *options, str(script), *arguments], folder)
    said = tuple(done.stderr.splitlines())
    job, _, cluster = done.stdout.strip().partition(";")
    if done.returncode or not job.isdecimal():
        raise SlurmError("; ".join(said) or f"xsbatch ended with {done.returncode}")
    return Submitted(int(job), cluster or None, said)


def _words(command: str | Path | Sequence[str]) -> tuple[str, ...]:
    several = shlex.split(command) if isinstance(command, str) else [command] if isinstance(command, Path) else command
    return tuple(map(str, several))


def _object(argv: Sequence[str], folder: str | Path) -> Any:
    """Return the object that a command prints.

    Raises:
        XmemError: it failed; of the kind that its exit status says.
    """
    done = _run("main", argv, folder)
    if done.returncode:
        error = _ERRORS.get(done.returncode, XmemError)
        raise error(done.stderr.strip().rpartition("\n")[2].removeprefix("xmem-slurm: "))
    return json.loads(done.stdout)


def _run(module: str, argv: Sequence[str], folder: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", f"from xmem_slurm.cli.{module} import main; main()", *argv]
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
