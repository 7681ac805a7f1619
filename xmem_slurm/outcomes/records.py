"""What did the processes of finished jobs write (`recorder/`), and what does it say of each job?

The files lie in a folder of the user's own, and in the site's where it names one, a sticky one in
which each user has files that nobody else can write. Whoever reads them trusts nothing in them: a
line that is not of the form is passed over. Read on the way of jobs that must not wait, so this
imports little.
"""

import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from xmem_slurm.outcomes import fields, prediction
from xmem_slurm.outcomes.prediction import Prediction
from xmem_slurm.rewriting import job_steps
from xmem_slurm.slurm import programs
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files

MOST_BYTES = 8 << 20
"""No more is read of a file; the recorder stops at half of it."""
MOST_FILES = 2000
KEPT_DAYS = 400
_SALT = "salt"
_NAME = re.compile(r"(\d+)-[^/]*\.jsonl")
_DAY = 86_400
STATES = ("running", "exit", "error", "oom")
_OF_NO_SUCH_FORM = (ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What is raised of a line that no recorder has written."""


class UsedGpu(NamedTuple):
    """What a process took of a GPU, in bytes: its allocator's peaks; at the end also what was
    `used` of it in all.

    `limit` is what the allocator could have had at the end; `used` and `limit` are None where the
    driver did not say.
    """

    name: str
    capability: str
    total: int
    reserved: int
    allocated: int
    retries: int
    ooms: int
    used: int | None
    limit: int | None


class HostPeak(NamedTuple):
    """Peaks of host memory, in bytes, and what the job `asked` for on that node; None if not known.

    They are of the `process`, of the largest of its `children` that have ended, and of its `step`
    of the job on that node, with what the kernel keeps of files for it.
    """

    process: int | None
    children: int | None
    step: int | None
    asked: int | None

    @property
    def largest(self) -> int:
        """The peak of the largest process."""
        return max(self.process or 0, self.children or 0)


class RecordedProcess(NamedTuple):
    """The last line of a process. `array` is as `4711_3`, empty where the job is none.

    `host_memory` is None in lines of recorders that did not look at it.
    """

    user: int
    job: str
    array: str
    host: str
    process: int
    rank: int
    world: int
    began: float
    time: float
    state: str
    torch: str
    devices: Sequence[UsedGpu]
    prediction: Prediction | None
    host_memory: HostPeak | None


@dataclass(frozen=True)
class JobOutcome:
    """What became of a job, by the lines of its processes that started CUDA.

    Of one that was killed or crashed soon after that there is no more than the line that says so:
    it has no `devices`.
    """

    processes: Sequence[RecordedProcess]

    @property
    def job(self) -> str:
        """Its number, as Slurm's commands take it."""
        return self.processes[0].array or self.processes[0].job

    @property
    def user(self) -> int:
        """Whose it was."""
        return self.processes[0].user

    @property
    def began(self) -> float:
        """When its first process began to use a GPU, in seconds since the epoch."""
        return min(process.began for process in self.processes)

    @property
    def ended(self) -> float:
        """When the last of its processes was heard of."""
        return max(process.time for process in self.processes)

    @cached_property
    def prediction(self) -> Prediction | None:
        """What was predicted of it; None where it was not sized."""
        return next(
            (process.prediction for process in self.processes if process.prediction is not None),
            None,
        )

    @cached_property
    def device(self) -> UsedGpu:
        """The GPU of which the most was taken: of the process that ran out, where one did.

        Raises:
            ValueError: no process was seen to use one (`used_gpu`).
        """
        used = [process for process in self.processes if process.devices]
        failed = [process for process in used if process.state == "oom"]
        devices = (device for process in failed or used for device in process.devices)
        return max(devices, key=lambda device: device.reserved)

    @property
    def used_gpu(self) -> bool:
        """Whether a process was seen to use a GPU: else nothing is known but how it ended."""
        return any(process.devices for process in self.processes)

    @property
    def ran_out(self) -> bool:
        """Whether a process ended for want of GPU memory."""
        return any(process.state == "oom" for process in self.processes)

    @property
    def caught_oom(self) -> bool:
        """Whether a process was refused GPU memory, and did not end by that: it went on with less,
        or gave up.
        """
        return not self.ran_out and any(
            device.ooms for process in self.processes for device in process.devices
        )

    @property
    def finished(self) -> bool:
        """Whether it ran to the end that it had, and had all it wanted; any other may need more
        than it took.
        """
        return all(process.state == "exit" for process in self.processes) and not self.caught_oom

    @property
    def limit_bytes(self) -> int:
        """What torch's allocator could have had of that GPU beside all else on it: who ran out
        needed more.
        """
        return max(self.device.limit or 0, self.device.reserved)


def folder() -> Path:
    """Return where the user's outcomes are; there need be none."""
    return own_files.record_folder("outcomes")


def make_folder() -> Path:
    """Make it, clear what is old out of it, and return it.

    Raises:
        OSError: it cannot be made, or others could write there.
    """
    place = own_files.make(folder())
    for index, (age, path) in enumerate(own_files.by_age(place)):
        if path.name != _SALT and (age > KEPT_DAYS * _DAY or index >= MOST_FILES):
            path.unlink(missing_ok=True)
    return place


def key_of_script(job: Submission, place: Path) -> str:
    """Return what stands for a job's script: for the programs that it runs, so that a sweep is one,
    or for its text.

    Of this and `key_of_run` nobody else can tell what it stands for: the salt is the user's own and
    lies in `place`. Options of sbatch do not count.

    Raises:
        OSError: there is no salt there, and none can be made.
    """
    job_programs: Sequence[str] = ()
    if job_steps.is_for_a_shell(job):
        job_programs = programs.programs(
            job_steps.text(job), Path(job.request.chdir or ".").absolute()
        )
    return _key(job_programs or [_text(job)], place)


def key_of_run(job: Submission, place: Path) -> str:
    """Return what stands for a job's script with the arguments that it gets.

    Raises:
        OSError: there is no salt there, and none can be made.
    """
    index = job.command_line.script_index
    return _key([_text(job), *(() if index is None else job.argv[index + 1 :])], place)


def _text(job: Submission) -> str:
    return job.command_line.wrap or (job.script or b"").hex()


def _key(parts: Sequence[str], place: Path) -> str:
    try:
        salt = own_files.read(place / _SALT, 100)
    except FileNotFoundError:
        salt = os.urandom(16).hex().encode()
        own_files.write(place / _SALT, salt)
    return hashlib.sha256(salt + json.dumps(parts).encode()).hexdigest()[:24]


def begun(place: Path, user: int | None = None, wanted: bytes = b"") -> list[JobOutcome]:
    """Return what is known of each job that started CUDA, the latest last.

    They are of one user, or of all; `wanted` stands in each line that is read.

    Raises:
        OSError: the folder cannot be read.
    """
    last = dict[tuple[int, str, str, int, float], RecordedProcess]()
    for process in _last_of_each(place, user, wanted):
        key = process.user, process.job, process.host, process.process, process.began
        if key not in last or last[key].time <= process.time:
            last[key] = process
    jobs = dict[tuple[int, str], list[RecordedProcess]]()
    for process in last.values():
        if process.job:
            jobs.setdefault((process.user, process.job), []).append(process)
    return sorted(
        (JobOutcome(members) for members in jobs.values()), key=lambda outcome: outcome.ended
    )


def outcomes(place: Path, user: int | None = None, wanted: bytes = b"") -> list[JobOutcome]:
    """Return what `begun` does, of the jobs alone that were seen to use a GPU.

    Raises:
        OSError: the folder cannot be read.
    """
    return [outcome for outcome in begun(place, user, wanted) if outcome.used_gpu]


def merged(*lists: Iterable[JobOutcome]) -> list[JobOutcome]:
    """Return each job once, the latest last."""
    latest = {(outcome.user, outcome.job): outcome for members in lists for outcome in members}
    return sorted(latest.values(), key=lambda outcome: outcome.ended)


def since(jobs: Iterable[JobOutcome], days: float) -> list[JobOutcome]:
    """Return the jobs that ended within the last days."""
    return [job for job in jobs if job.ended >= time.time() - days * _DAY]


def _last_of_each(place: Path, user: int | None, wanted: bytes) -> Iterator[RecordedProcess]:
    """Yield the last line of each process in each file."""
    # The ranks and tasks of a job share what was predicted of it: each is checked once.
    predictions = dict[str, Prediction]()
    for path in sorted(place.iterdir()):
        named = _NAME.fullmatch(path.name)
        if named is None or (user is not None and int(named[1]) != user):
            continue
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with suppress(OSError), os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != int(named[1]):
                continue
            lines = (line for line in file.read(MOST_BYTES).splitlines() if wanted in line)
            for of_process in _by_process(lines):
                for line in reversed(of_process):
                    with suppress(*_OF_NO_SUCH_FORM):
                        yield _process(status.st_uid, json.loads(line), predictions)
                        break


def _by_process(lines: Iterable[bytes]) -> Iterator[Sequence[bytes]]:
    """Yield the lines of each process, the latest last.

    Nothing is checked but the times by which they are in order: of a long job each line is said
    again by the next, and only the last is needed. Their text is kept rather than what stands in
    it, which takes several times the memory.
    """
    heard = dict[tuple[Any, ...], list[tuple[float, int, bytes]]]()
    for index, line in enumerate(lines):
        with suppress(*_OF_NO_SUCH_FORM):
            content = json.loads(line)
            key = content["job"], content["host"], content["process"], content["began"]
            heard.setdefault(key, []).append((fields.moment(content["time"]), index, line))
    for of_process in heard.values():
        yield [line for _, _, line in sorted(of_process)]


def _process(
    user: int, line: Mapping[str, Any], predictions: dict[str, Prediction]
) -> RecordedProcess:
    """Return what a line says; `predictions` are those of earlier lines, by what stood there.

    Raises:
        ValueError, LookupError, TypeError: it is of no such form.
    """
    if line["state"] not in STATES:
        raise ValueError("no such state")
    began, heard = fields.moment(line["began"]), fields.moment(line["time"])
    if heard < began:
        raise ValueError("heard of before it began")
    predicted, host_memory = line["prediction"], line.get("host_memory")
    return RecordedProcess(
        user,
        fields.word(line["job"]),
        fields.word(line["array"]),
        fields.word(line["host"]),
        fields.whole(line["process"]),
        fields.whole(line["rank"]),
        fields.whole(line["world"]),
        began,
        heard,
        line["state"],
        fields.word(line["torch"]),
        [_device(device) for device in line["devices"]],
        None if predicted is None else _prediction(predicted, predictions),
        None if host_memory is None else _host_memory(host_memory),
    )


def _prediction(content: Mapping[str, Any], predictions: dict[str, Prediction]) -> Prediction:
    text = repr(content)  # which is another one for every other value of JSON
    if text not in predictions:
        predictions[text] = prediction.parse(content)
    return predictions[text]


def _host_memory(content: Mapping[str, Any]) -> HostPeak:
    sizes = (content.get(name) for name in HostPeak._fields)
    return HostPeak(*(None if size is None else fields.size(size) for size in sizes))


def _device(content: Mapping[str, Any]) -> UsedGpu:
    counts = ("total", "reserved", "allocated", "retries", "ooms")
    at_the_end = (content.get(name) for name in ("used", "limit"))
    return UsedGpu(
        fields.name(content["name"]),
        fields.word(content["capability"]),
        *(fields.size(content[name]) for name in counts),
        *(None if size is None else fields.size(size) for size in at_the_end),
    )
