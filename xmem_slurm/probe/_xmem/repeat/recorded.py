"""A call that is made for real, and its backward pass: where torch's notes of them are, and what
they say.

Note [Where a backward pass is]: torch's engine runs the nodes of a graph by falling number, so
those of one call follow each other. A hook tells where one is; but a gradient that Python has seen
is not added to in place any more (torch, input_buffer.cpp: it has another reference), which is a
block more than without us. So only those nodes have a hook that are entered from outside of a call,
or from inside of it, where skipping it would show Python the same gradients; and those that enter a
call which gave several tensors, to tell which of them have a gradient from outside.
"""

from __future__ import annotations

import bisect
import functools
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from _xmem.repeat.events import GRADIENT, Region, events
from _xmem.repeat.known import BackwardPass
from _xmem.repeat.layout import StorageLayout, is_strided, pointer, reach
from _xmem.repeat.sharded import local

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from _xmem.annotations import Reference, ServedNote, Tensor
    from _xmem.repeat.calls import State
    from _xmem.repeat.events import Events, LeftBlock
    from _xmem.repeat.known import Gave, Known

BOUNDARIES = 3
"""A call whose graph still stands so many boundaries later is not waited for."""
_LEAF = 1 << 62
"""Nodes that accumulate gradients have the highest number there is
(torch/csrc/autograd/function.h): they follow the node that made the gradient."""


class BackwardKind(NamedTuple):
    """When two backward passes are of one kind: where all of this is the same (`BackwardCall`)."""

    keep_graph: bool
    accumulate: bool
    named: Any
    without: tuple[bool, ...]
    given: tuple[int, ...]
    around: Any
    have_gradient: tuple[bool, ...]


class BackwardCall(NamedTuple):
    """How a backward pass was asked for; `inputs` is what gradients are wanted of, if the script
    named it: by its id, what tells it from others (`sign`).
    """

    keep_graph: bool
    create_graph: bool
    accumulate: bool
    inputs: Mapping[int, Any]

    def kind(
        self,
        parameters: Sequence[Tensor],
        without: Iterable[bool],
        given: Iterable[int],
        around: Any,
        have_gradient: Iterable[bool],
    ) -> BackwardKind:
        """Return its kind, for a call of a module with these parameters.

        `without`: which parameters have no gradient before it; `given`: of each, by how many others
        it was given one before (`times_given`); `around`: what its own code reads
        (`surroundings`); `have_gradient`: for which of what the call gave there is a gradient, as
        where a loss is of one of two heads.
        """
        return BackwardKind(
            self.keep_graph,
            self.accumulate,
            self._named(parameters),
            tuple(without),
            tuple(given),
            around,
            tuple(have_gradient),
        )

    def _named(self, parameters: Sequence[Tensor]) -> Any:
        """Return of which parameters, and of what else, gradients are wanted; None: of all.

        What torch's engine does hangs on it: it leaves out what leads to nothing that was named.
        """
        if not self.inputs:
            return None
        numbers = list(map(id, parameters))
        others = {self.inputs[number] for number in self.inputs.keys() - set(numbers)}
        return tuple([number in self.inputs for number in numbers]), frozenset(others)


def sign(tensor: Any, parameter_class: type) -> Any:
    """Return what tells a tensor from others that gradients may be wanted of, step for step."""
    if isinstance(tensor, parameter_class):
        return id(tensor)
    return getattr(tensor, "shape", None), getattr(tensor, "is_leaf", None)


class BeforeBackward(NamedTuple):
    """What a backward pass finds, as `BackwardCall.kind` has it; `kept` are the places of the
    parameters whose gradients torch keeps behind it, as others follow that are added to them.
    """

    without: list[bool]
    given: list[int]
    around: Any
    kept: list[int]


def times_given(
    parameters: Iterable[Tensor], added_up: Mapping[int, Sequence[int]], number: int
) -> list[int]:
    """Return how many nodes that run before that of this number give each parameter a gradient: 0,
    1, or 2 where more do, as torch then adds up in place. Empty: none does.
    """
    givers = [added_up.get(id(parameter), ()) for parameter in parameters] if added_up else []
    given = [min(2, sum(giver > number for giver in numbers)) for numbers in givers]
    return given if any(given) else []


class WentBack(NamedTuple):
    """Where a backward pass through a call was that is still to be read, and the numbers of the
    gradients that it began with, by their addresses; `whole` is the one that it is a part of,
    `gradients` the layout of parameters' after that, and `kept` as in `BeforeBackward`.
    """

    whole: Region
    region: Region
    kind: BackwardKind
    began_with: Mapping[int, int]
    gradients: StorageLayout
    kept: Sequence[int]

    def kept_sizes(self) -> dict[int, int]:
        """Return how many bytes each storage takes of the gradients that torch keeps, by its
        place.
        """
        storages = {self.gradients.views[place].storage for place in self.kept} - {None}
        return {storage: self.gradients.sizes[storage] for storage in sorted(storages)}

    def added_to(self, notes: list[ServedNote], first: int) -> set[int]:
        """Return addresses of what others have allocated in this backward pass before, if torch may
        add to that what the call gives; `notes` begin at position `first`.
        """
        addresses: set[int] = set()
        if any(self.kind.given):
            for action, address, *_ in notes[
                max(0, self.whole.begin - first) : self.region.begin - first
            ]:
                (addresses.add if action == "alloc" else addresses.discard)(address)
        return addresses - self.began_with.keys()

    def lasting(self, notes: list[ServedNote], first: int) -> list[int | None]:
        """Return the addresses of gradients; None where another block had it at the call's end."""
        later = notes[self.region.end - first : self.whole.end - first]
        others = {address for action, address, *_ in later if action == "alloc"}
        return [None if address in others else address for address in self.gradients.pointers]


class RecordedCall:
    """One call, and its backward passes: all but the last keep its graph.

    Its backward nodes have numbers from the first of `sequences` on, below the second.
    """

    def __init__(
        self,
        behavior: Known,
        parameters: list[Reference],
        position: int,
        sequence: int,
        casts: bool,
        *,
        state: State,
        differs: Callable[[], None],
        is_part: bool = False,
    ) -> None:
        """`is_part`: it is made within another call."""
        self._behavior = behavior
        self._is_part = is_part
        self._parameters = parameters
        self._state = state
        self._differs = differs
        self._is_check = behavior.ready  # it could have been skipped
        self.region, self.sequences = Region(position), [sequence, sequence]
        self._casts = casts  # whether autocast keeps what it casts
        self.gave: Gave = None  # type: ignore[assignment] # until it was described
        self.outs: Sequence[tuple[int, int]] = ()
        """Where in the graph the differentiable tensors are that it gave: (number of a node, place
        among its own)."""
        self.held: Sequence[int] = ()
        """Which of its arguments the graph holds, by their places among all."""
        self.gone: bool | None = False
        """Whether its graph is gone; None where it is no example."""
        self.forward: Events = None  # type: ignore[assignment] # until it was read
        self.backs: list[BackwardPass] = []
        self._unread: list[WentBack] = []  # since torch's notes were last read
        self._keeps_graph = True  # whether its last backward pass did, if there was one
        self.casts: tuple[LeftBlock, ...] = ()
        """Blocks that the call leaves and that are given back before its backward pass: in
        autocast's cache."""
        self._boundaries = 0
        # what it holds, by address, up to this position
        self._blocks: dict[int, LeftBlock] = {}
        self._followed: int = 0

    def parameters(self) -> list[Tensor]:
        """Return the module's parameters that need a gradient."""
        return [
            parameter
            for parameter in (reference() for reference in self._parameters)
            if parameter is not None
        ]

    @property
    def awaits_backward(self) -> bool:
        """Whether there may be a backward pass of it, or another one."""
        return self._keeps_graph and self.gone is False and bool(self.gave.differentiable)

    def before(self, added_up: Mapping[int, Sequence[int]]) -> BeforeBackward:
        """Return what a backward pass finds that begins now."""
        parameters = self.parameters()
        return BeforeBackward(
            [parameter.grad is None for parameter in parameters],
            times_given(parameters, added_up, self.sequences[1] - 1),
            self._state.surroundings.look_back(),
            [
                place
                for place, parameter in enumerate(parameters)
                if any(giver < self.sequences[0] for giver in added_up.get(id(parameter), ()))
            ],
        )

    def went_back(
        self,
        backward_call: BackwardCall,
        before: BeforeBackward,
        whole: Region,
        extent: tuple[Entered, int] | None,
        *,
        have_gradient: list[bool],
        began_with: Mapping[int, int],
    ) -> None:
        """Note its backward pass.

        `whole` is where the script's is; `extent` are the node that its own began with, and where
        it ended; None: in parts. `have_gradient` as in `BackwardCall.kind`, `began_with` as in
        `WentBack`.
        """
        parameters = self.parameters()
        gradients = [local(parameter.grad) for parameter in parameters]
        is_given = not backward_call.accumulate and any(
            id(parameter) in backward_call.inputs for parameter in parameters
        )
        if backward_call.create_graph:
            self._state.refuse()  # what stands for a call has no derivatives of derivatives
        if _are_taken_in_part(parameters, self._is_part):
            self._state.refuse()
            self.gone = None
            return
        plain = all(gradient is None or is_strided(gradient) for gradient in gradients)
        changes = self._state.surroundings.look_back() != before.around
        if backward_call.create_graph or is_given or extent is None or not plain or changes:
            # It is differentiated again, gives the script gradients, cannot be told from what is
            # around it, has sparse ones, or changes what its code reads.
            self.gone = None
            return
        first, end = extent
        kind = backward_call.kind(
            parameters, before.without, before.given, before.around, have_gradient
        )
        region = Region(first.position, end)
        layout = StorageLayout(gradients, _moved(parameters, gradients))
        self._unread.append(WentBack(whole, region, kind, began_with, layout, before.kept))
        self._keeps_graph = kind.keep_graph

    def read(self, notes: list[ServedNote], first: int) -> bool:
        """Take what torch noted of it; `notes` begin at position `first`. Return whether that was
        all.
        """
        self._boundaries += 1
        if self.forward is None:
            mine = self.region.of(notes, first)
            if mine is None:
                return True  # they were forgotten
            self.forward, self._blocks = events(mine, {}, self.gave.leaves.pointers, 0)
            self._followed = self.region.end
        for went_back in self._unread:
            mine = went_back.region.of(notes, first)
            if mine is None:
                return True
            self._follow(notes, first, went_back.region.begin)
            held = tuple(sorted(self._blocks.values()))
            back_events, self._blocks = events(
                mine,
                self._blocks,
                went_back.lasting(notes, first),
                self.forward.blocks,
                gradients=went_back.began_with,
                added_to=went_back.added_to(notes, first),
                kept=went_back.kept_sizes(),
                ends=True,
            )
            self._followed = went_back.region.end
            self.backs.append(BackwardPass(went_back.kind, held, back_events, went_back.gradients))
        self._unread.clear()
        if self.awaits_backward:
            self._follow(notes, first, first + len(notes))
        # A graph that was kept and still stands may be the script's: more is not waited for.
        last = bool(self.backs) and self._boundaries == BOUNDARIES
        whole = self.gone is not None and (last or not self.awaits_backward)
        lives_on = self.casts if self.gave.differentiable else self.forward.remaining
        if whole and self._is_check:
            if (lives_on and not self._casts) or not self._behavior.did(self):
                self._differs()
        elif whole and (self._casts or not (lives_on or self._is_held_elsewhere())):
            self._behavior.learn(self)
            # From here on for all of its kinds: a backward pass through one that is made and one
            # that is skipped has other addresses than the job's.
            self._state.small |= self._behavior.ready and self._behavior.small
        return whole or self.gone is None or self._boundaries >= BOUNDARIES

    def _is_held_elsewhere(self) -> bool:
        """Whether something of the call is left after a backward pass that keeps no graph: the
        script has it, maybe.
        """
        return not self._keeps_graph and bool(self.backs[-1].events.remaining)

    def _follow(self, notes: list[ServedNote], first: int, end: int) -> None:
        """Take what is given back of its blocks up to position `end`, where its graph still
        stands.

        What ends between two of its backward passes is somebody else's doing: it is no example.
        """
        for action, address, *_ in notes[self._followed - first : end - first]:
            if action != "alloc" and address in self._blocks:
                if self.backs:
                    self.gone = None
                self.casts += (self._blocks.pop(address),)
        self._followed = end


def _are_taken_in_part(parameters: Sequence[Tensor], is_part: bool) -> bool:
    """Whether hooks that are called once a gradient is there have taken some and left others, of
    the parameters of a call, or of those around it.

    DeepSpeed's do, bucket by bucket: what one does depends on which were called before. Where a
    whole backward pass is skipped that takes all of them, none of the hooks is called.
    """
    hooked = [parameter for parameter in parameters if parameter._post_accumulate_grad_hooks]
    taken = {parameter.grad is None for parameter in hooked}
    return len(taken) > 1 or (is_part and True in taken)


def _moved(parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> set[int]:
    """Return at which places hooks that are called once a gradient is there have put it into memory
    of their own, as DeepSpeed's ZeRO-2 does with those of a bucket.

    They are called for a skipped call, too, and allocate that again: torch gives them a gradient
    that has nothing but its own.
    """
    return {
        place
        for place, (parameter, gradient) in enumerate(zip(parameters, gradients))  # noqa: B905 - since Python 3.10
        if gradient is not None
        and parameter._post_accumulate_grad_hooks
        and reach(gradient) < gradient.untyped_storage().nbytes()
    }


class GraphWatch:
    """Goes with the graph of a call that is recorded, and tells when that is gone."""

    def __init__(self, recorded: RecordedCall) -> None:
        self._recorded = weakref.ref(recorded)

    def __del__(self) -> None:
        recorded = self._recorded()
        if recorded is not None and recorded.gone is False:
            recorded.gone = True


class Entered(NamedTuple):
    """A backward node, by its number: where it begins, and the addresses of the gradients that
    it is given, by their places.
    """

    number: int
    position: int
    addresses: tuple[int | None, ...]


class BackwardWatch:
    """Notes where the backward passes of recorded calls are, while torch's engine runs."""

    _met: list[Entered]
    _handles: list[Any]

    def __init__(
        self,
        recorded: list[RecordedCall],
        backward_call: BackwardCall,
        added_up: Mapping[int, Sequence[int]],
        position: Callable[[], int],
    ) -> None:
        self._recorded, self._backward_call, self._position = recorded, backward_call, position
        self._before = [call.before(added_up) for call in recorded]
        self._whole = Region(position())
        self._met, self._handles = [], []
        # (number of a node, place among its outputs) of those that get a gradient from outside
        self._outs_with_gradient: set[tuple[int, int]] = set()

    def begin(self, roots: Sequence[Any]) -> None:
        """Watch torch's engine, which is to run from these tensors on."""
        edges = sorted(number for call in self._recorded for number in call.sequences)
        entrances, over = _entrances(edges, roots)
        self._outs_with_gradient = {
            (node_number(root.grad_fn), root.output_nr)
            for root in roots
            if root.grad_fn is not None
        }
        for node in entrances:
            self._handles.append(
                node.register_prehook(functools.partial(self._entered, node_number(node)))
            )
        watched_outs = {out for call in self._recorded if len(call.outs) > 1 for out in call.outs}
        for node, entered in over.items():
            wanted = [entrance for entrance in entered if entrance[1] in watched_outs]
            if wanted:
                self._handles.append(node.register_hook(functools.partial(self._passed, wanted)))

    def end(self) -> None:
        """Take what was seen."""
        for handle in self._handles:
            handle.remove()
        self._whole.end = self._position()
        end = Entered(-1, self._whole.end, ())
        for call, before in zip(self._recorded, self._before):  # noqa: B905 - since Python 3.10
            first, last = call.sequences
            place = next(
                (place for place, node in enumerate(self._met) if first <= node.number < last), None
            )
            if place is not None:
                after = next(
                    (node for node in [*self._met[place:], end] if not first <= node.number < last)
                )
                later = any(
                    first <= node.number < last
                    for node in self._met
                    if node.position > after.position
                )
                extent = None if later else (self._met[place], after.position)
                alone = len(call.outs) == 1
                call.went_back(
                    self._backward_call,
                    before,
                    self._whole,
                    extent,
                    have_gradient=[alone or out in self._outs_with_gradient for out in call.outs],
                    began_with=self._began_with(call),
                )

    def _began_with(self, call: RecordedCall) -> dict[int, int]:
        """Return the numbers of the gradients that a call was given, by their addresses."""
        met = {
            (node.number, place): address
            for node in self._met
            for place, address in enumerate(node.addresses)
        }
        numbers = _numbers([met.get(out) for out in call.outs])
        return {address: number for number, address in numbers.items()}

    def _entered(self, number: int, gradients: Sequence[Tensor | None]) -> None:
        self._met.append(Entered(number, self._position(), _addresses(gradients)))

    def _passed(
        self,
        entered: list[tuple[int, tuple[int, int]]],
        gradients: Sequence[Tensor | None],
        _grad_outputs: object,
    ) -> None:
        """A node has its gradients for the next ones, of which it enters these, by place."""
        self._outs_with_gradient.update(
            out for place, out in entered if gradients[place] is not None
        )


def gradient_addresses(gradients: Iterable[Tensor | None]) -> dict[int, int]:
    """Return where the gradients lie that a call is given, by their numbers (`GRADIENT`)."""
    return _numbers(_addresses(gradients))


def _addresses(gradients: Iterable[Tensor | None]) -> tuple[int | None, ...]:
    return tuple([None if gradient is None else pointer(gradient) for gradient in gradients])


def _numbers(addresses: Sequence[int | None]) -> dict[int, int]:
    """Return {number: address}, without those that are in one place: who gives that back?"""
    return {
        GRADIENT - place: address
        for place, address in enumerate(addresses)
        if address is not None and addresses.count(address) == 1
    }


def _entrances(
    edges: list[int], roots: Iterable[Any]
) -> tuple[set[Any], dict[Any, list[tuple[int, tuple[int, int]]]]]:
    """Return the nodes in the graphs of these tensors that are entered over an edge, a number
    between two nodes'.

    And those that they are entered from: of each, at which of its places, and which output of a
    node by its number.
    """
    waiting = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
    met, entered_nodes = set(waiting), {node for node in waiting if node_number(node) < _LEAF}
    over: dict[Any, list[tuple[int, tuple[int, int]]]] = {}
    while waiting:
        parent = waiting.pop()
        above = bisect.bisect_right(edges, node_number(parent))
        for place, (node, output) in enumerate(parent.next_functions):
            if node is None:
                continue
            number = node_number(node)
            if number < _LEAF and bisect.bisect_right(edges, number) < above:
                entered_nodes.add(node)
                over.setdefault(parent, []).append((place, (number, output)))
            if node not in met:
                met.add(node)
                waiting.append(node)
    return entered_nodes, over


def node_number(node: Any) -> int:
    """Return the number of a backward node, which grows with each that is made."""
    return getattr(node, "_sequence_nr", lambda: _LEAF)()
