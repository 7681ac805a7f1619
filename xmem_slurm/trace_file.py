"""Read the file of a trace: the job could have written it, so its size is bounded and its form
checked.

What may stand in it is said by `trace_schema`. Allocations get numbers here, in place of addresses
that are used again and again, so that they can be replayed.
"""

import os
import re
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from pathlib import Path
from typing import Any

from xmem_slurm import trace_schema, untrusted
from xmem_slurm.checked import Text
from xmem_slurm.errors import NoEstimate
from xmem_slurm.trace import (
    SCHEMA_VERSION,
    Allocation,
    Category,
    Event,
    File,
    Mark,
    Noted,
    Op,
    Origin,
    Process,
    Repeat,
    ScriptFailure,
    Trace,
    TraceFigures,
)
from xmem_slurm.work import CountedRow, StepCounts

_Error: Any = Text | None
_Entry = tuple[str, int, int, int]
"""(action, address, size, stream) of torch's memory history."""


def read(path: Path, allowance: untrusted.Allowance | None = None) -> Trace:
    """Read a trace file. The job could have written it, so its size is bounded, that of all by
    `allowance`.

    Raises:
        NoEstimate: the file is not a trace of this schema version.
    """
    try:
        raw = untrusted.read_json(path, allowance or untrusted.Allowance())
        if raw["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {raw['schema_version']!r:.9}, not {SCHEMA_VERSION}")
        return _from_file(raw)
    except untrusted.DAMAGE as error:
        raise NoEstimate(f"{path}: not a trace: {error}") from error


MOST_LOGGED_BYTES = 64 << 20
"""Of files.log: 100 bytes a file, and 4,000 for each Python that imports torch."""
_LINE = re.compile(rb"([RDAIWT]) (\d{1,18}) (-?\d{1,19}) (.*)", re.DOTALL)


def read_files(log: Path) -> list[File]:
    """Read what all Pythons of a dry run noted (form: probe/_xmem/process/files.py), the first time
    of each path first.

    What is no such note says that not all of them are there.
    """
    try:
        lines = untrusted.read(log, MOST_LOGGED_BYTES).split(b"\0")[:-1]
    except FileNotFoundError:
        return []
    except (OSError, ValueError):
        return [File("T", 0, 0, "")]
    noted = [_LINE.fullmatch(line) for line in lines]
    return [
        File(n[1].decode(), int(n[2]), int(n[3]), os.fsdecode(n[4])) if n else File("T", 0, 0, "")
        for n in noted
    ]


_TYPE = re.compile(r"(?:\w+\.)*\w+(?=$|:| ?\()")
"""How an error begins: "ValueError: ...", "KeyError (train.py:3)", "os._exit(3)"."""
_OFFLINE = "a dry run has no network"
"""What the probe adds where that may be why (`probe/_xmem/process/network.py`)."""


def failure(error: str) -> ScriptFailure:
    """Read what the probe says of how a script ended: an exception's type, then its words."""
    of_type = _TYPE.match(error)
    return ScriptFailure(error, of_type[0] if of_type is not None else "", error.endswith(_OFFLINE))


def fields_of(raw: Mapping[str, Any], form: type[Process]) -> dict[str, Any]:
    """Return the fields of a file that are what they are, checked, by name."""
    error = trace_schema.checked(raw["error"], _Error)
    failed = None if error is None else failure(error)
    process = trace_schema.checked({**raw, "failure": failed}, form)
    return {field.name: getattr(process, field.name) for field in fields(form)}


def noted(rows: Sequence[trace_schema.DoubtForm]) -> list[Noted]:
    """Return the doubts of a file."""
    return [Noted(row.code, row.detail, row.count, row.share) for row in rows]


def _from_file(whole: Mapping[str, Any]) -> Trace:
    """Check it, and give it its meaning: numbers for addresses, categories, origins."""
    raw = trace_schema.checked(whole, trace_schema.TraceFile)
    columns = raw.events
    history = list(zip(columns.action, columns.address, columns.size, columns.stream, strict=True))
    requests, events, freed_at, begun = _number(history)
    marks = [Mark(mark.kind, mark.allocations) for mark in raw.marks]
    tagged, names = _resolve_tags(history, raw.tags)
    allocations = [
        Allocation(
            size, stream, tagged.get(number) or _by_phase(number, freed_at.get(number), marks)
        )
        for number, (size, stream) in enumerate(requests)
    ]
    sites, callers, made_at = _sites(raw.sites, len(requests), names)
    return Trace(
        **fields_of(whole, TraceFigures),
        allocations=allocations,
        events=events,
        repeats=_repeats(history, begun),
        marks=marks,
        doubts=noted(raw.doubts),
        bounds=dict(raw.bounds),
        counts=_counts(raw.work),
        sites=sites,
        callers=callers,
        made_at=made_at,
    )


def _counts(raw: Any) -> StepCounts | None:
    if raw is None or not raw.launches or not raw.allocated:
        return None
    rows = [
        CountedRow(kind, word, (a, b, c, d), count) for kind, word, a, b, c, d, count in raw.rows
    ]
    return StepCounts(raw.launches, raw.backwards, raw.allocated, rows)


def _number(
    history: list[_Entry],
) -> tuple[list[tuple[int, int]], list[Event], dict[int, int], list[int]]:
    """Give each allocation its number, in place of an address that is used again and again.

    Returns the requests (size, stream), the events on them, for each freed allocation how many had
    been made by then, and for each row how many events come before it. The device of a dry run has
    no limit, so segments are only given back when the job says empty_cache().
    """
    requests: list[tuple[int, int]] = []
    events: list[Event] = []
    freed_at: dict[int, int] = {}
    live: dict[int, int] = {}
    moving: deque[int] = deque()
    streams: dict[int, int] = {0: 0}
    begun: list[int] = []
    releasing = False
    for action, address, size, stream in history:
        begun.append(len(events))
        if action in ("segment_free", "segment_unmap"):
            if not releasing:
                events.append(Event(Op.EMPTY_CACHE, -1))
            releasing = True
            continue
        if action == "alloc":
            if address in live:  # what was there was freed unnoted: nothing is allocated twice
                if live[address] not in freed_at:
                    freed_at[live[address]] = len(requests)
                    events.append(Event(Op.FREE_REQUESTED, live[address]))
                events.append(Event(Op.FREE_COMPLETED, live[address]))
            live[address] = len(requests)
            events.append(Event(Op.ALLOC, len(requests)))
            requests.append((size, streams.setdefault(stream, len(streams))))
        elif action in ("moved_from", "moved_to"):
            _move(action, address, live, moving)
        elif address in live and action == "free_requested" and live[address] not in freed_at:
            # once for each
            freed_at[live[address]] = len(requests)
            events.append(Event(Op.FREE_REQUESTED, live[address]))
        elif address in live and action == "free_completed":
            events.append(Event(Op.FREE_COMPLETED, live.pop(address)))
        releasing = False
    return requests, events, freed_at, begun


def _repeats(history: list[_Entry], begun: Sequence[int]) -> list[Repeat]:
    """Return where steps are left out; no event is in two of them, however many rows a file
    says.
    """
    repeats: list[Repeat] = []
    for row, (action, times, rows, _) in enumerate(history):
        if action == "left_out" and times > 0:
            first = begun[max(0, row - rows)]
            repeats.append(Repeat(max(first, repeats[-1].end if repeats else 0), begun[row], times))
    return repeats


def _move(action: str, address: int, live: dict[int, int], moving: deque[int]) -> None:
    """Take an allocation from its old address, or put the first of those that were taken to its new
    one.
    """
    if action == "moved_from":
        moving.append(live.pop(address))
    else:
        live[address] = moving.popleft()


def _resolve_tags(
    history: list[_Entry], tags: Sequence[Any]
) -> tuple[dict[int, Category], dict[int, str]]:
    """Turn "these addresses held PARAM after n allocations" into categories, and names, of
    allocation numbers.

    The first tag of an allocation stands: a gradient that becomes optimizer state was allocated as
    a gradient.
    """
    categories: dict[int, Category] = {}
    names: dict[int, str] = {}
    pending = sorted(tags, key=lambda tag: tag.allocations)[::-1]
    live: dict[int, int] = {}
    moving: deque[int] = deque()
    count = 0

    def settle(until: int | None) -> None:
        while pending and (until is None or pending[-1].allocations < until):
            tag = pending.pop()
            for address, name in zip(tag.addresses, tag.names or repeat(""), strict=False):
                if address in live:
                    categories.setdefault(live[address], Category(tag.category))
                    if name:
                        names.setdefault(live[address], name)

    for action, address, _, _ in history:
        if action == "alloc":
            settle(count + 1)
            live[address] = count
            count += 1
        elif action in ("moved_from", "moved_to"):
            _move(action, address, live, moving)
    settle(None)
    return categories, names


def _sites(
    raw: Any, count: int, names: dict[int, str]
) -> tuple[list[Origin], list[int], list[int]]:
    """Return the sites, their callers, and the number of that of each of `count` allocations.

    Allocations in `names` have these modules.
    """
    made_at = raw.of
    if not made_at:
        return [], [], []
    sites = [Origin(*site) for site in raw.found]
    callers = raw.called_from or [0] * len(sites)
    if len(made_at) != count or max(made_at) >= len(sites):
        raise ValueError("it has other sites than allocations")
    if len(callers) != len(sites) or any(
        caller >= max(number, 1) for number, caller in enumerate(callers)
    ):
        raise ValueError("its sites are called from other ones than those before them")
    renamed: dict[tuple[int, str], int] = {}
    for allocation, name in names.items():
        made_at[allocation] = renamed.setdefault(
            (made_at[allocation], name), len(sites) + len(renamed)
        )
    sites += [sites[number]._replace(module=name) for number, name in renamed]
    return sites, callers + [callers[number] for number, _ in renamed], made_at


def _by_phase(number: int, freed_at: int | None, marks: list[Mark]) -> Category:
    """Say what an allocation without a tag is, from when it was made and freed.

    In the words of torch's mem_tracker: made in the forward pass and alive when the backward pass
    begins, an activation; never freed, something that the libraries or the job keep (OTH); the rest
    is temporary.
    """
    if freed_at is None:
        return Category.OTH
    index = bisect_right(marks, number, key=lambda mark: mark.allocations)
    following = marks[index] if index < len(marks) else None
    if following is not None and following.kind == "backward" and freed_at > following.allocations:
        return Category.ACT
    return Category.TEMP
