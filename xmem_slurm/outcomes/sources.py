"""What is known of finished jobs where no recorder ran: Slurm's accounting, jobstats' summaries,
the job's own output.

Each says less than a recorder, and how much less stands with it (`LIMITS`); a recorder's figures go
before all of them. Nothing is written anywhere: a job's AdminComment is jobstats' own.
"""

import base64
import gzip
import json
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any, NamedTuple

from xmem_slurm.cluster import client
from xmem_slurm.errors import SlurmError

SACCT_SECONDS = 120.0
LIMITS: Mapping[str, str] = {
    "jobstats": "sampled, the largest of all nodes and GPUs, with what other processes took",
    "sacct": "gres/gpumem: sampled, one GPU alone, not of a MIG instance",
    "output": "torch's own message: it ran out, of how much is not known",
}
_FIELDS = (
    "JobIDRaw",
    "JobID",
    "User",
    "JobName",
    "State",
    "ElapsedRaw",
    "AllocTRES",
    "TRESUsageInMax",
    "AdminComment",
    "WorkDir",
    "TRESUsageInTot",
)
_AS_FIELDS = ("--noheader", "--parsable2", "--delimiter=\x1f")
_MOST_COMMENT = 1 << 20
_WRAPPED = "wrap"
"""The name of a job of `sbatch --wrap`, if it was given none (sbatch(1), --job-name)."""
_GPU = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_GPU_MEMORY = re.compile(r"gres/gpumem=(\d+)([KMGT]?)")
_HOST_MEMORY = re.compile(r"(?:^|,)mem=(\d+(?:\.\d+)?)([KMGT]?)")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_OUT_OF_MEMORY = re.compile(
    r"OutOfMemoryError: CUDA out of memory\. Tried to allocate [\d.]+ [KMG]iB\. "
    r"GPU \d+ has a total capacity of ([\d.]+) GiB"
)


class Accounted(NamedTuple):
    """A job as Slurm's accounting has it. `number` is Slurm's own, `job` as its commands take it
    (`4711_3`).

    `gpus` has how many it had of each type, "" where the type is not known. `used_bytes` is what
    was taken of one GPU, None where that is not known, and `source` says who says so (`LIMITS`).
    """

    number: str
    job: str
    user: str
    name: str
    state: str
    seconds: int
    gpus: Mapping[str, int]
    used_bytes: int | None
    source: str
    folder: str = ""
    """Where it ran."""
    hash: str = ""
    """Its script's, where it is known by its record alone."""
    host_asked_bytes: int = 0
    """Host memory that it had, of all its nodes together; 0 where that is not known."""
    host_used_bytes: int | None = None
    """What all tasks of its largest step held at their peaks (MaxRSS), None where nobody looked."""

    @property
    def script(self) -> str:
        """What tells its script from others: two users' train.sh are two, and each --wrap is one of
        its own.
        """
        if self.hash or self.name == _WRAPPED:
            return self.hash or self.number
        return f"{self.user}\x1f{self.folder}\x1f{self.name}"


def accounted(days: float, *, everybody: bool, job: str | None = None) -> list[Accounted]:
    """Ask sacct for jobs that had GPUs: one's own or everybody's, of the last days; or one job.

    Raises:
        SlurmError: there is no accounting, or it does not answer.
    """
    which = ["--jobs", job] if job is not None else _of_last(days, everybody=everybody)
    return parse(
        client.run(["sacct", *_AS_FIELDS, f"--format={','.join(_FIELDS)}", *which], SACCT_SECONDS)
    )


def not_completed(days: float, *, everybody: bool) -> set[str]:
    """Ask sacct which jobs of the last days it does not have as COMPLETED; return Slurm's own
    numbers of them.

    Raises:
        SlurmError: there is no accounting, or it does not answer.
    """
    which = ["--allocations", "--format=JobIDRaw,State", *_of_last(days, everybody=everybody)]
    rows = (
        line.partition("\x1f")
        for line in client.run(["sacct", *_AS_FIELDS, *which], SACCT_SECONDS).split("\n")
    )
    return {number for number, _, state in rows if number and state != "COMPLETED"}


def _of_last(days: float, *, everybody: bool) -> list[str]:
    begin = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() - days * 86_400))
    return ["--starttime", begin, *(["--allusers"] if everybody else [])]


def parse(text: str) -> list[Accounted]:
    """Return the jobs with GPUs of sacct's answer, in which steps follow their job; names may have
    what users like.
    """
    jobs: list[Accounted] = []
    for line in text.split("\n"):
        fields = line.split("\x1f")
        if len(fields) != len(_FIELDS) or not fields[4].strip() or not fields[5].isdecimal():
            continue
        number, job, user, name, state, seconds, tres, usage, comment, folder, total = fields
        if "." in number:
            if jobs and jobs[-1].number == number.partition(".")[0]:
                jobs[-1] = _with_step(jobs[-1], usage, total)
            continue
        used = of_jobstats(comment)
        gpus = of_tres(tres)
        if gpus:
            source = "jobstats" if used is not None else ""
            ended = state.split()[0]
            one = Accounted(
                number, job, user, name, ended, int(seconds), gpus, used, source, folder
            )
            jobs.append(one._replace(host_asked_bytes=_host_memory(tres, 1 << 20) or 0))
    return jobs


def _with_step(job: Accounted, usage: str, total: str) -> Accounted:
    """Return a job with what one of its steps used: of a GPU by TRESUsageInMax, of host memory by
    TRESUsageInTot.
    """
    held, used = _host_memory(total, 1), _gpu_memory(usage)
    if held is not None:
        job = job._replace(host_used_bytes=max(held, job.host_used_bytes or 0))
    if used is None or job.source not in ("", "sacct") or sum(job.gpus.values()) != 1:
        return job
    return job._replace(used_bytes=max(used, job.used_bytes or 0), source="sacct")


def _host_memory(tres: str, unit: int) -> int | None:
    """Return the bytes of `mem=` among TRES; a number alone is of that unit: MiB of what a job has,
    bytes of what was used (sacct(1)).
    """
    match = _HOST_MEMORY.search(tres)
    if match is None:
        return None
    return int(float(match[1]) * (_UNITS[match[2]] if match[2] else unit)) or None


def of_tres(text: str) -> dict[str, int]:
    """Return how many GPUs of which type a job has by its TRES: `gres/gpu:l4=1,gres/gpu=1`."""
    counts = {kind or "": int(count) for kind, count in _GPU.findall(text)}
    total = counts.pop("", 0)
    counts = {kind: count for kind, count in counts.items() if count}
    untyped = total - sum(counts.values())
    return {**counts, **({"": untyped} if untyped > 0 else {})}


def _gpu_memory(usage: str) -> int | None:
    match = _GPU_MEMORY.search(usage)
    return int(match[1]) * _UNITS[match[2]] or None if match else None


def of_jobstats(comment: str) -> int | None:
    """Return the most that jobstats saw taken of a GPU, in bytes, by the summary that it leaves in
    AdminComment.

    Format: "JS1:", then base64 of gzip of JSON (PrincetonUniversity/jobstats,
    docs/setup/summaries.md).
    """
    head, _, packed = comment.partition("JS1:")
    if head or not packed or len(packed) > _MOST_COMMENT:
        return None
    with suppress(
        ValueError, LookupError, TypeError, AttributeError, OSError, EOFError, OverflowError
    ):
        with gzip.GzipFile(fileobj=BytesIO(base64.b64decode(packed))) as file:
            content: Any = json.loads(file.read(_MOST_COMMENT))
        sizes = [
            int(size)
            for node in content["nodes"].values()
            for size in node.get("gpu_used_memory", {}).values()
        ]
        return max(sizes, default=0) or None
    return None


def ran_out(lines: Iterable[str]) -> float | None:
    """Return of how many GiB the GPU was on which a job ran out, by torch's message in its output;
    None: it did not.
    """
    matches = [match for line in lines if (match := _OUT_OF_MEMORY.search(line))]
    return float(matches[-1][1]) if matches else None


class StoredJob(NamedTuple):
    """A job's script as Slurm has kept it, the words after `sbatch`, and the folder that it ran
    in.
    """

    argv: Sequence[str]
    script: bytes
    folder: str


def stored(job: str) -> StoredJob | None:
    """Ask sacct for a job as it was submitted; None where it is not kept
    (AccountingStoreFlags=job_script).

    Its environment may be kept, too, and is not asked for: there are passwords in some.
    """
    try:
        words = ["sacct", *_AS_FIELDS, "--allocations", "--jobs", job]
        line, _, folder = (
            client.run([*words, "--format=SubmitLine,WorkDir"], SACCT_SECONDS)
            .strip()
            .partition("\x1f")
        )
        text = client.run(["sacct", "--batch-script", "--jobs", job], SACCT_SECONDS)
        argv = shlex.split(line)[1:]
    except (SlurmError, ValueError):
        return None
    _, rule, script = text.partition("\n" + 80 * "-" + "\n")
    if not rule or not script.startswith("#!") or not argv:
        return None
    return StoredJob(argv, script.encode(errors="surrogateescape"), folder)
