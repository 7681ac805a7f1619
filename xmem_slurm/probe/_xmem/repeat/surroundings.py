"""What else decides what a call of a module does, beside its arguments and its plain attributes?

Note [Surroundings]: a call may read a global of the script, an attribute of a class, a variable of
a function around it, or a list, a dictionary or a tensor on the host that a module has, and none of
these tells when it changes. So of the code that a module can reach, from `forward` on, the names
are taken, those of functions that it calls by name, too; what is data under such a name is of a
call's kind, as it is when the call comes. Among it are attributes of those names of the job's own
classes and functions, and of what is made of these. Which functions are there under such names
counts, too: a script may put others in their place. More than is read may be: then a call is made
once more. Code of torch, numpy and Python's own library is not followed: torch's switches are of a
kind anyway (`kinds`). Of their objects there are a few that scripts decide by: what of an
optimizer, a scheduler or a sampler has a name that the code reads, an event, a logger's level, the
environment. A string may name what is read, too (`_BY_NAME`).

Each call looks at some of it, as that is what a skipped call costs. Where this is not all, all is
looked at now and then: what changed unseen is a doubt then, where calls were skipped in between,
and no call of that module is skipped any more.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import dis
import functools
import itertools
import logging
import operator
import os
import random
import sys
import threading
import types
import weakref
from typing import TYPE_CHECKING, AbstractSet, Any, NamedTuple, TypeVar

from _xmem.process import own_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import ModuleType

    from _xmem.annotations import Module

    _F = TypeVar("_F", bound=Callable[..., Any])

MOST_FUNCTIONS = 4096
"""Functions that are followed from one module, at the most."""
A_CALL_PAYS = 50
"""For so many values of a look at all: 1 us each, so 50 us a call."""
IN_ADVANCE = 1_000_000
"""Values for which no call has to pay: a module that is changed, as at each epoch, is looked at
anew at once."""
MOST_REMEMBERED = 4096
"""Containers, and sets of plain values; then all get another number."""
A_PLAIN_ONE = 16
"""So many plain values take the time of one that is looked into."""


class LookLimits(NamedTuple):
    """How far a look goes."""

    values: int
    """How many are looked at in all."""
    of_one: int
    """How many elements of one container."""
    deep: int
    """How deep in each other."""
    array_bytes: int
    """How large an array."""


OF_A_CALL = LookLimits(values=512, of_one=64, deep=4, array_bytes=512)
OF_ALL = LookLimits(values=1_000_000, of_one=1_000_000, deep=32, array_bytes=64 << 20)


class ReachedCode(NamedTuple):
    """What code can reach; data and functions, each as (what has it, name)."""

    names: set[str]
    """Names of attributes."""
    data: list[tuple[Any, str]]
    goes_back: bool
    """Whether some of it is an autograd function's `backward`."""
    functions: list[tuple[Any, str]]


_OPAQUE = {"torch", "logging", "threading"}
"""Whose objects are not looked into: what they have changes for reasons of their own."""
_HOLDERS: dict[Any, Callable[[Any], Any]] = {
    threading.local: vars,  # what this thread has
    contextvars.ContextVar: lambda variable: variable.get(None),
    weakref.ref: lambda reference: reference(),
    ctypes._SimpleCData: lambda number: number.value,  # multiprocessing.Value
    threading.Event: lambda event: event.is_set(),
    logging.Logger: lambda logger: logger.getEffectiveLevel(),
    type(os.environ): lambda environ: hash(tuple(environ._data.items())),
}
"""Of classes that have one thing, and no attribute for it: how it is asked for."""
_SIMPLE = frozenset((bool, int, float, str, bytes, type(None)))
_WHOLE = frozenset((list, tuple, dict, set))
_SEQUENCES = (list, tuple, collections.deque)
_BUFFERS = (array.array, bytearray, ctypes.Array, ctypes.Structure)
"""Have bytes and nothing else; multiprocessing.Array has one."""
_OTHER = object()
"""Stands among plain values where there is another one."""
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_AROUND = (functools.partial, functools._lru_cache_wrapper)
"""What is in C around a function, and other data beside."""
_CODE = (*_FUNCTIONS, type, property, staticmethod, classmethod)
_GLOBAL = {"LOAD_GLOBAL", "LOAD_NAME"}
_ATTRIBUTE = {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM"}


def _remembered(function: _F) -> _F:
    """Have the answers of a function remembered."""
    remembered: Any = functools.lru_cache(maxsize=8192)
    return remembered(function)


class CallSurroundings:
    """Those of one module and all within; nothing here keeps what is the script's, but for code and
    plain values.
    """

    is_of_now: bool
    """Whether the functions are there by their names that were followed."""
    _reached: ReachedCode
    _plain_values: PlainValues
    _paid: int

    def __init__(
        self,
        torch: ModuleType,
        modules: Sequence[Module],
        configurations: Sequence[Any],
        before: CallSurroundings | None = None,
    ) -> None:
        """Take them; `before` are those of the same module, at an earlier time.

        Of `configurations`, objects that the modules have, all plain values count, whether code is
        seen to read them or not: there are ways to read an attribute without its name.
        """
        self._torch, self._within = torch, frozenset(map(id, modules))
        self._of_torch = (
            torch.optim.Optimizer,
            torch.optim.lr_scheduler.LRScheduler,
            torch.utils.data.Sampler,
            torch.nn.Module,
        )
        classes = frozenset(map(type, modules))
        values = [value for module in modules for value in vars(module).values()]
        own_functions = [function for value in values for function in _functions(value)]
        classes |= frozenset(
            [kind for kind in set(map(type, values)) if own_code.is_of_the_job(kind.__module__)]
        )
        self._of = classes, frozenset([function.__code__ for function in own_functions])
        same = before is not None and before._of == self._of and before.is_of_now
        same = same and not any(function.__closure__ for function in own_functions)
        self._reached = (
            before._reached if before is not None and same else _reached(classes, own_functions)
        )
        self._configurations = configurations
        # kinds have its numbers
        self._plain_values = PlainValues() if before is None else before._plain_values
        names, look = self._reached.names, Look(torch, self._within, OF_A_CALL)
        self._attributes: list[tuple[weakref.ref[Any], str]] = [
            (weakref.ref(module), name)
            for module in modules
            for name, value in vars(module).items()
            if name in names
            and (
                look.may_change(value)
                or _moves(type(value))
                or isinstance(value, (torch.Tensor, *self._of_torch))
            )
        ]
        self._attributes += [
            (weakref.ref(tensor), name)
            for module in modules
            for tensor in (*module._parameters.values(), *module._buffers.values())
            if tensor is not None
            for name in sorted(vars(tensor).keys() & names)  # what the script gave a weight
        ]
        # the number of all of it, where a call does not look at all, of so many values...
        self._all: int | None = None
        # ...and how many calls there were since then that did not look at all
        self._size = self._calls = 0
        self._paid = IN_ADVANCE if before is None else before._paid
        self._functions: tuple[int, ...] | None = None
        self.is_of_now = True
        self.relied_on = False
        """Whether a call was skipped since all of it was looked at."""
        self.changed_unseen = False
        """Whether something has changed while calls were skipped that did not look at it."""
        self.is_told = True
        """Whether a change is noticed, sooner or later: not where there is too much, or where
        something moves on by itself, or where one was noticed late."""

    def look_back(self) -> Any:
        """Return what they are as a backward pass begins; None where no autograd function has code
        that is followed.
        """
        return self.look() if self._reached.goes_back else None

    def look(self) -> Any:
        """Return what they are now."""
        current, look = self._look_at(OF_A_CALL)
        if not look.is_cut:
            return current
        if self._all is None or (self._calls + 1) * A_CALL_PAYS >= self._size:
            self._look_at_all()
        else:
            self._calls += 1
        self._paid += A_CALL_PAYS
        return current, self._all

    def has_changed_unseen(self) -> bool:
        """Whether something has changed since calls were skipped that did not look at it; any
        thread may ask.
        """
        unseen = self._calls > 0 and self.relied_on and self.is_told
        return self.changed_unseen or (unseen and hash(self._look_at(OF_ALL)[0]) != self._all)

    def _look_at_all(self) -> None:
        current, look = self._look_at(OF_ALL)
        before, self._all, self._size = self._all, hash(current), OF_ALL.values - look.values_left
        if before is None:
            self._paid -= self._size
            self.is_told &= self._paid > 0
        elif before != self._all and self._calls:
            self.is_told, self.changed_unseen = False, self.relied_on
        self.is_told &= not look.is_cut
        self._calls, self.relied_on = 0, False

    def _read_of(self, value: Any) -> Any:
        """Return what of an object of torch's own has a name that the code reads: other things of
        it change always. A script may have given a plain module of torch's an attribute, too.
        """
        if isinstance(value, self._torch.nn.Module) and (
            own_code.root(type(value).__module__) not in _OPAQUE or id(value) in self._within
        ):
            return value
        return {
            name: attribute
            for name, attribute in vars(value).items()
            if name in self._reached.names
        }

    def _look_at(self, limits: LookLimits) -> tuple[Any, Look]:
        """Return (what they are now, the look that was taken)."""
        look = Look(
            self._torch, self._within, limits, self._plain_values if limits is OF_A_CALL else None
        )
        values = [of.get(name) for of, name in self._reached.data]
        values += [vars(of()).get(name) for of, name in self._attributes if of() is not None]
        values = [
            self._read_of(value) if isinstance(value, self._of_torch) else value for value in values
        ]
        functions = tuple([id(of.get(name)) for of, name in self._reached.functions])
        self.is_of_now &= functions == (self._functions or functions)
        self._functions = self._functions or functions
        current = (
            look.elements(0, (), values, limits.deep),
            tuple(map(look.plain, self._configurations)),
            functions,
        )
        self.is_told &= not look.moves
        return current, look


class PlainValues:
    """What plain values containers had when they were last looked at: a call that finds the same
    ones is told at once.

    The plain values are kept here, and nothing else: what has an address once may have another's
    later.
    """

    _contents: dict[int, Contents]
    _numbers: dict[Any, int]
    _next: int

    def __init__(self) -> None:
        self._contents, self._numbers, self._next = {}, {}, 0

    def contents(
        self, of: int, keys: tuple[Any, ...], elements: Sequence[Any]
    ) -> tuple[int, list[int]]:
        """Return (number of these plain values, places of the others) of a container that is known
        as `of`.
        """
        contents = self._contents.get(of)
        if contents is None or not contents.has(keys, elements):
            contents = Contents(keys, elements)
            if max(len(self._contents), len(self._numbers)) >= MOST_REMEMBERED:
                self._contents, self._numbers = {}, {}
            if contents.all_plain not in self._numbers:
                self._next += 1
            contents.number = self._numbers.setdefault(contents.all_plain, self._next)
            if all(type(key) in _SIMPLE for key in keys):
                self._contents[of] = contents
        return contents.number, contents.other_places


class Contents:
    """The plain values of a container, and the places of the others, `other_places`."""

    def __init__(self, keys: tuple[Any, ...], elements: Sequence[Any]) -> None:
        kinds = [type(element) for element in elements]
        self._keys, self._is_plain = keys, tuple([kind in _SIMPLE for kind in kinds])
        pairs = zip(elements, self._is_plain)  # noqa: B905
        self._plain = tuple([value if plain else _OTHER for value, plain in pairs])
        self.other_places = [place for place, plain in enumerate(self._is_plain) if not plain]
        of_plain = tuple([kind for kind, plain in zip(kinds, self._is_plain) if plain])  # noqa: B905 - since Python 3.10
        self.all_plain = (
            tuple(map(_of_key, keys)),
            of_plain,
            self._plain,
        )  # 1 is True, but for its type
        self.number = 0  # until it has one

    def has(self, keys: tuple[Any, ...], elements: Sequence[Any]) -> bool:
        """Whether a container has the very same plain values, at the same places."""
        same = len(elements) == len(self._plain) and all(map(operator.is_, keys, self._keys))
        return same and tuple(map(operator.is_, elements, self._plain)) == self._is_plain


class Look:
    """A look at values, as far as the limits go: `values_left` values more, and `is_cut` where that
    was not all.

    `moves` is whether there is something that moves on by itself where nobody sees it.

    What modules `within` have is noticed elsewhere. Plain values are told in short where
    there are `plain_values`, which number them.
    """

    _met: dict[int, int]
    values_left: int
    is_cut: bool
    moves: bool

    def __init__(
        self,
        torch: ModuleType,
        within: frozenset[int],
        limits: LookLimits,
        plain_values: PlainValues | None = None,
    ) -> None:
        self._tensor = torch.Tensor
        self._within = within
        self._limits = limits
        self._plain_values = plain_values
        self.values_left, self._met, self.is_cut, self.moves = limits.values, {}, False, False

    def may_change(self, value: Any) -> bool:
        """Whether the value of an attribute may change without the attribute: plain ones are
        noticed elsewhere.
        """
        sort = _sort(type(value), self._tensor)
        if sort == "tensor":
            return not value.is_cuda
        return sort is not None and id(value) not in self._within

    def at(self, value: Any, deep: int) -> Any:
        """Return what a value is now, and so deep what is in it: another that has the same in it is
        as good.
        """
        if type(value) in _SIMPLE:
            return type(value), value
        self.values_left -= 1
        self.moves = self.moves or _moves(type(value))
        if not self.may_change(value):
            # What is let go of may leave its id to another.
            if isinstance(value, self._tensor):
                return id(value), value.shape, value.dtype
            return id(value)
        if id(value) in self._met:
            return self._met[id(value)]
        if self.values_left < 0 or deep == 0:
            self.is_cut = True
            return id(value)
        self._met[id(value)] = len(self._met)
        is_all = type(value) in _WHOLE or _is_plain(type(value))
        return type(value) if is_all else id(value), self._into(value, deep - 1)

    def _into(self, value: Any, deep: int) -> Any:
        """Return what is in a value that can change."""
        sort = _sort(type(value), self._tensor)
        if sort in _HOLDERS:
            return self.at(_HOLDERS[sort](value), deep)
        if sort == "tensor":
            return id(value), None if value.is_inference() else value._version
        if sort == "array":
            buffer = memoryview(value) if isinstance(value, _BUFFERS) else value
            is_large = buffer.nbytes > self._limits.array_bytes
            elements = buffer.nbytes // max(1, buffer.itemsize)
            self.values_left -= 0 if is_large else elements // A_PLAIN_ONE
            self.is_cut = self.is_cut or is_large
            return None if is_large else buffer.tobytes()
        if sort == "set":
            return len(value), frozenset(map(_of_key, self._some(value, value)))
        if sort == "sequence":
            return len(value), self.elements(id(value), (), self._some(value, value), deep)
        of = _PARTS[sort](value)
        # By dict's own methods: a class of its own may import all that it can give.
        keys = tuple(itertools.islice(dict.keys(of), self._limits.of_one))
        return len(of), self.elements(id(value), keys, self._some(of, dict.values(of)), deep)

    def elements(
        self, of: int, keys: tuple[Any, ...], elements: Sequence[Any], deep: int
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return what elements are now, of a container that is known as `of`."""
        number: Any
        if self._plain_values is not None:
            number, places = self._plain_values.contents(of, keys, elements)
        else:
            contents = Contents(keys, elements)
            number, places = contents.all_plain, contents.other_places
        return number, tuple([self.at(elements[place], deep) for place in places])

    def plain(self, value: Any) -> Any:
        """Return the plain values of an object."""
        of = _attributes(value)
        keys, values = tuple(of), tuple(of.values())
        if self._plain_values is not None:
            # all of it, and not as much as is looked into
            return self._plain_values.contents(-id(of), keys, values)[0]
        return Contents(keys, values).all_plain

    def _some(self, value: Any, elements: Iterable[Any]) -> tuple[Any, ...]:
        """Return as many of the elements of a value as are looked at; at once, as another thread
        may change it.
        """
        some = tuple(itertools.islice(elements, self._limits.of_one))
        self.values_left -= len(some) // A_PLAIN_ONE
        self.is_cut = self.is_cut or len(some) < len(value)
        return some


@_remembered
def _sort(kind: type, tensor: type) -> Any:
    """Return what there is to look into in values of a class, which may say otherwise of
    themselves; None: nothing.
    """
    sort: Any = None
    if issubclass(kind, tensor):
        sort = "tensor"
    elif issubclass(kind, (dict, set)):
        sort = "dict" if issubclass(kind, dict) else "set"
    elif issubclass(kind, _SEQUENCES):
        sort = "sequence"
    elif issubclass(kind, _BUFFERS) or (kind.__module__ == "numpy" and hasattr(kind, "tobytes")):
        sort = "array"
    elif issubclass(kind, (functools.partial, types.MappingProxyType)):
        sort = "partial" if issubclass(kind, functools.partial) else "proxy"
    elif issubclass(kind, tuple(_HOLDERS)):
        sort = next(holder for holder in _HOLDERS if issubclass(kind, holder))
    elif not kind.__dictoffset__ and _slots(kind) and own_code.is_followed(kind.__module__):
        sort = "slots"
    elif kind.__dictoffset__ and not issubclass(kind, (*_CODE, types.ModuleType)):
        sort = None if own_code.root(kind.__module__) in _OPAQUE else "object"
    return sort


@_remembered
def _slots(kind: type) -> tuple[str, ...]:
    """Return the names of what objects of a class have in slots."""
    slots_by_class = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [
        name for slots in slots_by_class for name in ((slots,) if isinstance(slots, str) else slots)
    ]
    return tuple(name for name in names if not name.startswith("__"))


@_remembered
def _moves(kind: type) -> bool:
    """Whether what is of a class moves on by itself where nobody sees it, as iterators and random
    generators do.
    """
    of_torch = kind.__module__ == "torch._C" and hasattr(kind, "get_state")
    of_numpy = kind.__module__.startswith("numpy.random")
    return of_torch or of_numpy or hasattr(kind, "__next__") or issubclass(kind, random.Random)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object; its class may have a way of its own to give them, which
    is not asked.
    """
    return object.__getattribute__(value, "__dict__")


def _in_slots(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name, None) for name in _slots(type(value))}


def _of_partial(value: Any) -> dict[str, Any]:
    return {"func": value.func, "args": value.args, "keywords": value.keywords}


_PARTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "slots": _in_slots,
    "partial": _of_partial,
    "proxy": dict,
    "object": _attributes,
    "dict": lambda value: value,
}
"""By the sort of a value: where its parts are, by their names."""


class _Plain:
    """What a class adds to `object` that has nothing but attributes."""


def _is_plain(kind: type) -> bool:
    """Whether objects of a class have nothing but attributes: slots, and what is in C (a number, a
    partial), show.
    """
    return (kind.__basicsize__, kind.__itemsize__) == (_Plain.__basicsize__, 0)


def _of_key(key: Any) -> Any:
    """Return what stands for a key, which has a hash and so seldom changes."""
    if type(key) is tuple:
        return tuple(map(_of_key, key))
    return key if type(key) in _SIMPLE else id(key)


def _reached(classes: Iterable[type], own_functions: Sequence[types.FunctionType]) -> ReachedCode:
    """Return what code of these classes can reach, and what of it may become another.

    `own_functions` are functions that the modules have themselves. What has data and functions are
    the globals of a Python module, the attributes of a class or a function, or a variable of an
    enclosing function. The functions are those that the job's own code has, or names of a library.
    """
    spaces = _Spaces()
    for kind in classes:
        spaces.add_class(kind, own_code.is_followed)
    waiting = [
        *own_functions,
        *[function for space in spaces.all for function in _functions(space.get("forward"))],
    ]
    met: set[types.FunctionType] = set()
    names, looked_at = set(_CALLED), len(spaces.all)
    data: dict[tuple[int, str], tuple[Any, str]] = {}
    called = {
        (id(of), "forward"): (of, "forward")
        for of in spaces.all
        if "forward" in of and _is_of_the_job(of)
    }
    while (waiting or looked_at < len(spaces.all)) and len(met) < MOST_FUNCTIONS:
        function = waiting.pop() if waiting else None
        new_names: AbstractSet[str] = set()
        places: list[tuple[Any, str]] = []
        if (
            function is not None
            and function not in met
            and own_code.is_followed(function.__module__)
        ):
            met.add(function)
            spaces.add(function)
            called.update({(id(of), name): (of, name) for of, name in _of_libraries(function)})
            begin = _names(function.__code__).begin
            found_by_name = {
                name for space in spaces.all for name in space if begin and name.startswith(begin)
            }
            new_names = (_names(function.__code__).of_attributes | found_by_name) - names
            names |= new_names
            places = [*_variables(function)]
        places += [
            (space, name) for space in spaces.all[:looked_at] for name in new_names if name in space
        ]
        places += [
            (space, name) for space in spaces.all[looked_at:] for name in names if name in space
        ]
        looked_at = len(spaces.all)
        for of, name in places:
            value = of.get(name, types)  # a module is no data
            functions = _functions(value)
            waiting += [*functions, *_within(value)]
            spaces.add(value)
            if isinstance(value, (*_FUNCTIONS, staticmethod, classmethod)) and _is_of_the_job(of):
                called[id(of), name] = of, name
            has_data = not functions or isinstance(value, _AROUND)
            if has_data and not isinstance(value, (*_CODE, types.ModuleType)):
                data[id(of), name] = of, name
    goes_back = any(function.__name__ == "backward" for function in met)
    return ReachedCode(names, list(data.values()), goes_back, list(called.values()))


_OPERATORS = (
    "len bool iter next enter exit getitem contains getattr eq lt le gt ge add radd sub "
    "mul rmul truediv"
)
_CALLED = (
    *("forward", "backward", "setup_context", "__call__", "__init__"),
    *["__%s__" % name for name in _OPERATORS.split()],
)
"""What is called of a class, or of what is made of it, without its name."""
_BY_NAME = {
    "getattr",
    "hasattr",
    "globals",
    "vars",
    "attrgetter",
    "methodcaller",
    "__dict__",
    "__getattribute__",
}
"""Whoever loads one of them may name what it reads by a string, or by what a string begins with."""
MOST_WITHIN = 256
"""Elements of a container that are asked for functions: a registry."""


class _Spaces:
    """What has names: `all` are the attributes of classes and functions.

    Of those that are reached as values only the job's own are among it: what an installed package
    has in classes is hundreds of names that nobody changes, and each call would look at them.
    """

    all: list[Any]
    _met: set[int]

    def __init__(self) -> None:
        self.all, self._met = [], set()

    def add(self, value: Any) -> None:
        """Add those of a function, a class, or what is made of it."""
        if isinstance(value, types.FunctionType):
            self._add(value, own_code.is_of_the_job(value.__module__))
        elif not isinstance(value, types.ModuleType):
            self.add_class(
                value if isinstance(value, type) else type(value), own_code.is_of_the_job
            )

    def add_class(self, kind: type, is_wanted: Callable[[str], bool]) -> None:
        """Add those of a class and its bases, of modules that are wanted."""
        for base in kind.__mro__:
            self._add(base, is_wanted(base.__module__))

    def _add(self, of: Any, is_wanted: bool) -> None:
        if is_wanted and id(of) not in self._met:
            self._met.add(id(of))
            self.all.append(vars(of))


def _is_of_the_job(of: Any) -> bool:
    """Whether what has a name is of the job's own code: a class, a Python module, an enclosing
    function.
    """
    return isinstance(of, _Cell) or own_code.is_of_the_job(
        of.get("__module__") or of.get("__name__")
    )


def _within(value: Any) -> list[types.FunctionType]:
    """Return the functions of the job's own in a container."""
    if type(value) not in _WHOLE:
        return []
    elements = itertools.islice(value.values() if type(value) is dict else value, MOST_WITHIN)
    return [
        function
        for element in elements
        for function in _functions(element)
        if own_code.is_of_the_job(function.__module__)
    ]


def _variables(function: types.FunctionType) -> Iterator[tuple[Any, str]]:
    """Yield (what has it, name) of each variable that a function may load from outside of itself,
    and of defaults.
    """
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        if type(value) not in _SIMPLE:
            yield {"default": value}, "default"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):  # noqa: B905 - since Python 3.10
        yield _Cell(cell), name
    of_globals, of_attributes, _ = _names(function.__code__)
    if not (of_globals | of_attributes).isdisjoint(("environ", "getenv")):
        yield vars(os), "environ"
    for imported in _imported(function):
        for name in of_attributes & vars(imported).keys():
            yield vars(imported), name
    for name in of_globals:
        yield function.__globals__, name
        module = function.__globals__.get(name)
        if isinstance(module, types.ModuleType) and own_code.is_followed(
            vars(module).get("__name__")
        ):
            for attribute in of_attributes:
                yield vars(module), attribute


def _of_libraries(function: types.FunctionType) -> Iterator[tuple[Any, str]]:
    """Yield (what has it, name) of each function of a library that one of the job's own names:
    `F.gelu`.
    """
    of_globals, of_attributes, _ = _names(function.__code__)
    if own_code.is_of_the_job(function.__module__):
        for module in map(function.__globals__.get, of_globals):
            if isinstance(module, types.ModuleType) and not own_code.is_followed(
                vars(module).get("__name__")
            ):
                for name in of_attributes & vars(module).keys():
                    if isinstance(vars(module)[name], _FUNCTIONS):
                        yield vars(module), name


def _imported(function: types.FunctionType) -> list[ModuleType]:
    """Return the followed modules that a function imports itself: they are reached as globals are.

    One that is not there yet has nobody who could have changed it.
    """
    package: str | None = function.__globals__.get("__package__")
    names: list[str] = []
    for level, name, parts in _imports(function.__code__):
        above = (package or "").rsplit(".", level - 1)[0] if level else ""
        module_name = ".".join(filter(None, (above, name)))
        names += [module_name, *["%s.%s" % (module_name, part) for part in parts]]
    modules = [sys.modules.get(name) for name in names if own_code.is_followed(name)]
    return [module for module in modules if isinstance(module, types.ModuleType)]


class _Cell:
    """A variable of an enclosing function, to be asked for as globals are."""

    def __init__(self, cell: types.CellType) -> None:
        self._cell = cell

    def get(self, _name: str, default: Any = None) -> Any:
        """Return its value; `default` where it has none yet."""
        return self._cell.cell_contents if _is_filled(self._cell) else default


def _functions(value: Any) -> list[types.FunctionType]:
    """Return the functions of Python in a value: itself, what it wraps or has in its closure, or
    how it is got.
    """
    while isinstance(value, _AROUND):
        value = value.func if isinstance(value, functools.partial) else value.__wrapped__
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
        value = value.__func__
    if not isinstance(value, types.FunctionType):
        return []
    cells = filter(_is_filled, value.__closure__ or ())
    inner = [*[cell.cell_contents for cell in cells], getattr(value, "__wrapped__", None)]
    return [value, *[function for function in inner if isinstance(function, types.FunctionType)]]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - it raises where there is none
    except ValueError:
        return False
    return True


class CodeNames(NamedTuple):
    """The names that a code loads."""

    of_globals: frozenset[str]
    of_attributes: frozenset[str]
    begin: tuple[str, ...]
    """What more of them begin with."""


@_remembered
def _names(code: types.CodeType) -> CodeNames:
    """Return the names that a code, and the codes within it, load."""
    loads = list(dis.get_instructions(code))
    names = [
        {load.argval for load in loads if load.opname in wanted} for wanted in (_GLOBAL, _ATTRIBUTE)
    ]
    by_name: list[set[str]] = [set(), set()]
    if not _BY_NAME.isdisjoint(names[0] | names[1]):
        strings = {
            constant
            for constant in code.co_consts
            if type(constant) is str and constant.isidentifier()
        }
        by_name = [strings, {string for string in strings if len(string) > 1}]
    names = [names[0] | by_name[0], names[1] | by_name[0], by_name[1]]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names = [mine | set(theirs) for mine, theirs in zip(names, _names(inner))]  # noqa: B905 - since Python 3.10
    return CodeNames(frozenset(names[0]), frozenset(names[1]), tuple(sorted(names[2])))


@_remembered
def _imports(code: types.CodeType) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """Return (level, module, names) of each import that a code, or one within it, makes."""
    loads = [load for load in dis.get_instructions(code) if load.opname != "EXTENDED_ARG"]
    imports = [
        (loads[place - 2].argval, load.argval, loads[place - 1].argval or ())
        for place, load in enumerate(loads)
        if load.opname == "IMPORT_NAME"
    ]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            imports += _imports(constant)
    return tuple(imports)
