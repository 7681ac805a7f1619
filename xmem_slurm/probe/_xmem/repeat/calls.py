"""Calls of modules that were met before are skipped: the script goes on with tensors like those
that they gave.

Note [Fast forward]: on stand-ins no kernel runs, so values are the same whether torch dispatches a
call or not. A call of a kind (Note [Kinds]) that did the same to the allocator twice, its backward
pass included, is not made again. In its place stand its events (`journal`), tensors like its
outputs, and one node in the graph (`node`) whose backward pass stands for that of the call. All
else is the script's own Python, run as it is: loops, counters, callbacks, schedules, samplers. So
it comes to its own end, and nothing about it is guessed.

Now and then they are made all the same (`checks`). If one does something else than those before it,
something has changed that is not of its kind: that is a doubt, and no call of that module is
skipped any more.

Not skipped, each for itself or for good: calls that change an attribute of a module (but for the
weights that torch's weight_norm and spectral_norm make anew: those are given, too), that read
values or draw numbers on the host, that write to their arguments or give them back, that change
what their code reads, or the lists that they are given, so that the next one is another (one that
is skipped would change nothing, and the next be of its kind again); that give values which are
known, or anything but tensors and plain values; from which something lives on that was not given;
where hooks are on a module; where somebody traces, captures or looks on. Then their parts may be.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import operator
import threading
import weakref
from typing import TYPE_CHECKING, Any

from _xmem.repeat import kinds, made_late
from _xmem.repeat.checks import Checks
from _xmem.repeat.events import freeing, without_sums
from _xmem.repeat.forms import NoFormError, put_together, taken_apart
from _xmem.repeat.host_reads import UNREAD, HostReads
from _xmem.repeat.kinds import Kinds
from _xmem.repeat.known import Gave, Known
from _xmem.repeat.layout import StorageLayout, pointer
from _xmem.repeat.node import Held, SkippedGraph, added_up, derivatives_class, node_class
from _xmem.repeat.recorded import (
    BackwardCall,
    BackwardWatch,
    GraphWatch,
    RecordedCall,
    gradient_addresses,
    node_number,
    sign,
    times_given,
)
from _xmem.repeat.sharded import as_gradient, local, sharding
from _xmem.repeat.surroundings import CallSurroundings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    from _xmem.annotations import (
        CallsWatcher,
        Function,
        HasValues,
        Module,
        Note,
        Reference,
        ServedNote,
        Storage,
        Tensor,
    )
    from _xmem.repeat.events import Events, LeftBlock
    from _xmem.repeat.journal import Journal
    from _xmem.repeat.known import BackwardPass
    from _xmem.repeat.optimizers import RecordedStep
    from _xmem.repeat.sharded import Sharding

REFUSALS = 3
"""A module of which so many calls, one after another, could not be skipped, is left alone; its
parts are not."""
MANY_KINDS = 32
"""Where a module has more, as where lengths vary, a first call of a kind is made without being
recorded."""
MANY_WAITING = 32
"""So many calls that wait for torch's notes, and for no backward pass, are read before the script
evaluates further: a sampler has neither batches nor steps, and may make no call of one kind
twice."""
MOST_CHANGES = 10_000
"""Changes of modules that are remembered; then all modules are looked at anew."""
MOST_KINDS = 4096
"""Kinds of calls of one module; more are as good as none."""


class State:
    """What is known of one module; nothing here keeps it, or what it has, alive."""

    def __init__(self) -> None:
        self.behaviors: dict[Any, Known] = {}
        self.refused = 0
        self.small = False
        self.casts: int | None = None  # the region of autocast in which it was last called
        self.steps = -1  # how many steps of optimizers there were when it was last called
        # of modules and hooks, when it was last looked at
        self.version: tuple[int, int, int] | None = None
        self.within: frozenset[int] = frozenset()  # ids of the modules that it is made of
        self.parts: Sequence[int] = ()  # ids of the parameters and modules that those have
        self.parameters: Sequence[Reference] = ()
        self.modules: Sequence[Reference] = ()
        self.configurations: Sequence[Any] = ()
        # (reference to a module, name of an attribute that each call makes anew)
        self.recomputed: Sequence[tuple[Reference, str]] = ()
        self.settings: int | None = None
        self.sharding: Sharding | None = None
        self.surroundings: CallSurroundings = None  # type: ignore[assignment] # until it was looked at
        # whose values its calls read: (places of arguments, {id of a buffer: reference to it})
        self.reads: tuple[set[int], dict[int, Reference]] | None = None
        # recorded calls with numbers on the host of which none was read; None: one was
        self.unread: int | None = 0
        self.last: int | None = None  # the number of the one that was skipped last
        self.recorded: RecordedCall | None = None  # the last one that was recorded

    @property
    def reads_numbers(self) -> bool:
        """Whether numbers on the host count (Note [Numbers not read])."""
        return self.unread is None or self.unread < UNREAD

    def refuse(self) -> None:
        """Skip no call of it any more."""
        self.refused = REFUSALS


class Calls:
    """The calls of one process.

    `process` says how many bytes are allocated (`level`), how many values the host has read past
    `values` (`reads_unexplained`), how many steps were made (`steps_made`), whether a call
    `counts`, and is told that one comes again (`again`), or one without gradients (`measures`);
    `values` has those that are known.
    """

    def __init__(
        self, torch: ModuleType, journal: Journal, process: CallsWatcher, values: HasValues
    ) -> None:
        self._torch, self.journal, self._process, self._values = torch, journal, process, values
        # until CUDA is in use
        self._kinds: Kinds = None  # type: ignore[assignment]
        self._tree: ModuleType = None  # type: ignore[assignment]
        self._node: Any = None
        self._derivatives: Any = None
        self._one_use = self._one_reference = 0
        self._states: weakref.WeakKeyDictionary[Module, State] = weakref.WeakKeyDictionary()
        self._thread: int | None = None
        self._depth = 0  # how many calls there are within each other
        self._inside = False  # of a call that is made, and whose parts are not looked at
        self._backward: BackwardCall | None = None  # how the backward pass at hand was asked for
        # ids of parameters that had no gradient before it, and have one from a skipped call
        self._given_now: set[int] = set()
        # {id of a parameter: where the gradient lies that a skipped call gave it just now}
        self._given_at: dict[int, int] = {}
        # {id of a parameter that several nodes give a gradient: their numbers}
        self._added_up: dict[int, Sequence[int]] = {}
        self._skipped_nodes: set[int] = set()  # numbers of those of skipped calls, if those are any
        # parameters without a gradient yet, whose first one somebody else is taken to have given
        self._taken_as_given: list[Tensor] = []
        self._own_hooks = 0  # on tensors; of those no module has to be looked at anew
        # ids of modules that were changed, and how often those were forgotten
        self._changed: list[int] = []
        self._forgotten = 0
        self._recorded: list[RecordedCall | RecordedStep] = []
        self.checks = Checks()
        self._casts = 0  # regions of autocast so far
        # calls that left casts in its cache
        self._left_casts: list[tuple[int, Sequence[LeftBlock]]] = []
        self._doubts: set[str] = set()
        self.skipped = 0
        """How many were."""
        self.failed = False
        """Whether an error has left a call of a module, whoever caught it then."""

    def begin(self) -> None:
        """CUDA is in use, and this is the thread whose calls are skipped."""
        torch = self._torch
        self._kinds, self._tree = Kinds(torch), torch.utils._pytree
        self._node, self._derivatives = node_class(torch, self), derivatives_class(torch)
        alone = torch.empty(1, device="cpu")
        self._one_use, self._one_reference = _uses(torch, alone), alone._use_count()
        self._thread = threading.get_ident()

    def end(self) -> None:
        """No call is skipped any more."""
        self._thread = None
        self._recorded = []

    def is_here(self, tensor: Tensor) -> bool:
        """Whether a tensor is on the one device whose calls are skipped: the first that is met."""
        if tensor.is_cuda and self.journal.device is None:
            self.journal.begin(self._torch, tensor.device.index)
        return tensor.is_cuda and tensor.device.index == self.journal.device

    def stream(self) -> int:
        """Return the address of the stream that work goes to now; each has blocks, and workspaces
        of libraries, of its own.
        """
        stream: int = self._torch._C._cuda_getCurrentRawStream(self.journal.device)
        return stream

    def is_unknown(self, tensor: Tensor) -> bool:
        """Whether a tensor is there, and its values are not known."""
        return self.is_here(tensor) and self._values.of(tensor) is None

    @property
    def skips(self) -> bool:
        """Whether this is a place where calls are skipped, or recorded to be."""
        return not self._inside and self._backward is None and threading.get_ident() == self._thread

    # -- what takes the place of torch's own (`patches`) -------------------------------------------

    def called(self, call: Function, _module_class: type) -> Function:
        """Each call of a module comes through here."""
        is_compiling = self._torch.compiler.is_compiling

        @functools.wraps(call)
        def called(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or not self.skips:
                return call(*args, **kwargs)
            self._depth += 1
            try:
                return self._call(functools.partial(call, *args, **kwargs), *args, **kwargs)
            except Exception:
                self.failed = True
                raise
            finally:
                self._depth -= 1

        return called

    def changed(self, change: Function, _module_class: type) -> Function:
        """Around what sets or deletes an attribute of a module."""

        @functools.wraps(change)
        def noted(module: Module, name: str, *value: Any) -> Any:
            if not self._inside and (not value or vars(module).get(name, self) is not value[0]):
                self._changed.append(id(module))
            return change(module, name, *value)

        return noted

    def registered(self, register: Function, _module_class: type) -> Function:
        """Around what gives a module a part past its attributes: a module, a parameter or a
        buffer.
        """

        @functools.wraps(register)
        def noted(module: Module, *args: Any, **kwargs: Any) -> Any:
            self._changed.append(id(module))
            return register(module, *args, **kwargs)

        return noted

    def run_backward(self, run: Function, _autograd: ModuleType) -> Function:
        """Around torch's engine: the backward passes of calls that are recorded are found in its
        notes.
        """

        @functools.wraps(run)
        def ran(
            roots: Sequence[Any],
            gradients: Sequence[Any],
            keep_graph: bool,
            create_graph: bool,
            inputs: Sequence[Any] = (),
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            if not self.skips:
                return run(roots, gradients, keep_graph, create_graph, inputs, *args, **kwargs)
            accumulate = bool(kwargs.get("accumulate_grad"))
            named = {id(tensor): sign(tensor, self._torch.nn.Parameter) for tensor in inputs}
            self._backward = BackwardCall(bool(keep_graph), bool(create_graph), accumulate, named)
            try:
                with self._watched(roots):
                    found = run(roots, gradients, keep_graph, create_graph, inputs, *args, **kwargs)
                self._give_what_is_missing()
                return found
            finally:
                self._backward = None
                self._given_now.clear()
                self._given_at.clear()
                self._taken_as_given.clear()
                self._added_up = {}

        return ran

    @contextlib.contextmanager
    def _watched(self, roots: Sequence[Any]) -> Iterator[None]:
        """Within this, the backward passes of calls that are recorded are watched."""
        watch, recorded = None, self._awaiting_backward()
        try:
            if recorded or self.journal.allocated:  # the latter by graphs of skipped calls
                self._added_up, self._skipped_nodes = added_up(roots)
            if recorded:
                assert self._backward is not None
                watch = BackwardWatch(recorded, self._backward, self._added_up, self.position)
                watch.begin(roots)
        except Exception as error:
            self._broken(error)
        try:
            yield
        finally:
            try:
                if watch is not None:
                    watch.end()
            except Exception as error:
                self._broken(error)

    def uncached(self, clear: Function, _torch: ModuleType) -> Function:
        """Around what empties autocast's cache: with it go the casts that skipped calls left
        there.
        """

        @functools.wraps(clear)
        def cleared() -> Any:
            casts, self._left_casts = self._left_casts, []
            self._casts += 1
            for number, blocks in casts:
                self.let_go(number, blocks)
            return clear()

        return cleared

    # -- a call ------------------------------------------------------------------------------------

    def _call(self, make: Callable[[], Any], module: Module, *args: Any, **kwargs: Any) -> Any:
        """Skip a call, record it, or make it; whatever goes wrong here is no matter of the
        script's.
        """
        try:
            way = self._way(module, args, kwargs)
        except Exception as error:
            self._broken(error)
            return make()
        return way(make)

    def _way(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Callable[[Callable[[], Any]], Any]:
        """Return what gives what a call gives; it takes what makes the call."""
        state = self._states.get(module)
        if state is None:
            state = self._states[module] = State()
        evaluates = self._depth == 1 and not self._torch.is_grad_enabled()
        if evaluates:
            self._process.measures(shown=False)
        if state.small:
            return self._inside_of
        if state.refused >= REFUSALS or not self._kinds.applies():
            return self._made_by(state)
        leaves, form = self._leaves(args, kwargs)
        of_leaves = self._kinds.of_all(leaves, unread=not state.reads_numbers)
        parameters = () if of_leaves is None else self._looked_at(module, state)
        # An activation, a loss, or something among its arguments that has no kind; a sharded root
        # that is under way.
        if not parameters or (state.sharding is not None and not self._rests(state)):
            return self._made_by(state)
        behavior = self._behavior_of(state, leaves, (of_leaves, form), parameters)
        waits = evaluates and self._many_wait()
        behavior.round = self._process.again(behavior.round, evaluates, waits=waits)
        counts = self._process.counts(behavior)
        if not behavior.ready or self.compares:
            tried = behavior.ready or behavior.is_tried(len(state.behaviors) > MANY_KINDS)
            way = self._made_by(state)
            if tried:
                way = functools.partial(self._record, state, behavior, (args, kwargs))
            return way
        if counts and self._torch.is_grad_enabled() and behavior.is_spared():
            return self._inside_of
        out = self._skip(state, behavior, leaves, parameters)
        return lambda _make: out

    def _around(self, state: State) -> Any:
        """Return what a module's code reads; if that may change unnoticed, no call of it is skipped
        from now on.
        """
        surroundings = state.surroundings.look()
        if not state.surroundings.is_told:
            state.refuse()
        if not state.surroundings.is_of_now:  # the next call follows other functions
            state.version = None
        self._trust(state.surroundings.changed_unseen)
        return surroundings

    @property
    def compares(self) -> bool:
        """Whether what could be skipped is made just now, to compare it."""
        self.checks.come_to(self._process.interval, self._process.loops)
        return self.checks.is_checking

    def step_differs(self) -> None:
        """A step that could have been skipped has not done what is known of it."""
        self._doubts.add("a later step does not do what earlier ones did")

    def _differs(self, state: State, name: str) -> None:
        """A call that could have been skipped has not done what is known of it: none of that module
        is any more.
        """
        state.refuse()
        self._doubts.add("a later call of %s does not do what earlier ones did" % name)

    def _trust(self, changed: bool) -> None:
        if changed:
            self._doubts.add("what a module's code reads has changed, past what each call looks at")

    def _broken(self, error: BaseException) -> None:
        """Skip nothing any more: something here is not as it was thought."""
        self.end()
        self._doubts.add("a fault of xmem-slurm (%s: %s)" % (type(error).__name__, error))

    def _leaves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
        """Return the leaves of a call's arguments, and their form; most have no containers among
        them.
        """
        leaves = [*args, *kwargs.values()]
        if any(isinstance(argument, (list, tuple, dict)) for argument in leaves):
            return self._tree.tree_flatten((args, kwargs))
        return leaves, (len(args), *kwargs)

    def _made_by(self, state: State) -> Callable[[Callable[[], Any]], Any]:
        """Return what makes a call, whose parts may be skipped unless the module is a sharded
        root.
        """
        return _made_as_it_is if state.sharding is None else self._inside_of

    def _inside_of(self, make: Callable[[], Any]) -> Any:
        """Make a call whose parts are not looked at."""
        self._inside = True
        try:
            return make()
        finally:
            self._inside = False

    def _looked_at(self, module: Module, state: State) -> Sequence[Tensor]:
        """Look at a module again if any was changed; return its parameters."""
        if len(self._changed) > MOST_CHANGES:
            self._changed, self._forgotten = [], self._forgotten + 1
        version = self._forgotten, self._hooks(), len(self._changed)
        # What a module has is also changed past its attributes, as by torch.func.functional_call
        # and ModuleDict.pop.
        same = state.parts == _parts(_alive(state.modules))
        if not same or (state.version != version and not self._is_as_it_was(state, version)):
            modules = list(module.modules())
            state.within = frozenset(map(id, modules))
            state.modules, state.parts = [weakref.ref(part) for part in modules], _parts(modules)
            parameters = list(module.parameters())
            # without a shape before the first call
            if any(map(self._torch.nn.parameter.is_lazy, parameters)):
                return ()
            state.sharding = sharding(modules)
            whole = state.sharding is not None or all(
                local(parameter) is parameter for parameter in parameters
            )
            state.parameters = ()
            if whole and all(map(self.is_here, parameters)):
                state.parameters = [weakref.ref(parameter) for parameter in parameters]
            state.settings = hash((str(self._kinds.settings(modules)), *map(id, parameters)))
            state.configurations = self._kinds.configurations(modules)
            state.recomputed = [
                (weakref.ref(part), name) for part in modules for name in kinds.recomputed(part)
            ]
            self._trust(state.surroundings is not None and state.surroundings.has_changed_unseen())
            state.surroundings = CallSurroundings(
                self._torch, modules, state.configurations, state.surroundings
            )
            state.version = version
        return _alive(state.parameters)

    def _hooks(self) -> int:
        """Return how many hooks the script has had torch call so far, of modules and of tensors:
        torch numbers them.
        """
        return self._torch.utils.hooks.RemovableHandle.next_id - self._own_hooks

    def _is_as_it_was(self, state: State, version: tuple[int, int, int]) -> bool:
        """Whether other modules were changed since this one was looked at, and none that it is made
        of.
        """
        if state.version is None or state.version[:2] != version[:2]:
            return False
        if not state.within.isdisjoint(self._changed[state.version[2] :]):
            return False
        state.version = version
        return True

    def _behavior_of(
        self,
        state: State,
        leaves: list[Any],
        of_arguments: tuple[Any, ...],
        parameters: Sequence[Tensor],
    ) -> Known:
        """Return what is known of calls of this kind."""
        casts = self._torch.is_autocast_enabled("cuda") and state.casts == self._casts
        state.casts = self._casts
        first, without = parameters[0], self._torch.is_grad_enabled()
        # Gradients may go between a call and its backward pass, which is so in the first one after
        # a step (Lightning).
        steps = self._process.steps_made() if without else state.steps
        begins, state.steps = steps != state.steps, steps
        key = (
            *of_arguments,
            self._kinds.switches(),
            state.settings,
            self._around(state),
            tuple(
                [
                    (
                        parameter.requires_grad,
                        parameter.dtype,
                        parameter.numel(),
                        # channels_last or not; a question that costs is not asked of matrices
                        parameter.stride() if parameter.dim() > 2 else (),
                    )
                    for parameter in parameters
                ]
            ),
            _buffers(_alive(state.modules)),
            tuple(_without(parameters)) if without else None,
            (first.device, first.shape),
            self.stream(),
            casts,
            begins,
            state.sharding and state.sharding.kind(),
            state.reads and self._read_by(state, leaves),
        )
        behavior = state.behaviors.get(key)
        if behavior is None:
            if len(state.behaviors) >= MOST_KINDS:
                state.behaviors.clear()
            behavior = state.behaviors[key] = Known(key)
        return behavior

    # -- a call that is made -----------------------------------------------------------------------

    def _record(
        self,
        state: State,
        behavior: Known,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        make: Callable[[], Any],
    ) -> Any:
        """Make a call, and have torch's notes of it read; unless it is one that must not be
        skipped.
        """
        torch, modules = self._torch, _alive(state.modules)
        sharding_hooks = state.sharding.hooks() if state.sharding is not None else ()
        if any(kinds.hooked(module, sharding_hooks) for module in modules):
            state.refused += 1
            return make()
        leaves, form = self._leaves(*arguments)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        needs = [
            reference
            for reference in state.parameters
            if reference() is not None and reference().requires_grad
        ]
        before = self._state(state, modules, tensors)
        references = [_references(torch, tensor) for tensor in tensors]
        hooks = self._hooks()
        sequence = torch._C._autograd._get_sequence_nr
        casts = self._kinds.keeps_casts()
        differs = functools.partial(self._differs, state, type(modules[0]).__name__)
        recorded = RecordedCall(
            behavior,
            needs,
            self.position(),
            sequence(),
            casts,
            state=state,
            differs=differs,
            is_part=self._depth > 1,
        )
        blind = self._process.reads_unexplained()
        with self._values.origins() as origins:
            out, reads_number = self._reading(state, leaves, make)
        recorded.region.end, recorded.sequences[1] = self.position(), sequence()
        try:
            # Who gives a tensor a hook is told of its gradient, which what stands for a call is
            # not; sharding does so.
            same = state.sharding is not None or self._hooks() == hooks
            same = same and self._state(state, modules, tensors) == before
            fit = same and self._describe(recorded, out, modules, tensors, state)
            # What it changes there would stay as it is where it is skipped: a list that it takes
            # something from, a dictionary or a global that it counts in. Others may change nothing.
            changes = (
                reads_number
                or not self._has_the_same(arguments, leaves, form)
                or state.surroundings.look() != behavior.around
            )
            reads = None
            if self._process.reads_unexplained() <= blind:
                reads = self._reads(leaves, modules, origins)
        except Exception as error:
            self._broken(error)
            return out
        if not fit or reads is None:
            state.refused += 1
            if behavior.ready:
                differs()
            return out
        if changes:
            if behavior.ready:
                differs()
            return out
        if not self._has_read_before(state, *reads):
            return out
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        recorded.held = tuple(
            place
            for place, tensor, count in zip(places, tensors, references)  # noqa: B905 - since Python 3.10
            if _references(torch, tensor) > count
        )
        state.refused, state.recorded = 0, recorded
        self.wanted(recorded)
        return out

    def _reading(
        self, state: State, leaves: list[Any], make: Callable[[], Any]
    ) -> tuple[Any, bool]:
        """Make a call whose parts are not looked at; return what it gives, and whether it has read
        a number that is not of its kind (Note [Numbers not read]).
        """
        if state.unread is None or not any(map(self._kinds.is_number, leaves)):
            return self._inside_of(make), False
        host_reads, looks, counted = HostReads(), self._values.reads, state.reads_numbers
        with contextlib.ExitStack() as watching:
            try:
                watching.enter_context(host_reads.watched(self._torch))
            except Exception as error:
                self._broken(error)
            out = self._inside_of(make)
        is_read = host_reads.count > 0 or self._values.reads != looks
        state.unread = None if is_read else state.unread + 1
        return out, is_read and not counted

    def _reads(
        self, leaves: list[Any], modules: list[Module], origins: set[int]
    ) -> tuple[set[int], dict[int, Reference]] | None:
        """Return what of a call was read, from these storages on, as `State.reads`; None: it was
        something else.
        """
        where: dict[int, list[int]] = {}
        for place, leaf in enumerate(leaves):
            if self._torch.is_tensor(leaf) and leaf.is_cuda:
                where.setdefault(pointer(leaf), []).append(place)
        buffers = [
            buffer
            for module in modules
            for buffer in module._buffers.values()
            if buffer is not None
        ]
        read_buffers = [
            buffer for buffer in buffers if buffer.is_cuda and pointer(buffer) in origins
        ]
        places = {place for address in origins for place in where.get(address, ())}
        explained = not origins - {pointer(buffer) for buffer in read_buffers} - where.keys()
        if not explained:
            return None
        return places, {id(buffer): weakref.ref(buffer) for buffer in read_buffers}

    def _has_read_before(
        self, state: State, places: set[int], buffers: dict[int, Reference]
    ) -> bool:
        """Whether calls of this module had read all of that before; from now on it is of a call's
        kind.
        """
        before, buffers_before = state.reads or (set(), {})
        if places <= before and buffers.keys() <= buffers_before.keys():
            return True
        state.reads = before | places, {**buffers_before, **buffers}
        return False

    def _read_by(self, state: State, leaves: list[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Return the values that a call reads of its arguments, and the versions of what else it
        reads.
        """
        assert state.reads is not None
        places, buffers = state.reads
        values = [
            self._values.fingerprint(leaves[place])
            for place in sorted(places)
            if place < len(leaves)
        ]
        return tuple(values), tuple([buffer._version for buffer in _alive(buffers.values())])

    def _state(
        self, state: State, modules: list[Module], tensors: list[Tensor]
    ) -> tuple[Any, list[int]]:
        """Return what a call must leave as it is: attributes, arguments, what is drawn on the host.

        Which parameters are gathered is no matter where a backward pass follows, after which none
        are.
        """
        but: tuple[str, ...] = ()
        if state.sharding is not None and self._torch.is_grad_enabled():
            but = ("_parameters",)
        return self._kinds.state(modules, but), [tensor._version for tensor in tensors]

    def _has_the_same(
        self, arguments: tuple[tuple[Any, ...], dict[str, Any]], leaves: list[Any], form: Any
    ) -> bool:
        """Whether arguments have these leaves in this form, as they had before the call."""
        leaves_now, form_now = self._leaves(*arguments)
        return form_now == form and all(map(operator.is_, leaves_now, leaves))

    def _rests(self, state: State) -> bool:
        """Whether a call of a sharded root can stand for another, or be recorded.

        It cannot where an earlier one has gathered what this one would have to, and waits for its
        backward pass.
        """
        assert state.sharding is not None
        if self._torch.is_grad_enabled():
            skipped = state.last is not None and self.journal.holds(state.last)
            recorded = state.recorded
            if skipped or (recorded is not None and recorded.awaits_backward):
                state.refuse()
            if any(state.sharding.gathered()):
                return False
        return state.refused < REFUSALS and state.sharding.rests()

    def _describe(
        self,
        recorded: RecordedCall,
        out: Any,
        modules: list[Module],
        tensors: list[Tensor],
        state: State,
    ) -> bool:
        """Note what a call gave; return whether it can be made again."""
        torch = self._torch
        try:
            leaves, form = self._taken_apart(out, state)
        except NoFormError:
            return False
        of_script = len(leaves)
        leaves += [vars(module()).get(name) for module, name in state.recomputed]
        members = [
            member
            for module in modules
            for member in (*module._parameters.values(), *module._buffers.values())
        ]
        pointers_in_use = {
            pointer(local(tensor)) for tensor in (*tensors, *members) if tensor is not None
        }
        storages: dict[int, list[Tensor]] = {}
        differentiable: list[int] = []
        for place, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            plain = (
                type(leaf) is torch.Tensor and leaf.layout is torch.strided and self.is_here(leaf)
            )
            if not plain or not leaf.is_floating_point() or self._values.of(leaf) is not None:
                return False
            # The script asks it for its gradient, or a hook has made it need one that ends there.
            if leaf.retains_grad or (leaf.requires_grad and leaf.grad_fn is None):
                return False
            if pointer(leaf) in pointers_in_use:
                return False
            storages.setdefault(pointer(leaf), []).append(leaf)
            differentiable += [place] if leaf.requires_grad and place < of_script else []
        held = [self._is_held(some) for some in storages.values()]
        recorded.gave = Gave(form, StorageLayout(leaves), held, differentiable)
        if differentiable:
            leaves[differentiable[0]].grad_fn.metadata["xmem"] = GraphWatch(recorded)
            recorded.outs = [
                (node_number(leaf.grad_fn), leaf.output_nr)
                for leaf in map(leaves.__getitem__, differentiable)
            ]
        return True

    def _taken_apart(self, out: Any, state: State) -> tuple[list[Any], Any]:
        """Return the leaves of what a call gave, and their form."""
        configuration_ids = {id(configuration) for configuration in state.configurations}
        return taken_apart(
            self._tree, out, lambda leaf: id(leaf) in configuration_ids or self._is_leaf(leaf)
        )

    def _is_leaf(self, leaf: object) -> bool:
        return isinstance(leaf, self._torch.Tensor) or self._kinds.is_plain(leaf)

    def _is_held(self, tensors: list[Tensor]) -> bool:
        """Whether torch's graph has the storage of these tensors, too: all that have it were
        given.

        What a later operator of the call was given (keys and values that a cache has, hidden
        states) the graph may keep as itself, which is one reference more and no use.
        """
        given = {id(tensor): tensor for tensor in tensors}
        bases = [tensor._base for tensor in given.values() if tensor._base is not None]
        holders = {**given, **{id(base): base for base in bases}}
        if _uses(self._torch, tensors[0]) > self._one_use - 1 + len(holders):
            return True
        of_views = collections.Counter(map(id, bases))  # a view has a reference to what it is of
        return any(
            tensor._use_count() > self._one_reference + of_views[number]
            for number, tensor in holders.items()
        )

    # -- a call that is skipped --------------------------------------------------------------------

    def _skip(
        self, state: State, behavior: Known, leaves: list[Any], parameters: Sequence[Tensor]
    ) -> Any:
        """Return what a call gives, without making it."""
        torch, gave, number = self._torch, behavior.gave, self.journal.number()
        self.skipped += 1
        state.last, state.surroundings.relied_on = number, True
        for module, name in state.recomputed:
            module().__dict__[name] = None  # what it was ends before there is another
        outputs = self._like(
            gave.leaves, self.note(number, behavior.forward), behavior.forward.script_blocks
        )
        held = [
            tensor.detach()
            for view, tensor in zip(gave.leaves.views, outputs)  # noqa: B905 - since Python 3.10
            if view.storage is not None and gave.held[view.storage]
        ]
        if gave.differentiable:
            places = [
                place
                for place, leaf in enumerate(leaves)
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad
            ]
            inputs = [leaves[place] for place in places]
            needs = [parameter for parameter in parameters if parameter.requires_grad]
            arguments = {place: leaves[place].detach() for place in behavior.held}
            graph = SkippedGraph(state, behavior, Held(self, number), held, arguments, places)
            outs = [outputs[place] for place in gave.differentiable]
            outs = self._node.apply(graph, outs, *inputs, *needs)
            for place, out in zip(gave.differentiable, outs):  # noqa: B905 - since Python 3.10
                outputs[place] = out
        recomputed = outputs[len(outputs) - len(state.recomputed) :]
        for (module, name), weight in zip(state.recomputed, recomputed):  # noqa: B905
            module().__dict__[name] = weight
            # what the script computes of it itself has no way back through the call
            if gave.differentiable:
                weight.requires_grad_().register_hook(self._unrecorded)
                self._own_hooks += 1
        casts = behavior.casts if gave.differentiable else behavior.forward.remaining
        if casts:
            self._left_casts.append((number, casts))
        return put_together(self._tree, outputs, gave.form)

    def _unrecorded(self, _gradient: Tensor | None = None) -> None:
        self._doubts.add("a backward pass of a kind that was not recorded")

    def _like(
        self,
        layout: StorageLayout,
        got: dict[int, int],
        blocks: Sequence[LeftBlock | None],
        wanted: set[int] | None = None,
    ) -> list[Any]:
        """Return the like of tensors and plain values, of which only some may be `wanted`, by their
        places.

        `got` is told where the blocks lie that they have in the trace, one for each storage.
        """
        storages: dict[int, Storage] = {}
        likes: list[Any] = [None] * len(layout.views)
        streams: dict[int | None, list[tuple[int, LeftBlock | None]]] = {}
        for place in range(len(layout.views)):
            if wanted is None or place in wanted:
                block = layout.block(place, blocks)
                streams.setdefault(block and block.stream, []).append((place, block))
        self.journal.gives = True
        try:
            for stream, places in streams.items():
                with self._on(stream):
                    for place, block in places:
                        likes[place] = tensor = layout.like(self._torch, place, storages)
                        if block is not None:
                            got[block.number] = (
                                tensor.data_ptr() if layout.whole[place] else pointer(tensor)
                            )
        finally:
            self.journal.gives = False
        return likes

    def _on(self, stream: int | None) -> AbstractContextManager[Any]:
        """Within this, tensors are allocated on the stream of this address; None: on the one of
        now.
        """
        torch = self._torch
        if stream is None or stream == self.stream():
            return contextlib.nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, self.journal.device))

    @property
    def keeps_graph(self) -> bool:
        """Whether the backward pass at hand leaves the graph as it is."""
        return self._backward is None or self._backward.keep_graph

    def went_back(self, ctx: Any, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The backward pass of a skipped call: return the gradients of all that its node was
        given.
        """
        torch = self._torch
        behavior = ctx.graph.behavior
        parameters = ctx.parameters
        around = ctx.graph.state.surroundings.look_back()
        # torch was asked past us
        backward_call = self._backward or BackwardCall(False, True, False, {})
        # torch, too, gives a parameter its gradient once all of its uses have theirs
        empty = without = _without(parameters)
        if self._given_now:
            without = [
                parameter.grad is None or id(parameter) in self._given_now
                for parameter in parameters
            ]
        given = times_given(parameters, self._added_up, node_number(ctx))
        have_gradient = [gradient is not None for gradient in gradients]
        back = behavior.backward(
            backward_call.kind(parameters, without, given, around, have_gradient)
        )
        if back is None or not back.again or backward_call.create_graph or ctx.was_made:
            late = self._made_late(ctx, gradients, backward_call)
            if late is not None:
                return late
            back = self._in_its_place(ctx, back, backward_call.create_graph)
        got: dict[int, int] = {}
        blocks: Sequence[LeftBlock | None] = ()
        if back is None:
            layout = StorageLayout(list(map(local, parameters)))
        else:
            got, blocks = self._note_back(ctx, back, gradients, backward_call.keep_graph)
            layout = back.gradients
        through, kept = self._goes_through(backward_call), self._kept_by_torch(ctx)
        passed = [
            local(parameter) is parameter
            and bool(through or id(parameter) in kept or _is_hooked(parameter))
            for parameter in parameters
        ]
        wanted = {place for place, reasons in enumerate(zip(passed, empty)) if any(reasons)}  # noqa: B905 - since Python 3.10
        if back is not None:  # what was added up by torch is none of the call's blocks
            wanted -= {
                place
                for place, is_given in enumerate(given)
                if is_given and layout.block(place, blocks) is None
            }
        added = self._added_in_place(parameters, layout, blocks, backward_call)
        parts = self._like(layout, got, blocks, wanted - added.keys())
        parts = [added.get(place, part) for place, part in enumerate(parts)]
        results = [_empty(torch, input_layout) for input_layout in ctx.layouts]
        for parameter, part, passes in zip(parameters, parts, passed):  # noqa: B905 - since Python 3.10
            given_on = part if passes else None
            if given_on is not None and id(parameter) in kept and given_on.dim() == 2:
                given_on = given_on.view_as(given_on)  # as `StorageLayout.is_matrix` says
            results.append(given_on)
            if part is not None and not passes:
                # torch would copy what Python holds, too
                parameter.grad = as_gradient(parameter, part)
        self._taken_as_given += [
            parameter
            for parameter, is_given, passes in zip(parameters, given, passed)  # noqa: B905
            if is_given and not passes and parameter.grad is None and local(parameter) is parameter
        ]
        self._remember(parameters, parts, without)
        if backward_call.create_graph:
            results = self._differentiable(results, [*parameters, *gradients])
        return results

    def _added_in_place(
        self,
        parameters: Sequence[Tensor],
        layout: StorageLayout,
        blocks: Sequence[LeftBlock | None],
        backward_call: BackwardCall,
    ) -> dict[int, Tensor]:
        """Return what stands, by place, for gradients that torch is to have, as ranks work
        together, and only adds in place to those that parameters have already: one number for all
        elements of each.

        All of a call's come at once, where torch makes one after the other: in full they would take
        memory that the script's never do.
        """
        if not self._torch.distributed.is_initialized() or _is_particular(backward_call):
            return {}
        one: dict[Any, Tensor] = {}
        added = {}
        for place, parameter in enumerate(parameters):
            stands = layout.block(place, blocks) is not None
            others = local(parameter) is not parameter or id(parameter) in self._added_up
            if stands or others or parameter.grad is None or _is_hooked(parameter):
                continue
            form = parameter.dtype, parameter.device
            if form not in one:
                one[form] = self._torch.empty((), dtype=form[0], device=form[1])
            added[place] = one[form].expand(parameter.shape)
        return added

    def _remember(
        self, parameters: Sequence[Tensor], parts: Sequence[Any], without: Sequence[bool]
    ) -> None:
        """Take down until the end of the backward pass at hand which parameters had no gradient
        before, and where those lie that they were given and that others may be added to.
        """
        for parameter, part, had_none in zip(parameters, parts, without):  # noqa: B905 - since Python 3.10
            if had_none:
                self._given_now.add(id(parameter))
            if part is not None and id(parameter) in self._added_up:
                self._given_at[id(parameter)] = pointer(local(part))

    def _note_back(
        self, ctx: Any, back: BackwardPass, gradients: Sequence[Tensor | None], keeps_graph: bool
    ) -> tuple[dict[int, int], Sequence[LeftBlock | None]]:
        """Note the backward pass of a skipped call; return what `note` does, and the blocks of what
        the script is to get: sums of gradients stand where one of those is, which it has.
        """
        number = ctx.graph.held.number
        found = ctx.graph.behavior.went_back(back, self.journal.holds(number), keeps_graph)
        added_to = self._added_to(ctx, back) if found.sums else {}
        addresses = gradient_addresses(gradients) if found.gives_back else {}
        ended = {name: addresses[name] for name in found.gives_back & addresses.keys()}
        found = without_sums(found, found.sums - added_to.keys())
        got = self.note(number, found, ended, added_to)
        return got, without_sums(found, found.sums).script_blocks

    def _added_to(self, ctx: Any, back: BackwardPass) -> dict[int, int]:
        """Return where the gradients lie that those of a skipped call are added to in new memory,
        by the numbers of the sums: such as skipped calls alone gave until now.
        """
        number, found = node_number(ctx), {}
        for place, parameter in enumerate(ctx.parameters):
            block = back.gradients.block(place, back.events.script_blocks)
            at = self._given_at.get(id(parameter))
            before = [giver for giver in self._added_up.get(id(parameter), ()) if giver > number]
            if block is None or at is None or block.number not in back.events.sums:
                continue
            if self._skipped_nodes.issuperset(before):
                found[block.number] = at
        return found

    def _give_what_is_missing(self) -> None:
        """Give parameters their gradients that nobody has given after all, as a function of the
        script's own may give none: who looks for them must find them.
        """
        missing = [parameter for parameter in self._taken_as_given if parameter.grad is None]
        for parameter in missing:
            parameter.grad = self._torch.empty_like(parameter)
        if missing:
            self._unrecorded()

    def _goes_through(self, backward_call: BackwardCall) -> bool:
        """Whether torch is to have the gradients of parameters, which else are put where it would
        put them.
        """
        return _is_particular(backward_call) or self._torch.distributed.is_initialized()

    def _kept_by_torch(self, ctx: Any) -> set[int]:
        """Return ids of parameters whose gradients torch is to keep behind this node, which is the
        first of several that give them one: as the script has accumulated some that they are not to
        be added to yet, or as the next one is torch's own, to which torch adds in new memory what
        it has kept, and in place what a parameter has.
        """
        kept = set()
        number = node_number(ctx)
        for parameter in ctx.parameters if self._added_up else ():
            givers = self._added_up.get(id(parameter), ())
            if givers and max(givers) == number:
                following = sorted(givers)[-2]
                if parameter.grad is not None or following not in self._skipped_nodes:
                    kept.add(id(parameter))
        return kept

    def _in_its_place(
        self, ctx: Any, back: BackwardPass | None, create_graph: bool
    ) -> BackwardPass | None:
        """Return what stands for a backward pass of a kind that was not recorded, and say so;
        `back` is one that is of its kind but for the graph.
        """
        behavior = ctx.graph.behavior
        if create_graph:
            self._doubts.add("derivatives of derivatives")
            behavior.forget()
        if back is not None:
            return back
        if not create_graph and behavior.miss():
            ctx.graph.state.refuse()
        self._unrecorded()
        return behavior.any_backward()

    def _made_late(
        self, ctx: Any, given: Sequence[Tensor | None], backward_call: BackwardCall
    ) -> list[Tensor | None] | None:
        """Make a skipped call for its backward pass, and return the gradients of what its node was
        given (Note [Made late]); None: it cannot be.
        """
        parameters = ctx.parameters
        if any(map(_is_told, parameters)):  # a hook would be called here, and again by torch
            return None
        try:
            # Who goes back through gradients goes through that graph, too, and may have ended it.
            if ctx.is_shared and not backward_call.keep_graph:
                ctx.late = None
            late = ctx.late or self._late_call(ctx, backward_call.create_graph)
            if late is None:
                return None
            had_none = [id(parameter) for parameter in parameters if parameter.grad is None]
            returned = (
                self._goes_through(backward_call)
                or any(map(_is_hooked, parameters))
                or bool(self._kept_by_torch(ctx))
            )
            results = made_late.gradients(
                self._torch, late, given, parameters, backward_call, returned=returned
            )
        except Exception as error:
            self._doubts.add("a call that was to be made late: %s" % type(error).__name__)
            return None
        self._given_now.update(had_none)
        ctx.late = late if backward_call.keep_graph else None
        ctx.is_shared |= backward_call.create_graph
        if not backward_call.create_graph and not ctx.graph.behavior.is_missed:
            ctx.graph.behavior.miss()  # those that follow may be of this kind
        return results

    def _late_call(self, ctx: Any, create_graph: bool) -> made_late.LateCall | None:
        """Make a skipped call; None: it would not be what it was."""
        torch, graph = self._torch, ctx.graph
        state, behavior = graph.state, graph.behavior
        made = self._as_it_was(state, behavior)
        if made is None:
            return None
        module, leaf_kinds, form, switches = made
        saved = dict(graph.arguments)
        if create_graph:  # the way back through the arguments goes on
            inputs = zip(graph.places, ctx.saved_tensors)  # noqa: B905 - since Python 3.10
            saved.update({place: tensor for place, tensor in inputs if tensor is not None})
        self.let_go(graph.held.number)
        ctx.was_made = True
        ctx.graph = graph._replace(tensors=())  # the graph that is made now has its own
        del graph
        leaves = made_late.arguments(torch, leaf_kinds, saved)
        args, kwargs = self._of_leaves(leaves, form)
        with torch.enable_grad(), made_late.context(torch, switches):
            out = self._inside_of(functools.partial(module, *args, **kwargs))
        given, _ = self._taken_apart(out, state)
        outs = [given[place] for place in behavior.gave.differentiable]
        return made_late.LateCall(outs, [leaves[place] for place in ctx.graph.places])

    def _as_it_was(self, state: State, behavior: Known) -> tuple[Any, ...] | None:
        """Return (module, kinds of leaves, form of arguments, switches) of calls of a kind; None:
        such a call would not be what it was, or not be all that a call is.
        """
        module = state.modules[0]() if state.modules else None
        leaf_kinds, form, switches, settings, around = behavior.kind[:5]
        is_plain = state.sharding is None and not state.recomputed and not state.reads
        if module is None or not is_plain or len(leaf_kinds) != _count(form):
            return None
        same = self._looked_at(module, state) and state.settings == settings
        same = same and made_late.are_alike(switches, self._kinds.switches())
        same = same and not any(kinds.UNREAD_VALUES in leaf_kind for leaf_kind in leaf_kinds)
        if not same or state.surroundings.look() != around:
            return None
        return module, leaf_kinds, form, switches

    def _of_leaves(self, leaves: list[Any], form: Any) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a call, of which `_leaves` has made these leaves."""
        if not isinstance(form, tuple):
            args, kwargs = self._tree.tree_unflatten(leaves, form)
            return args, kwargs
        return leaves[: form[0]], dict(zip(form[1:], leaves[form[0] :]))  # noqa: B905 - since Python 3.10

    def _differentiable(
        self, gradients: Sequence[Tensor | None], sources: Iterable[Tensor | None]
    ) -> list[Tensor | None]:
        """Return gradients from which the script can go on, however far they are from what they
        would be; `sources` are what they are functions of.
        """
        sources = [source for source in sources if source is not None and source.requires_grad]
        present = [gradient for gradient in gradients if gradient is not None]
        if sources and present:
            present = self._derivatives.apply(present, *sources)
        differentiable = iter(
            [
                gradient if gradient.requires_grad else gradient.requires_grad_()
                for gradient in present
            ]
        )
        return [None if gradient is None else next(differentiable) for gradient in gradients]

    def note(
        self,
        number: int,
        events: Events,
        gradients: Mapping[int, int] | None = None,
        added_to: Mapping[int, int] | None = None,
    ) -> dict[int, int]:
        """Note that a call is skipped, and what is allocated then; return what `Journal.note`
        does.
        """
        self.journal.reached(self._process.level() + events.peak)
        return self.journal.note(number, events, gradients, added_to)

    def gives(self, layout: StorageLayout, events: Events) -> Any:
        """Note that something is skipped, and return the tensor that it gives, if it does."""
        tensors = self._like(layout, self.note(self.journal.number(), events), events.script_blocks)
        return tensors[0] if tensors else None

    def let_go(self, number: int, blocks: Sequence[LeftBlock] | None = None) -> None:
        """What a skipped call holds is held no more; of its blocks only these."""
        held = self.journal.holds(number)
        wanted = set(held if blocks is None else blocks)
        gone = [block for block in held if block in wanted]
        if gone and self._thread is not None:
            self.journal.note(
                number, freeing(gone, [block for block in held if block not in wanted])
            )

    # -- what is recorded --------------------------------------------------------------------------

    def position(self) -> int:
        """Return how many allocations and frees torch has served."""
        counts = self._torch._C._cuda_memoryStats(self.journal.device)["allocation"]["all"]
        return counts["allocated"] + counts["freed"]

    def wanted(self, recorded: RecordedCall | RecordedStep) -> None:
        """Have what was recorded read torch's notes."""
        self._recorded.append(recorded)

    @property
    def waits(self) -> bool:
        """Whether torch's notes have what is wanted."""
        return bool(self._recorded)

    def _many_wait(self) -> bool:
        """Whether many calls wait for torch's notes alone."""
        waiting = len(self._recorded)
        return waiting >= MANY_WAITING and waiting - len(self._awaiting_backward()) >= MANY_WAITING

    def _awaiting_backward(self) -> list[RecordedCall]:
        """Return the recorded calls of which there may be a backward pass."""
        calls = [call for call in self._recorded if isinstance(call, RecordedCall)]
        return [call for call in calls if call.awaits_backward]

    def read(self, notes: list[ServedNote], last: int) -> None:
        """Take from torch's notes, which end at position `last` and are forgotten then, what was
        recorded.
        """
        first = last - len(notes)
        try:
            self._recorded = [call for call in self._recorded if not call.read(notes, first)]
        except Exception as error:
            self._broken(error)

    def doubt(self, note: Note) -> None:
        """Say what skipped calls could not stand for."""
        # at once: the thread that writes the trace may be another
        states: Any = self._states
        for state in list(states.data.values()):
            self._trust(state.surroundings is not None and state.surroundings.has_changed_unseen())
        for sentence in sorted(self._doubts):
            note("skipped", sentence)


def _made_as_it_is(make: Callable[[], Any]) -> Any:
    """Give what a call gives that is made as it is."""
    return make()


def _parts(modules: Iterable[Module]) -> list[int]:
    """Return which parameters and modules these modules have."""
    members = []
    for module in modules:
        for parts in (module._parameters, module._modules):
            if parts:
                members += parts.values()
    return list(map(id, members))


def _buffers(modules: Iterable[Module]) -> tuple[Any, ...]:
    """Return what buffers these modules have, one in another's place being as good where it is as
    large.
    """
    buffers = [buffer for module in modules for buffer in module._buffers.values()]
    return tuple(
        [
            None if buffer is None else (buffer.shape, buffer.dtype, buffer.device)
            for buffer in buffers
        ]
    )


def _without(parameters: Iterable[Tensor]) -> list[bool]:
    """Return which of them have no gradient."""
    return [parameter.grad is None for parameter in parameters]


def _is_told(parameter: Tensor) -> bool:
    """Whether somebody is told of its gradient before it has it."""
    return bool(parameter._backward_hooks)


def _count(form: Any) -> int:
    """Return how many leaves arguments of this form have (`Calls._leaves`)."""
    count: int = form[0] + len(form) - 1 if isinstance(form, tuple) else form.num_leaves
    return count


def _is_particular(backward_call: BackwardCall) -> bool:
    """Whether it is not all gradients of the graph, numbers alone, that parameters are given."""
    plain = backward_call.accumulate and not backward_call.inputs
    return not plain or backward_call.create_graph


def _is_hooked(parameter: Tensor) -> bool:
    """Whether somebody is told of its gradient, or made it of something else."""
    hooks = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    return bool(hooks) or parameter.grad_fn is not None


def _alive(references: Iterable[Reference]) -> list[Any]:
    return [
        referent for referent in [reference() for reference in references] if referent is not None
    ]


def _empty(torch: ModuleType, like: tuple[Any, ...]) -> Tensor:
    shape, stride, dtype, device = like
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def _uses(torch: ModuleType, tensor: Tensor) -> int:
    """Return how many tensors, those of torch's graph included, have this one's storage."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


def _references(torch: ModuleType, tensor: Tensor) -> int:
    """Return how many there are to a tensor, or to its storage: torch's graph keeps an input as
    itself.
    """
    return tensor._use_count() + _uses(torch, tensor)
