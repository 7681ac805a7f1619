"""Has this very dry run been made before, and would it find the same? Kept below all who want dry
runs.

Who asks for an estimate, submits the job a minute later, wants a report of it and plans its
training wants the same dry run each time. So what one found is kept in the user's cache, under a
hash of what was ordered, for a week.

Note [What is kept]
A dry run is given again only if it would find the same:

- What it read is as it was (`evidence`); where that is not known, it is not kept.
- The machine had no part in it. It came to its script's own end, or was over sooner as ordered, or
  it used what CPU seconds it might. What the clock on the wall or a signal cut short, or a full
  disk, is no fact; nor is a script's own failure, which a network or another user's file may have
  caused. That there is no estimate, with the files known that say so, is one.
- More of a budget would not have changed it, or there is no more: where it used more than half of
  its budget, a second opinion or another kind of GPU may have come too short (`engines`). Only who
  may spend no more than that is given it. So it is with host memory, of which each dry run of a
  search has a part (`in_turn`): who may have more is given one that wanted no more.
- The job has not read its name, its account or what scontrol says of it, or they are as they were.

One that says which lines asked for memory (`order.Origins`) says all that one says that does not,
and one that was whole all that one says that was over sooner (`DryRunOrder.most_bytes`).
"""

import functools
import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import xmem_slurm
from xmem_slurm import trace
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import evidence
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.dryrun.exchange import (
    DryRunResult,
    order_to_json,
    result_from_json,
    result_to_json,
)
from xmem_slurm.dryrun.job import OF_ONE_RUN, Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.dryrun.runner import LAST_WORDS_SECONDS
from xmem_slurm.dryrun.shims.slurm_queries import FACTS
from xmem_slurm.errors import NoEstimate, SlurmError
from xmem_slurm.slurm import immaterial, script_files
from xmem_slurm.state.store import Store, StoredRecord

STORE = Store("dry-runs")
MOST_SECONDS = 7 * 86_400
SPENT_SHARE = 0.7
"""Of its budget: a run with no loop that it could cut short ends itself after 0.75 of it
(`course/course`, SHARE)."""
_RESULT, _FILES, _RESTS_ON = range(3)
"""The parts of a record."""
_SAID_BY_SLURM = ("SLURM_JOB_NAME", "SLURM_JOB_ACCOUNT", FACTS)
"""Variables that count where the job may read them."""

Make = Callable[[DryRunOrder], DryRunResult]


def made_or_kept(make: Make) -> Make:
    """Return who gives what is kept of a dry run, and has it made where there is nothing, or a
    fresh one is wanted.
    """

    def give(order: DryRunOrder) -> DryRunResult:
        kept = None if order.fresh else look_up(order)
        if kept is not None:
            return kept
        named = named_by(order.job)
        result = make(order)
        keep(order, result, named)
        return result

    return give


def look_up(order: DryRunOrder) -> DryRunResult | None:
    """Return what is kept of this dry run, if it would find the same; whatever is wrong with it is
    none.
    """
    origins = ("none", "hook") if order.origins == "none" else (order.origins,)
    mosts = dict.fromkeys((None, order.most_bytes))
    # Just this one first: a plan that is made again comes by the same way.
    for memory, origin, most in itertools.product(_memories(order.budget), origins, mosts):
        budget = replace(order.budget, memory_bytes=memory)
        record = STORE.read(_key(replace(order, origins=origin, most_bytes=most, budget=budget)))
        if record is None:
            continue
        try:
            result = _restored(record, order)
        except (ValueError, KeyError, TypeError, SlurmError):
            continue
        if result is not None:
            record.use()
            return result
    return None


def _memories(budget: Budget) -> Sequence[int]:
    """Return with how much host memory this dry run may have been made: so much, or that of which
    this is a part, or a part of this, as each of a search has (`dispatch.some_at_once`).
    """
    own, parts = budget.memory_bytes, budget.cpus
    return [*dict.fromkeys((own, own * parts, own // parts))]


def keep(order: DryRunOrder, result: DryRunResult, named: Sequence[Evidence] | None) -> None:
    """Keep what a dry run found, if it would find the same again: see Note [What is kept].

    `named` is of before it was made (`named_by`): what was edited meanwhile is not what it read.
    """
    files = _files(order, result)
    rests_on = (
        evidence.lasting([*named, *files]) if files is not None and named is not None else None
    )
    if rests_on is not None:
        spent = result.spent.seconds
        head = {
            "made": time.time(),
            "budget": order.budget.seconds,
            "spent": spent,
            "memory": order.budget.memory_bytes,
            "read": _read_of_slurm(order.job, result, rests_on),
        }
        # All traces have the same list of files, of thousands: it is kept once.
        bare = result_to_json(_with_files(result, ()))
        STORE.write(
            _key(order if _may_be_cut(order, result) else replace(order, most_bytes=None)),
            head,
            [text.encode() for text in (bare, json.dumps(files), json.dumps(rests_on))],
        )


def named_by(job: Job) -> list[Evidence] | None:
    """Return what a batch script itself reads, as it is now, and what Slurm writes for it; None: it
    cannot be told.
    """
    named = set[Path]()
    if job.by_shell:  # a Python script says itself what it reads
        try:
            named = script_files.named_files(job.script, job.folder, job.environ)
        except (script_files.Unknown, OSError):
            return None
    return [*map(evidence.as_it_is, named), *evidence.made_by_slurm(job.outputs, job.folder)]


def _read_of_slurm(
    job: Job, result: DryRunResult, rests_on: Sequence[Evidence]
) -> Mapping[str, str]:
    """Return what Slurm says of the job and this dry run may have read, in the environment or by
    scontrol or squeue.
    """
    # A run without an estimate is kept for a week: that an installed package asked is possible.
    asked = isinstance(result.answer, NoEstimate) or any(
        process_trace.has(Doubt.OWN_SCRIPT) for process_trace in result.answer
    )
    all_count = evidence.asks_slurm(rests_on, job.script, asked=asked)
    return {
        name: job.environ.get(name, "")
        for name in _SAID_BY_SLURM
        if all_count or evidence.mentions(rests_on, name.encode(), job.script)
    }


def _restored(record: StoredRecord, order: DryRunOrder) -> DryRunResult | None:
    """Return what a record says, if it holds for who orders this and may spend so much.

    Raises:
        ValueError, KeyError, TypeError, SlurmError: it cannot be read.
    """
    head = record.head
    if not 0 <= time.time() - float(head["made"]) <= MOST_SECONDS:
        return None
    if head["spent"] > head["budget"] / 2 and order.budget.seconds > head["budget"]:
        return None
    if any(order.job.environ.get(name, "") != value for name, value in head["read"].items()):
        return None
    rests_on = [Evidence(*fields) for fields in json.loads(record.part(_RESTS_ON))]
    files = _as_they_are([trace.File(*fields) for fields in json.loads(record.part(_FILES))])
    # after their times were taken: what changes meanwhile is seen later
    if not evidence.unchanged(rests_on):
        return None
    result = result_from_json(record.part(_RESULT), "a kept dry run")
    if head["memory"] < order.budget.memory_bytes and _may_want_memory(result):
        return None
    return _with_files(result, files)


def _may_want_memory(result: DryRunResult) -> bool:
    """Whether a dry run may find something else with more host memory: the profile engine computes
    as much as there is memory for.
    """
    return (
        isinstance(result.answer, NoEstimate)
        or result.stopped == "memory"
        or any(process_trace.has(Doubt.PROFILE_ENGINE) for process_trace in result.answer)
    )


def _files(order: DryRunOrder, result: DryRunResult) -> Sequence[trace.File] | None:
    """Return what a dry run read; None where that is not known, or it would perhaps not find the
    same again.
    """
    answer = result.answer
    if isinstance(answer, NoEstimate):
        return None if answer.busy else answer.files
    budget_seconds = SPENT_SHARE * (order.budget.seconds - LAST_WORDS_SECONDS)
    is_fact = _is_whole(answer) or order.brief or order.is_exceeded(answer)
    is_fact = is_fact or result.spent.seconds >= budget_seconds
    if (
        not answer
        or not is_fact
        or any(process_trace.failure is not None for process_trace in answer)
    ):
        return None
    files = answer[0].files
    return (
        files if files and all(process_trace.files == files for process_trace in answer) else None
    )


def _may_be_cut(order: DryRunOrder, result: DryRunResult) -> bool:
    """Whether it may have been over before its script, as it needed more than was of interest."""
    if isinstance(result.answer, NoEstimate):
        return True
    return order.is_exceeded(result.answer) and not _is_whole(result.answer)


def _is_whole(traces: Sequence[trace.Trace]) -> bool:
    """Whether all of it came to its script's end."""
    return all(
        process_trace.seen is not None and process_trace.seen.end for process_trace in traces
    )


def _with_files(result: DryRunResult, files: Sequence[trace.File]) -> DryRunResult:
    """Return a result with these as the files that its dry run read."""
    if isinstance(result.answer, NoEstimate):
        error = result.answer
        same = type(error)(
            str(error), files, on_any_gpu=error.on_any_gpu, fails=error.fails, busy=error.busy
        )
        return replace(result, answer=same)
    return replace(
        result, answer=[replace(process_trace, files=files) for process_trace in result.answer]
    )


def _as_they_are(files: Sequence[trace.File]) -> Sequence[trace.File]:
    """Return files with their times of now: what is made of a kept run rests on them as they
    are.
    """
    updated = []
    for file in files:
        status = None
        if file.kind in ("R", "D"):
            with suppress(OSError):  # where it is gone, `evidence` sees that
                status = os.stat(file.path)  # noqa: PTH116 - thousands of them
        size_and_time = (
            (file.size, file.mtime_ns) if status is None else (status.st_size, status.st_mtime_ns)
        )
        updated.append(trace.File(file.kind, *size_and_time, file.path))
    return updated


def _key(order: DryRunOrder) -> str:
    """Return the name of what is ordered: by all that can matter, but for the time of day, the CPU
    seconds and what is looked at when it is found.
    """
    # What XMEM_* variables ask for stands in the order itself.
    environ = {
        name: value
        for name, value in sorted(order.job.environ.items())  # that of sbatch is in another order
        if name not in (*OF_ONE_RUN, *_SAID_BY_SLURM, *immaterial.VARIABLES)
        and not name.startswith("XMEM_")
        and evidence.can_matter(name)
    }
    usual = Budget()
    budget = replace(order.budget, seconds=usual.seconds, wall_seconds=usual.wall_seconds)
    script = order.job.script if order.job.material is None else order.job.material
    job = replace(order.job, environ=environ, outputs=(), script=script)
    same = replace(order, job=job, budget=budget, fresh=False)
    key_parts: list[Any] = [order_to_json(same), _of_ours()]
    return hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()


@functools.cache
def _of_ours() -> list[tuple[str, int, int]]:
    """Return what tells this program from another version of it, also one that is being worked
    on.
    """
    place = Path(xmem_slurm.__file__).parent
    entries = []
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            status = os.stat(os.path.join(folder, name))  # noqa: PTH116, PTH118 - hundreds of them
            entries.append(
                (os.path.relpath(folder, place) + name, status.st_size, status.st_mtime_ns)
            )
    return entries
