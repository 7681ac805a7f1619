"""What is known of calls of one kind: what they did to the allocator, and what they gave, as it was
recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from _xmem.repeat.events import Events, LeftBlock, adding, alike, taken_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _xmem.repeat.forms import Form
    from _xmem.repeat.layout import StorageLayout
    from _xmem.repeat.recorded import BackwardKind, RecordedCall

TIMES = 2
"""A call is skipped once so many of its kind, one after another, did the same."""
TIMES_OF_OTHERS = 8
"""So many, where one had a backward pass of a kind that has not come again."""
TRIES = 32
"""After so many that were recorded and not alike, or lost, those of a kind are made, and not
recorded."""
SPARED = 64
"""Calls that are made in the first steps of training, for what those have the GPU do."""
MOST_MET = 8
"""Ways of doing it that are remembered of a kind."""
WORTH = 24
"""Events of a call, and of its backward pass, from which on it costs less to skip it than to make
it."""


class Gave:
    """What a call gave: its form, its leaves, and of each storage whether the graph holds it."""

    def __init__(
        self, form: Form, leaves: StorageLayout, held: list[bool], differentiable: list[int]
    ) -> None:
        self.form, self.leaves, self.held, self.differentiable = form, leaves, held, differentiable
        """`differentiable`: the places of leaves that need a gradient."""

    def same(self, another: Gave) -> bool:
        """Whether another call gave the same."""
        mine, theirs = ((gave.held, gave.differentiable, gave.form) for gave in (self, another))
        return mine == theirs and self.leaves.same(another.leaves)


class BackwardPass(NamedTuple):
    """A backward pass through calls of one kind; `gradients` is the layout of parameters' gradients
    after it.

    `held` are the blocks of the call that are allocated when it begins; `again` is whether the one
    of its kind before did the same: in the first one of a script a library may take a workspace.
    """

    kind: BackwardKind
    held: tuple[LeftBlock, ...]
    events: Events
    gradients: StorageLayout
    again: bool = False

    def same(self, another: BackwardPass) -> bool:
        """Whether another one did the same."""
        return (
            self.held == another.held
            and self.gradients.same(another.gradients)
            and alike(self.events, another.events)
        )


class Known:
    """What calls of one kind do."""

    def __init__(self, kind: tuple[Any, ...] = ()) -> None:
        self.kind = kind
        """Of which kind they are (`Calls._behavior_of`)."""
        self._times = 0
        self.forward: Events = None  # type: ignore[assignment] # until one was learned
        self.gave: Gave = None  # type: ignore[assignment]
        self.held: Sequence[int] = ()
        """Which of its arguments the graph holds, by their places among all."""
        self.casts: Sequence[LeftBlock] = ()
        """Blocks left in autocast's cache."""
        self._backward: dict[BackwardKind, BackwardPass] = {}
        # those that follow from them (`_added_up`)
        self._derived: dict[BackwardKind, BackwardPass] = {}
        self._met: list[tuple[Events, Gave, list[LeftBlock]]] = []
        self._tried = self._spared = self._missed = 0
        self.round: int | None = None
        """In which round of the script the last one came."""

    @property
    def around(self) -> Any:
        """What their code reads past their arguments, as they begin."""
        return self.kind[4]

    @property
    def ready(self) -> bool:
        """Whether the next one can be skipped."""
        waits = not all(back.again for back in self._backward.values())
        return self._times >= (TIMES_OF_OTHERS if waits else TIMES)

    def is_tried(self, many: bool) -> bool:
        """Whether to record another one, which is one try more; of `many` kinds most may never come
        again.
        """
        self._tried += 1
        return many < self._tried <= TRIES

    def is_spared(self) -> bool:
        """Whether the next one is made although it could be skipped, which is so for some of
        them.
        """
        self._spared += 1
        return self._spared <= SPARED

    @property
    def small(self) -> bool:
        """Whether skipping it would cost more than making it."""
        longest = max((len(back.events.entries) for back in self._backward.values()), default=0)
        return len(self.forward.entries) + longest < WORTH

    def did(self, recorded: RecordedCall) -> bool:
        """Whether some call of this kind did what one did that was recorded now, as far as its
        backward pass.

        That is another if it is not alone: gradients of several calls are added up by some of them.
        Casts leave their cache in an order that means nothing: torch keeps it in a table that is
        hashed by address.
        """
        return any(
            alike(forward, recorded.forward)
            and gave.same(recorded.gave)
            and casts == sorted(recorded.casts)
            for forward, gave, casts in self._met
        )

    def learn(self, recorded: RecordedCall) -> None:
        """Take what was recorded of one; if it is alike, that was no try."""
        backs = [back._replace(again=self._has(back)) for back in recorded.backs]
        same = (
            self.forward is not None
            and alike(self.forward, recorded.forward)
            and self.gave.same(recorded.gave)
            and self.casts == recorded.casts
            and all(back.again for back in backs)
        )
        self._tried -= same
        if not self.did(recorded) and len(self._met) < MOST_MET:
            self._met.append((recorded.forward, recorded.gave, sorted(recorded.casts)))
        self._times = self._times + 1 if same else 1
        self.forward, self.gave, self.held = recorded.forward, recorded.gave, recorded.held
        self.casts = recorded.casts
        self._backward.update({back.kind: back for back in backs})
        self._derived.clear()

    def _has(self, back: BackwardPass) -> bool:
        before = self._backward.get(back.kind)
        return before is not None and before.same(back)

    def forget(self) -> None:
        """Skip no call of this kind any more, and record none."""
        self._times, self._tried = 0, TRIES

    @property
    def is_missed(self) -> bool:
        """Whether a call that was skipped had a backward pass of a kind not seen."""
        return self._missed > 0

    def miss(self) -> bool:
        """A call that was skipped has a backward pass of a kind not seen: those that follow are
        made, and recorded.

        Return whether it was not the first: then what differs comes now and then, and would be
        missed again.
        """
        self._missed += 1
        self._times = self._tried = 0
        return self._missed > 1

    def backward(self, kind: BackwardKind) -> BackwardPass | None:
        """Return the backward pass of this kind; None: none was seen, nor one that it follows
        from.
        """
        return self._backward.get(kind) or self._added_up(kind)

    def _added_up(self, kind: BackwardKind) -> BackwardPass | None:
        """Return the backward pass of a call whose gradients are added to those of others, by one
        whose are not.
        """
        alone = self._backward.get(kind._replace(given=()))
        if kind not in self._derived and any(kind.given) and alone is not None:
            gradients, theirs = alone.gradients, alone.events.script_blocks
            added = {
                place: gradients.block(place, theirs)
                for place, times in enumerate(kind.given)
                if times
            }
            in_new_memory = {
                block.number
                for place, block in added.items()
                if block is not None and kind.given[place] == 1 and gradients.is_matrix(place)
            }
            events = adding(alone.events, added.values(), in_new_memory)
            self._derived[kind] = alone._replace(kind=kind, events=events)
        return self._derived.get(kind)

    def any_backward(self) -> BackwardPass | None:
        """Return some backward pass; None: none was seen."""
        return next(iter(self._backward.values()), None)

    def went_back(
        self, back: BackwardPass, held: tuple[LeftBlock, ...], keeps_graph: bool
    ) -> Events:
        """Return the events of a backward pass through a call that holds these blocks, and may
        leave them so.
        """
        if held == back.held and not keeps_graph:
            return back.events
        staying = {*range(self.forward.blocks)} - (
            set() if keeps_graph else {block.number for block in held}
        )
        entries = tuple(entry for entry in back.events.entries if entry.block not in staying)
        gone = {entry.block for entry in entries if entry.action != "alloc"}
        remaining = tuple(block for block in held if block.number not in gone)
        return back.events._replace(
            entries=entries, remaining=remaining, held=taken_bytes(remaining)
        )
