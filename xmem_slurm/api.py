"""The Python interface: `estimate` a command, `plan` its training, `submit` a job; sizes are whole
bytes.

    import xmem_slurm
    found = xmem_slurm.estimate("train.py --batch-size 16", gpu="l4")
    found.required_gib, found.choice, found.fits("l4")

Each call runs the command of the same name in a process of its own: a notebook has threads, and a
dry run forks. Where somebody looks on, in a notebook or at a terminal, one line says meanwhile
where it is, and is gone in the end.
"""

import contextlib
import html
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TextIO

from xmem_slurm.errors import NoEstimate, SlurmError, UsageError, XmemError
from xmem_slurm.estimating import asked
from xmem_slurm.report import columns, files
from xmem_slurm.report import html as html_report
from xmem_slurm.report.categories import CATEGORY_NAMES
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.submission import answers
from xmem_slurm.trace import Category
from xmem_slurm.units import GIB, human

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

_OURS = "xmem-slurm: "
"""How a line of ours begins on stderr."""

_NEWS_SECONDS = 1.0
"""Between two states of the line that says where a command is."""

_LINE_WIDTH = 79
"""Letters of that line: a longer one would break, and stay."""

_FRAME = """\
<iframe srcdoc="{page}" title="{title}"
 style="width:100%;height:56em;border:0;resize:vertical"
 onload="const d = this.contentDocument, c = d.querySelector('figure.chart');
  const bottom = c.getBoundingClientRect().bottom + d.defaultView.scrollY;
  this.style.height = Math.ceil(bottom) + 24 + 'px'"></iframe>"""
"""A page within a notebook: as high as its first chart needs, or by the notebook's own letters
without a script."""


@dataclass(frozen=True, slots=True)
class GpuFit:
    """A GPU that the job could have: `fits` is None where it was not tried, as a better one fits or
    no time was left.
    """

    name: str
    total_bytes: int
    fits: bool | None
    spare_bytes: int

    @property
    def total_gib(self) -> float:
        """All of its memory, in GiB."""
        return self.total_bytes / GIB

    @property
    def spare_gib(self) -> float:
        """What the job leaves of it, in GiB."""
        return self.spare_bytes / GIB


@dataclass(frozen=True)
class Estimate:
    """What a command needs of a GPU, the margin included; `document` is what `xmem-slurm estimate
    --json` prints.

    `confidence` is "high" or "medium", and `reasons` say why it is not high. `breakdown_bytes` is
    what is allocated at the peak, by category (PARAM, BUFFER, GRAD, ACT, TEMP, OPT, OTH);
    `breakdown_gib` has their names in full. `choice` names the best of the `options` that fits,
    None where none does. In a notebook an estimate shows its report.
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

    @property
    def required_gib(self) -> float:
        """What each GPU must have, the margin included, in GiB."""
        return self.required_bytes / GIB

    @property
    def peak_allocated_gib(self) -> float:
        """The most that tensors hold at once, in GiB."""
        return self.peak_allocated_bytes / GIB

    @property
    def peak_reserved_gib(self) -> float:
        """The most that torch's allocator reserves, in GiB."""
        return self.peak_reserved_bytes / GIB

    @property
    def margin_gib(self) -> float:
        """The part of `required_gib` that is for what a dry run cannot see."""
        return self.margin_bytes / GIB

    @property
    def breakdown_gib(self) -> Mapping[str, float]:
        """What is allocated at the peak, in GiB, by the categories' names in full ("activations"),
        the most first.
        """
        sizes = sorted(self.breakdown_bytes.items(), key=lambda entry: entry[1], reverse=True)
        return {CATEGORY_NAMES[Category(category)]: size / GIB for category, size in sizes}

    def fits(self, name: str) -> bool | None:
        """Whether the job fits this one of the `options`; None where that was not tried.

        Raises:
            UsageError: there is no option of this name; the message has those that there are.
        """
        by_name = {option.name: option.fits for option in self.options}
        if name not in by_name:
            raise UsageError(
                f"{name}: not one of the GPUs in question: {', '.join(by_name) or 'there is none'}"
            )
        return by_name[name]

    def write(self, path: str | Path) -> None:
        """Write a report: .html, .pickle (torch's snapshot), .trace.json (Perfetto), else JSON.

        Raises:
            OSError: it cannot be written.
            XmemError: there was no room to keep what it would be made of.
        """
        if self._sizing is None:
            raise XmemError(
                "what a report is made of was not kept: is there room in ~/.cache/xmem-slurm?"
            )
        files.write(Path(path), {0: self._sizing})

    def __str__(self) -> str:
        where = f"fits {self.choice}" if self.choice else "fits none of the GPUs in question"
        return (
            f"{human(self.required_bytes)} of GPU memory needed, confidence {self.confidence}; "
            f"{where}"
        )

    def _repr_html_(self) -> str:
        if self._sizing is None:
            return f"<p>{html.escape(str(self))}</p>"
        page, title = html.escape(html_report.render(self._sizing)), html.escape(str(self))
        return _FRAME.format(page=page, title=title)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job in the queue. `told` is what xsbatch and sbatch said of it on stderr, line by line."""

    job_id: int
    cluster: str | None
    told: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """A way of training a job on GPUs of a site that fits, as a dry run of just this way showed.

    `micro_batch` is of one process, None where it is not known. `relative_time` and `relative_cost`
    are of one sample, as multiples of the least, None where they are not known. `variables` and
    `arguments` make it so, beside the number of processes; `changes` say what of the training
    itself is another by it.
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

    @property
    def required_gib(self) -> float:
        """What each GPU must have, the margin included, in GiB."""
        return self.required_bytes / GIB


@dataclass(frozen=True)
class TrainingPlan:
    """The ways that fit, best first; `document` is what `xmem-slurm plan --json` prints, with those
    that do not.
    """

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
    policy: str | None = None,
    engine: str | None = None,
    ranks: str | None = None,
    array_tasks: str | None = None,
    fresh: bool = False,
    folder: str | Path = ".",
) -> Estimate:
    """Say how much GPU memory a job script, a .py file or a command needs, run in `folder`; nothing
    is submitted.

    A string is split as a shell does. The keywords are the options of `xmem-slurm estimate`: `gpu`
    names one of the catalogue in place of a site's, `budget` is in CPU seconds, `margin` in percent
    of each GPU; `ranks` and `array_tasks` are lists as typed there ("0,3").

    Raises:
        NoEstimate: the dry run gave nothing to estimate from; the message says why.
        UsageError: there is no such command, GPU or site file.
        XmemError: a fault of this machine or of ours.
    """
    words, place = _words(command), None if site is None else Path(site).resolve()
    wanted = {
        "gpu": gpu,
        "site": place,
        "budget": budget,
        "margin": margin,
        "policy": policy,
        "engine": engine,
        "ranks": ranks,
        "array-tasks": array_tasks,
    }
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


def _estimate(
    command: tuple[str, ...], document: Mapping[str, Any], sizing: Sizing | None
) -> Estimate:
    """Return the value of an object of `estimate --json`; `sizing` is what reports are made of."""
    largest = max(document["ranks"], key=lambda rank: int(rank["required_bytes"]))
    options = [
        GpuFit(option["name"], option["capacity_bytes"], option["fits"], option["headroom_bytes"])
        for option in document["options"]
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
    on: str | Sequence[str] = (),
    objective: str | None = None,
    allow: str | Sequence[str] = (),
    forbid: str | Sequence[str] = (),
    keep_global_batch: bool = True,
    top: int | None = None,
    vary: str | None = None,
    site: str | Path | None = None,
    budget: float | None = None,
    margin: float | None = None,
    fresh: bool = False,
    write: str | Path | None = None,
    folder: str | Path = ".",
) -> TrainingPlan:
    """Say how a job script, a .py file or a command could be trained on a site's GPUs; nothing is
    submitted.

    The keywords are the options of `xmem-slurm plan`; `write` names a file for the script of the
    first way.

    Raises:
        NoEstimate: it cannot be run dry, or none of the ways that were looked at fits.
        UsageError: there is no such command, option of the site or method.
        XmemError: a fault of this machine or of ours.
    """
    place, file = (None if path is None else Path(path).resolve() for path in (site, write))
    wanted = {
        "gpus": gpus,
        "objective": objective,
        "top": top,
        "vary": vary,
        "site": place,
        "budget": budget,
        "margin": margin,
    }
    wanted |= {
        name: _list(value) for name, value in (("on", on), ("allow", allow), ("forbid", forbid))
    }
    options = [
        f"--{name}={value}"
        for name, value in {**wanted, "write": file}.items()
        if value is not None
    ]
    options += [] if keep_global_batch else ["--any-global-batch"]
    options += ["--fresh"] if fresh else []
    words = _words(command)
    document = _object(["plan", "--json", *options, "--", *words], folder)
    ways = [
        Way(
            **{field.name: candidate[field.name] for field in fields(Way)}
            | {"changes": tuple(candidate["changes"])}
        )
        for candidate in document["candidates"]
        if candidate["status"] == "verified"
    ]
    return TrainingPlan(words, tuple(ways), document)


def submit(
    script: str | Path, *arguments: str, options: str | Sequence[str] = (), folder: str | Path = "."
) -> Submitted:
    """Submit a job script from `folder` as `xsbatch` does; `options` are sbatch's and xsbatch's
    own, as typed.

    A string of options is split as a shell does.

    Raises:
        SlurmError: it was not submitted; the message carries Slurm's own words.
    """
    completed = _run("xsbatch", ["--parsable", *_words(options), str(script), *arguments], folder)
    lines = tuple(completed.stderr.splitlines())
    job, _, cluster = completed.stdout.strip().partition(";")
    if completed.returncode or not job.isdecimal():
        raise SlurmError("; ".join(lines) or f"xsbatch ended with {completed.returncode}")
    return Submitted(int(job), cluster or None, lines)


def _words(command: str | Path | Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str):
        return tuple(shlex.split(command))
    if isinstance(command, Path):
        return (str(command),)
    return tuple(map(str, command))


def _list(several: str | Sequence[str]) -> str | None:
    """Return the value of an option that takes several, as the command line has it; None of
    none.
    """
    return (several if isinstance(several, str) else ",".join(several)) or None


def _object(argv: Sequence[str], folder: str | Path) -> Any:
    """Return the object that a command prints.

    Raises:
        XmemError: it failed; of the kind that its exit status says.
    """
    completed = _run("main", argv, folder)
    if completed.returncode:
        error = _ERRORS.get(completed.returncode, XmemError)
        raise error(
            _message(completed.stderr) or f"xmem-slurm {argv[0]} ended with {completed.returncode}"
        )
    return json.loads(completed.stdout)


def _message(stderr: str) -> str:
    """Return the error that a command ended with, in one line again; of a fault of ours the last of
    its traceback.
    """
    whole = f"\n{stderr}".rstrip().replace(f"\n{_OURS}{columns.INDENT}", " ")
    _, ours, message = whole.rpartition(f"\n{_OURS}")
    return message if ours and "\nTraceback " not in message else message.rpartition("\n")[2]


def _run(module: str, argv: Sequence[str], folder: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, and show meanwhile where it is.

    What it says of that is in its stderr, too; not of xsbatch, whose lines are the caller's.
    """
    code = f"from xmem_slurm.cli.{module} import main; main()"
    if module != "xsbatch":
        telling = f"terminal.tell_every({_NEWS_SECONDS})"
        code = f"from xmem_slurm.report import terminal; {telling}; {code}"
    command = [sys.executable, "-P", "-c", code, *argv]
    with tempfile.TemporaryFile() as stderr_file, _shown(stderr_file.fileno()):
        completed = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr_file,
            check=False,
        )
        stderr_file.seek(0)
        return subprocess.CompletedProcess(
            command,
            completed.returncode,
            completed.stdout.decode(),
            stderr_file.read().decode(errors="replace"),
        )


def _onlooker() -> TextIO | None:
    """Return where a line is seen that overwrites itself: in a notebook's cell, or at a
    terminal.
    """
    ipython = sys.modules.get("IPython")
    if ipython is not None and hasattr(ipython.get_ipython(), "kernel"):
        return sys.stdout  # a notebook shows stderr as if something were wrong
    return sys.stderr if sys.stderr.isatty() else None


@contextlib.contextmanager
def _shown(file: int) -> Iterator[None]:
    """Show meanwhile the last line that a command wrote to a file, or for how long it runs, if
    somebody looks on.
    """
    screen, ended, began = _onlooker(), threading.Event(), time.monotonic()
    if screen is None:
        yield
        return

    def show() -> None:
        width = 0
        while not ended.wait(_NEWS_SECONDS):
            line = (_last_line(file) or f"running: {time.monotonic() - began:.0f} s")[:_LINE_WIDTH]
            screen.write(f"\r{line:{width}}")
            screen.flush()
            width = len(line)
        screen.write(f"\r{'':{width}}\r" if width else "")
        screen.flush()

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        ended.set()
        shower.join()


def _last_line(file: int) -> str:
    """Return the last line of a file that another process writes to, whose place in it stays where
    it is.
    """
    size = os.fstat(file).st_size
    end = os.pread(file, 1000, max(0, size - 1000)).decode(errors="replace")
    return end.rstrip().rpartition("\n")[2].removeprefix(_OURS)
