"""What torch's caching allocator was asked for, as short as it can be told: repeats are left out,
new peaks are not.

Note [Folding]: torch notes every allocation and free, and a script of 10,000 steps makes millions
of them. So the run is cut into intervals (a step, a batch), and once steps repeat themselves an
interval is kept only where it is new: a peak that there was not before, or one of the first of its
kind (as many allocations, of as many bytes). Others are thrown away unread: torch is told to forget
them. What they left behind is found out when the next one is kept: torch's snapshot says what is
allocated at its end, its events undone say what was at its start, and the difference to what the
intervals before had left stands in the trace between the two: an allocation of the same size is the
old one, moved; the others are freed and allocated. So what is alive at any moment of a kept
interval is exact. Where one was kept whole and like ones follow it, the trace says how many: a
replay repeats it, so that the allocator's cache is theirs, too.

Another thread writes the trace meanwhile, and torch cannot be told to forget just what was read:
what was allocated and freed between the two would be lost. So torch forgets at the end of an
interval, where nobody allocates, and is read on from where it was read to before. When that thread
looks must not show: what it read in the midst of an interval goes with it, or becomes one with the
rest.
"""

from __future__ import annotations

import bisect
import collections
import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from _xmem.record.pools import Pools
from _xmem.record.served import RISE, risen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from _xmem.annotations import AllocatedBlocks, DevicePeaks, HistoryEntry, Note, ServedNote
    from _xmem.record.sites import Sites
    from _xmem.repeat.calls import Calls
    from _xmem.repeat.journal import Journal

    Requests = tuple[tuple[int, ...], ...]
    """How much each device served in an interval."""
    IntervalKind = tuple[Requests, bool]
    """That, and whether the cache was emptied."""

QUIET = 8
"""After so many intervals without a new peak, or..."""
MANY = 64
"""...so many in all, those that are not new are left out."""
ROOM = 20_000
"""Allocations, from which on there is no room for intervals without a new peak..."""
KINDS = 16
"""...other than the first of so many kinds. Where all batches differ, the least memory that is
enough hangs on what each leaves of fragments: of graphs of all sizes the first 80 of 400 fit on 12
% less than all of them do."""
AGAIN, AGAIN_MANY = 2, 24
"""Where calls are skipped so many of a kind are kept between others, the second number as long as
there is room: what is reserved may rise as kinds follow each other, and what torch says of it is
not so."""
MOST = 40_000
"""Allocations, above which the trace is shortened, as the search for what is needed takes a second
for so many: of intervals other than the first, those that hold a peak..."""
RESERVING = 2 * MOST
"""...and, up to so many with these, those in which more was reserved, the last before others, only
what outlives them is kept. What grows later, a cache of keys and values, finds its room in the
segments that they left."""
SLICE = 50_000
"""Allocations after which an interval is cut wherever it is, so that torch's notes do not fill the
host's memory."""

_LASTING = ("evaluation", "training", "checkpoint")
"""Marks that are kept where the interval is not, as what they begin or end may be in one that
is..."""
MOST_MARKS = 2_000
"""...while there are fewer marks: a model whose parts are always in evaluation is switched at each
step."""

_FREED = ("free_requested", "free_completed")
_ENTRIES = ("alloc", *_FREED, "segment_free", "segment_unmap")
"""What a trace is read from, of all that torch notes; what moved is added (xmem_slurm/trace.py)."""


class _HistoryMark(NamedTuple):
    """A point between two allocations; `counts` is how many each device had served."""

    kind: str
    counts: Sequence[int]
    seconds: float


class _Piece:
    """A stretch of one device's history, and how many allocations that device had served by its
    end.

    `entries` are (action, address, size, stream). For each "alloc" of them `numbers` has how many
    the device had served before, and `sites` its site. `record` names the peaks that were raised in
    it. Those of `interval` are what torch noted, which may be all of an interval; `repeats` is how
    many like it followed and are left out.
    """

    def __init__(
        self,
        entries: list[HistoryEntry],
        numbers: list[int],
        sites: list[int],
        served_count: int,
        *,
        record: frozenset[str] = frozenset(),
        interval: slice = slice(0, 0),
    ) -> None:
        self.entries, self.numbers, self.sites = entries, numbers, sites
        self.served_count, self.record, self.interval = served_count, record, interval
        self.repeats = 0

    def rows(self) -> list[HistoryEntry]:
        """Return its entries as they stand in a trace."""
        length, end = self.interval.stop - self.interval.start, self.interval.stop
        if not self.repeats or not length:
            return self.entries
        left_out = ("left_out", self.repeats, length, 0)
        return [*self.entries[:end], left_out, *self.entries[end:]]

    def followed_by(self, later: _Piece) -> _Piece:
        """Return both as one: they are parts of one interval."""
        return _Piece(
            self.entries + later.entries,
            self.numbers + later.numbers,
            self.sites + later.sites,
            later.served_count,
            record=self.record | later.record,
            interval=slice(self.interval.start, len(self.entries) + later.interval.stop),
        )

    def shortened_with(self, later: _Piece) -> _Piece:
        """Return both as one, without the allocations that are freed in it."""
        entries = self.entries + later.entries
        open_places, gone, moving = {}, set(), []
        for place, (action, address, _, _) in enumerate(entries):
            if action == "alloc":
                open_places[address] = [place]
            elif action == "moved_from":
                moving.append([*open_places.pop(address, [None]), place])
            elif action == "moved_to":
                open_places[address] = [*moving.pop(0), place]
            elif address in open_places:
                open_places[address].append(place)
                if action == "free_completed":
                    places = open_places.pop(address)
                    gone.update(places if places[0] is not None else ())
            elif action not in _FREED:
                gone.add(place)
        allocations = [place for place, entry in enumerate(entries) if entry[0] == "alloc"]
        kept = [number for number, place in enumerate(allocations) if place not in gone]
        numbers, sites = self.numbers + later.numbers, self.sites + later.sites
        return _Piece(
            [entry for place, entry in enumerate(entries) if place not in gone],
            [numbers[number] for number in kept],
            [sites[number] for number in kept],
            later.served_count,
        )


class _KeptBefore(NamedTuple):
    """What was kept before an interval: per device how many pieces, how many allocations, and what
    is allocated at their end; how many marks, and the peaks so far.
    """

    pieces: dict[int, int]
    allocations: collections.Counter[int]
    live: dict[int, AllocatedBlocks]
    marks: int
    record: DevicePeaks


class History:
    """The histories of all devices of one process.

    `sites` says where allocations came from. Unless it `may_fold`, everything is kept.
    """

    def __init__(self, sites: Sites, may_fold: bool, journal: Journal) -> None:
        self._may_fold, self._journal = may_fold, journal
        self.reader: Calls | None = None
        """Takes what it wants of torch's notes before they are forgotten: see `repeat/calls`; None:
        nobody does."""
        self._sites, self._pools = sites, Pools()
        self._snapshot: Any = None
        self._clear: Callable[[], None] | None = None
        self._pieces: dict[int, list[_Piece]] = {}  # device: its pieces, in order
        # how many allocations of each device these have
        self._kept: collections.Counter[int] = collections.Counter()
        # device: what is allocated at the end of them, in the form of `_allocated`
        self._live: dict[int, AllocatedBlocks] = {}
        self._marks: list[_HistoryMark] = []
        self._new_marks: list[_HistoryMark] = []  # those since the last boundary
        # kind: (the highest level that one was kept from, how many were kept)
        self._kinds: dict[IntervalKind, tuple[int, int]] = {}
        self._requests_met: set[Requests] = set()
        # kinds of which one was kept whole: all that was noted from its begin to its end
        self._whole: set[IntervalKind] = set()
        # the kind of the last interval, if it was kept whole or like that; and that one
        self._repeated: tuple[IntervalKind | None, Sequence[_Piece]] = None, ()
        self._begins = False  # whether torch's notes begin where this interval does
        self._highest = 0  # the highest level that any was kept from
        self._level = 0  # bytes allocated at the last boundary
        self._totals: dict[int, tuple[int, ...]] = {}  # at the last boundary
        self._peaks: DevicePeaks = {}  # above which one is new
        self._record: DevicePeaks = {}  # at the end of the last piece
        # how many allocations each device had served when torch last forgot
        self._forgotten: list[int] = []
        self._read: dict[int, int] = {}  # device: how many of torch's notes were read since
        self.intervals = self._quiet = 0
        """How many intervals have ended."""
        self.folds = False
        """Whether intervals that are not new are thrown away."""
        self.settings: str | None = None
        """The allocator's settings, as torch last said them."""
        # None where what was read of it so far cannot be told from what was before
        self._before: _KeptBefore | None = self._kept_so_far()

    def begin(self, torch: ModuleType, frames: bool = False) -> None:
        """Have torch note all allocations from here on, each with the Python frames that it was
        asked for in or not.
        """
        memory = torch.cuda.memory
        self._snapshot, record = memory._snapshot, memory._record_memory_history

        begin = getattr(memory, "_record_memory_history_impl", record)
        clears = "clear_history" in inspect.signature(begin).parameters
        wanted = {
            "max_entries": sys.maxsize,
            "context": "alloc" if frames else None,
            "stacks": "python",
        }

        def clear() -> None:
            if clears:
                record(clear_history=True, **wanted)
            else:  # torch 2.4
                record(enabled=None)
                record(**wanted)

        clear()
        self._clear = clear
        # a script's own call would end our recording
        memory._record_memory_history = lambda *_args, **_kwargs: None

    @property
    def recording(self) -> bool:
        """Whether torch notes allocations."""
        return self._clear is not None

    def mark(self, kind: str, counts: Sequence[int], seconds: float) -> None:
        """Note a point between two allocations; `counts` is how many each device had served."""
        self._new_marks.append(_HistoryMark(kind, counts, seconds))

    @property
    def repeats(self) -> bool:
        """Whether the last interval was like the one before it, and intervals that are not new are
        thrown away.
        """
        return self.folds and any(piece.repeats for piece in self._repeated[1])

    def boundary(
        self,
        counts: Sequence[int],
        totals: dict[int, tuple[int, ...]],
        peaks: DevicePeaks,
        level: int,
    ) -> bool:
        """An interval has ended: keep it, or forget it. Return whether one before it asked for as
        much.

        `totals` are the running totals of each device (`Served.totals`), which tell kinds of
        intervals apart: where as much is asked for, the blocks that are given may still be others,
        and as large as they happen to be; and one that empties the cache leaves another one to
        those after it. `peaks` are its peaks so far, `level` what is allocated now. Where calls are
        skipped, which blocks are given is not known here, and one is new where it began at a higher
        level than those of its kind that were kept, or than all where its kind is not known, as
        where an evaluation keeps what it is given: torch's own peaks have nothing of these.
        """
        served = tuple(
            tuple(after - before for after, before in zip(total, self._totals.get(device, total)))  # noqa: B905 - 3.9
            for device, total in totals.items()
        )
        requests = tuple((allocations, requested) for allocations, _, requested, *_ in served)
        skips = self._journal.numbers > 0
        emptied = any(segments for *_, segments in served)
        kind = (requests if skips else tuple(counts[:-1] for counts in served)), emptied
        met = requests in self._requests_met
        grew = risen(self._peaks, peaks)
        began = self._level
        level_kept, times = self._kinds.get(kind, (0, 0))
        higher = skips and began > RISE * (level_kept if times else self._highest)
        repeated, whole_pieces = self._repeated
        follows = kind == repeated
        kept = self._kept if self._before is None else self._before.allocations
        has_room = max(kept.values(), default=0) < ROOM
        once_more = skips and times < (AGAIN_MANY if has_room else AGAIN)
        again = not follows and times and (kind not in self._whole or once_more)
        new = grew or higher or again or (not times and (has_room or len(self._kinds) < KINDS))
        self._totals, self._peaks, self._level = (
            dict(totals),
            dict(peaks) if grew else self._peaks,
            level,
        )
        self.intervals += 1
        self._quiet = 0 if grew or higher else self._quiet + 1
        if new:
            self._kinds[kind] = max(began, level_kept), times + 1
            self._highest = max(began, self._highest)
            self._requests_met.add(requests)
        begins = (
            not self.folds and self._may_fold and (self._quiet >= QUIET or self.intervals >= MANY)
        )
        begun, in_parts = self._begins, bool(self._read)
        if self.folds and not new:
            if self._is_wanted():
                notes = self._snapshot()["device_traces"][self._journal.device]
                self._show(notes, self._sites.of(notes))
            self._drop_parts()
            self._forget(counts)
            self._repeated = (kind, whole_pieces) if follows else (None, ())
            for piece in self._repeated[1]:
                piece.repeats += 1
        elif self.folds or begins or self.untaken(counts) > SLICE or self._is_wanted():
            self.take(counts, peaks, at_rest=True)
            joined = self._join_parts() or not in_parts
            whole = not self._shorten() and begun and joined
            self._repeated = (
                (kind, [pieces[-1] for pieces in self._pieces.values()]) if whole else (None, ())
            )
            self._whole |= {kind} if whole else set()
            self._before = self._kept_so_far()
        else:
            self._repeated, self._begins = (None, ()), False
        self.folds = self.folds or begins
        return met

    def _kept_so_far(self) -> _KeptBefore:
        pieces = {device: len(pieces) for device, pieces in self._pieces.items()}
        kept, live = self._kept.copy(), dict(self._live)
        return _KeptBefore(pieces, kept, live, len(self._marks), self._record)

    def _drop_parts(self) -> None:
        """Let go of what was read in the midst of an interval that is not kept."""
        if self._before is not None:
            lengths, self._kept, self._live, marks, self._record = self._before
            self._pieces = {device: self._pieces[device][:end] for device, end in lengths.items()}
            self._new_marks[:0] = self._marks[marks:]
            del self._marks[marks:]
        self._before = self._kept_so_far()

    def _join_parts(self) -> bool:
        """Make one piece of what was read in the midst of an interval that is kept, and its end;
        return whether that could be told from what was before.
        """
        before = self._before
        if before is not None:
            for device, pieces in self._pieces.items():
                begin = before.pieces.get(device, 0)
                pieces[begin:] = [functools.reduce(_Piece.followed_by, pieces[begin:])]
        return before is not None

    def _is_wanted(self) -> bool:
        return self.reader is not None and self.reader.waits

    def _show(self, notes: list[dict[str, Any]], sites: list[int]) -> None:
        """Have the reader take what it wants of torch's notes, while nobody allocates."""
        assert self.reader is not None
        self.reader.read(_served_notes(notes, sites), self.reader.position())

    def untaken(self, counts: Sequence[int]) -> int:
        """Return how many allocations torch holds notes of."""
        return sum(counts) - sum(self._forgotten)

    def _forget(self, counts: Sequence[int], at_rest: bool = True) -> None:
        """Have torch forget what it noted."""
        assert self._clear is not None
        self._begins = at_rest
        self._clear()
        self._sites.forget()
        self._journal.forget(at_rest)
        if len(self._marks) < MOST_MARKS:
            self._marks += [mark for mark in self._new_marks if mark.kind in _LASTING]
        self._new_marks.clear()
        self._read.clear()
        self._forgotten = list(counts)

    def take(self, counts: Sequence[int], peaks: DevicePeaks, at_rest: bool = False) -> None:
        """Keep what torch noted since the last time. `at_rest` is whether nobody allocates
        meanwhile.

        Else torch keeps its notes, up to `SLICE`.
        """
        snapshot = self._snapshot()
        self._marks += self._new_marks
        self._new_marks.clear()
        self.settings = snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
        self._pools.look(snapshot["segments"])
        for device, notes in enumerate(snapshot["device_traces"]):
            if notes or device in self._pieces:
                allocated = _allocated(snapshot["segments"], device)
                record = _raised(self._record.get(device, {}), peaks.get(device, {}))
                sites = self._sites.of(notes)
                self._keep(device, notes, sites, allocated, record)
                if at_rest and self._is_wanted() and device == self._journal.device:
                    self._show(notes, sites)
        cut = not at_rest and self.untaken(counts) > SLICE
        if at_rest or cut:
            self._forget(counts, at_rest)
        if cut and self._shorten():
            self._before = None
        if at_rest:
            self._peaks = dict(peaks)
        self._record = dict(peaks)

    def end(self) -> None:
        """Nothing more comes: what is kept becomes what the trace has of it."""
        self._join_parts()
        self._shorten()

    def _keep(
        self,
        device: int,
        notes: list[dict[str, Any]],
        sites: list[int],
        allocated: AllocatedBlocks,
        record: frozenset[str],
    ) -> None:
        """Keep those of torch's notes that were not read before, and what was missed between them
        and the last.

        What was skipped stands in them by its markers (`repeat/journal`), of which all events get
        the number.
        """
        begin = self._read.get(device, 0)
        events = notes[begin:]
        noted = [
            (e["action"], e.get("addr", 0), e["size"], e["stream"])
            for e in events
            if e["action"] in _ENTRIES
        ]
        live = self._live.get(device, {})
        start = live  # notes that go on miss nothing
        journal = self._journal if device == self._journal.device else None
        awaited = journal.awaited if journal is not None else set()
        ended = journal.ended if journal is not None else set()
        if not begin:
            start = _undone(noted, allocated)
            start.update(journal.at_first() if journal is not None else {})
            start.update((address, live[address]) for address in awaited if address in live)
        missed, entries = difference(live, start), []
        before = sum(event["action"] == "alloc" for event in notes[:begin])
        number = before + (self._forgotten[device] if device < len(self._forgotten) else 0)
        unnoted = sum(entry[0] == "alloc" for entry in missed)
        numbers, of = [number - 1] * unnoted, [0] * unnoted
        of_sites = iter(sites[before:])
        for entry in noted:
            action, address, size, _ = entry
            if action != "alloc":
                if address not in ended or action not in _FREED:
                    entries.append(entry)
                continue
            site = next(of_sites)
            ended.discard(address)
            if address in awaited:
                # the script got it from a skipped call, in whose place it was allocated
                awaited.discard(address)
                number += 1
                continue
            skipped = journal.next(address, size) if journal is not None else None
            if skipped is None:
                new_entries, new_sites = [entry], [site]
            else:
                new_entries, new_sites = skipped.noted()
                ended |= {address, *skipped.gradients.values()}
                awaited.update(skipped.got.values())
            entries += new_entries
            numbers += [number] * len(new_sites)
            of += new_sites
            number += 1
        self._read[device] = len(notes)
        interval = slice(len(missed), len(missed) + len(entries))
        self._pieces.setdefault(device, []).append(
            _Piece(missed + entries, numbers, of, number, record=record, interval=interval)
        )
        self._kept[device] += len(numbers)
        self._live[device] = _after(start, entries)

    def allocations(self, device: int) -> int:
        """Return how many allocations of a device are kept."""
        return self._kept[device]

    def _shorten(self) -> bool:
        """Shorten what is kept of devices of which that is too much; return whether any was."""
        long = [device for device, kept in self._kept.items() if self._may_fold and kept > MOST]
        for device in long:
            self._shorten_of(device)
        return bool(long)

    def _shorten_of(self, device: int) -> None:
        """Keep of pieces that hold no peak, and reserve no more, what outlives them; neighbours
        become one.
        """
        first, *pieces = self._pieces[device]
        holders = set({name: piece for piece in pieces for name in piece.record}.values())
        room = RESERVING - sum(len(piece.numbers) for piece in (first, *holders))
        for piece in reversed(pieces):
            reserves = "reserved_bytes" in piece.record and piece not in holders
            if reserves and len(piece.numbers) <= room:
                room -= len(piece.numbers)
                holders.add(piece)
        short = [first]
        for piece in pieces:
            if piece in holders:
                short.append(piece)
            elif short[-1] is first or short[-1] in holders:
                short.append(_Piece([], [], [], piece.served_count).shortened_with(piece))
            else:
                short[-1] = short[-1].shortened_with(piece)
        self._pieces[device] = short
        self._kept[device] = sum(len(piece.numbers) for piece in short)

    def add(self, device: int, size: int) -> tuple[int, int, int]:
        """Add an allocation that the script did not make, after the last that was kept; return what
        `drop` takes.
        """
        self._before, piece = None, self._pieces[device][-1]
        entry = "alloc", _NOWHERE + piece.served_count, size, 0
        piece.entries.append(entry)
        piece.numbers.append(piece.served_count)
        piece.sites.append(0)
        self._kept[device] += 1
        return entry[1:]

    def drop(self, device: int, added: tuple[int, int, int]) -> None:
        """Free what was added."""
        self._before = None
        self._pieces[device][-1].entries += [(action, *added) for action in _FREED]

    # -- what a trace says of it -------------------------------------------------------------------

    def devices(self) -> list[int]:
        """Return the devices that were used, and in any case the first."""
        return sorted({0, *self._pieces})

    def columns(self, device: int) -> dict[str, list[Any]]:
        """Return `events` of a trace."""
        entries = [row for piece in self._pieces.get(device, ()) for row in piece.rows()]
        return {
            "action": [entry[0] for entry in entries],
            "address": [entry[1] for entry in entries],
            "size": [entry[2] for entry in entries],
            "stream": self._pools.streams(device, entries),
        }

    def sites(self, device: int) -> list[int]:
        """Return the number of the site of each allocation."""
        return [site for piece in self._pieces.get(device, ()) for site in piece.sites]

    def whole_until(self, device: int) -> int | None:
        """Return how many allocations come before the first that is left out; None: none is."""
        numbers = (number for piece in self._pieces.get(device, ()) for number in piece.numbers)
        return next((kept for kept, number in enumerate(numbers) if kept != number), None)

    def marks(self, device: int) -> list[dict[str, Any]]:
        """Return `marks` of a trace."""
        place = self.places(device)
        return [
            {"kind": mark.kind, "allocations": place(mark.counts[device]), "seconds": mark.seconds}
            for mark in self._marks
        ]

    def places(self, device: int) -> Callable[[int], int]:
        """Return what says, of how many allocations that were served, how many are kept."""
        numbers = [number for piece in self._pieces.get(device, ()) for number in piece.numbers]
        return lambda count: bisect.bisect_left(numbers, count)

    def doubt(self, note: Note) -> None:
        """Say what is doubted of its memory pools."""
        self._pools.doubt(note)


_NOWHERE = 1 << 62
"""An address that no device gives out."""


def _raised(before: dict[str, int], after: dict[str, int]) -> frozenset[str]:
    return frozenset(name for name in after if after[name] > before.get(name, 0))


def _allocated(segments: list[dict[str, Any]], device: int) -> AllocatedBlocks:
    """Return {address: (size, stream, whether it waits for other streams to be freed)} of a
    snapshot's segments.
    """
    return {
        block["address"]: (
            block["requested_size"],
            segment["stream"],
            block["state"] != "active_allocated",
        )
        for segment in segments
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] != "inactive"
    }


def _served_notes(notes: list[dict[str, Any]], sites: Iterable[int]) -> list[ServedNote]:
    """Return allocations and frees in the order in which torch counts them: a free counts when it
    is asked for.
    """
    sites, served = iter(sites), list[Any]()
    asked: dict[int, int] = {}  # frees that are not completed, by address: their places
    for e in notes:
        action, address = e["action"], e["addr"]
        if action == "free_completed" and address in asked:
            place = asked.pop(address)
            served[place] = (*served[place][:-1], len(served) - 1 - place)
        elif action in ("alloc", "free_requested"):
            if action == "free_requested":
                asked[address] = len(served)
            noted = next(sites) if action == "alloc" else len(notes)  # it does not end here
            served.append((action, address, e["size"], e["stream"], noted))
    return served


def _undone(entries: list[HistoryEntry], allocated: AllocatedBlocks) -> AllocatedBlocks:
    """Return what was allocated before these entries, if that is what is after them."""
    before = dict(allocated)
    for action, address, size, stream in reversed(entries):
        if action == "alloc":
            before.pop(address, None)
        elif action in _FREED:
            before[address] = (size, stream, action == "free_completed")
    return before


def _after(before: AllocatedBlocks, entries: list[HistoryEntry]) -> AllocatedBlocks:
    """Return what is allocated after these entries.

    What a snapshot says of it may be newer: torch copies its notes first, and other threads go on
    allocating.
    """
    after = dict(before)
    for action, address, size, stream in entries:
        if action == "alloc":
            after[address] = (size, stream, False)
        elif action == "free_completed":
            after.pop(address, None)
        elif action == "free_requested" and address in after:
            after[address] = (*after[address][:2], True)
        elif action == "moved_from":
            after.pop(address, None)
        elif action == "moved_to":
            after[address] = (size, stream, False)
    return after


def difference(before: AllocatedBlocks, after: AllocatedBlocks) -> list[HistoryEntry]:
    """Return entries that lead from what was allocated to what is."""
    same = {
        address
        for address in before.keys() & after.keys()
        if _goes_on(before[address], after[address])
    }
    gone = {address: block for address, block in before.items() if address not in same}
    came = {address: block for address, block in after.items() if address not in same}
    alike: dict[tuple[int, int, bool], list[int]] = {}
    for address, (size, stream, waits) in came.items():
        alike.setdefault((size, stream, waits), []).append(address)
    moved = [
        (address, alike[block].pop(0), *block[:2])
        for address, block in gone.items()
        if alike.get(block)
    ]
    for old, new, _, _ in moved:
        del gone[old], came[new]
    entries = []
    for address, (size, stream, waits) in gone.items():
        entries += [(action, address, size, stream) for action in (_FREED[1:] if waits else _FREED)]
    entries += [("moved_from", old, size, stream) for old, _, size, stream in moved]
    entries += [("moved_to", new, size, stream) for _, new, size, stream in moved]
    entries += [("alloc", address, size, stream) for address, (size, stream, _) in came.items()]
    # what moved waited before, too
    fresh = came.keys() | {address for address in same if not before[address][2]}
    waiting = [address for address, block in after.items() if block[2] and address in fresh]
    return entries + [("free_requested", address, *after[address][:2]) for address in waiting]


def _goes_on(before: tuple[int, int, bool], after: tuple[int, int, bool]) -> bool:
    """Whether what was allocated may be what is: of one size and stream; and what waited to be free
    is not in use.
    """
    return before[:2] == after[:2] and before[2] <= after[2]
