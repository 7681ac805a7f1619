"""What else decides what a call of a module does, beside its arguments and its plain attributes?

Note [Surroundings]: a call may read a global of the script, an attribute of a class, a variable of a function around
it, or a list, a dictionary or a tensor on the host that a module has, and none of these tells when it changes. So of
the code that a module can reach, from `forward` on, the names are taken, those of functions that it calls by name, too;
what is data under such a name is of a call's kind, as it is when the call comes. More than is read may be among it:
then a call is made once more. Code of torch, numpy and Python's own library is not followed: torch's switches are of a
kind anyway (`kinds`).

Each call looks at some of it, as that is what a skipped call costs. Where this is not all, all is looked at now and
then: what changed unseen is a doubt then, where calls were skipped in between, and no call of that module is skipped
any more.
"""

import collections
import dis
import functools
import itertools
import sys
import types
import weakref

MOST_FUNCTIONS = 4096
"""Functions that are followed from one module, at the most."""
A_CALL_PAYS = 50
"""For so many values of a look at all: 1 us each, so 50 us a call."""
IN_ADVANCE = 1_000_000
"""Values for which no call has to pay: a module that is changed, as at each epoch, is looked at anew at once."""
A_PLAIN_ONE = 16
"""So many plain values take the time of one that is looked into."""
Limits = collections.namedtuple("Limits", "values of_one deep array_bytes")
"""How many values are looked at in all, and elements of one container; how deep in each other; how large an array."""
OF_A_CALL = Limits(values=512, of_one=64, deep=4, array_bytes=512)
OF_ALL = Limits(values=1_000_000, of_one=1_000_000, deep=32, array_bytes=64 << 20)
_NOT_FOLLOWED = {"torch", "numpy", "triton", "_xmem", *getattr(sys, "stdlib_module_names", sys.builtin_module_names)}
_OPAQUE = {"torch", "logging", "threading", "_thread"}
"""Whose objects are not looked into: what they have changes for reasons of their own."""
_SIMPLE = frozenset((bool, int, float, str, bytes, type(None)))
_WHOLE = frozenset((list, tuple, dict, set))
_CONTAINERS = (list, tuple, dict, collections.deque)
_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type, property, staticmethod, classmethod)
_GLOBAL, _ATTRIBUTE = {"LOAD_GLOBAL", "LOAD_NAME"}, {"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"}


class CallSurroundings:
    """Those of one module and all within; nothing here keeps what is the script's, but for code."""

    def __init__(self, torch, modules, before=None):
        """Take them; `before` are those of the same module, at an earlier time."""
        self._torch, self._within = torch, frozenset(map(id, modules))
        classes = frozenset(map(type, modules))
        own = [function for module in modules for value in vars(module).values() for function in _functions(value)]
        self._of = classes, frozenset([each.__code__ for each in own])
        same = before is not None and before._of == self._of
        self._reached = before._reached if same else _reached(classes, own)
        names, look = self._reached[0], Look(torch, self._within, OF_A_CALL)
        self._of_modules = [
            (weakref.ref(module), name)
            for module in modules
            for name, value in vars(module).items()
            if name in names and look.may_change(value)
        ]
        self._all = None  # the number of all of it, where a call does not look at all, of so many values:
        self._size = self._calls = 0  # and how many calls there were since then that did not look at all
        self._paid = IN_ADVANCE if before is None else before._paid
        self.relied_on = False
        """Whether a call was skipped since all of it was looked at."""
        self.changed_unseen = False
        """Whether something has changed while calls were skipped that did not look at it."""
        self.is_told = True
        """Whether a change is noticed, sooner or later: not where there is too much, or where one was noticed late."""

    def look(self):
        """Return what they are now."""
        found, look = self._look_at(OF_A_CALL)
        if not look.is_cut:
            return found
        if self._all is None or (self._calls + 1) * A_CALL_PAYS >= self._size:
            self._look_at_all()
        else:
            self._calls += 1
        self._paid += A_CALL_PAYS
        return found, self._all

    def has_changed_unseen(self):
        """Whether something has changed since calls were skipped that did not look at it; any thread may ask."""
        unseen = self._calls > 0 and self.relied_on and self.is_told
        return self.changed_unseen or (unseen and hash(self._look_at(OF_ALL)[0]) != self._all)

    def _look_at_all(self):
        found, look = self._look_at(OF_ALL)
        before, self._all, self._size = self._all, hash(found), OF_ALL.values - look.left
        if before is None:
            self._paid -= self._size
            self.is_told = self._paid > 0
        elif before != self._all and self._calls:
            self.is_told, self.changed_unseen = False, self.relied_on
        self.is_told &= not look.is_cut
        self._calls, self.relied_on = 0, False

    def _look_at(self, limits):
        """Return (what they are now, the look that was taken)."""
        look = Look(self._torch, self._within, limits)
        of_modules = [(vars(module()), name) for module, name in self._of_modules if module() is not None]
        return tuple([look.at(of.get(name), limits.deep) for of, name in (*self._reached[1], *of_modules)]), look


class Look:
    """A look at values, as far as the limits go: `left` values more, and `is_cut` where that was not all.

    What modules `within` have is noticed elsewhere.
    """

    def __init__(self, torch, within, limits):
        self._tensor, self._within, self._limits = torch.Tensor, within, limits
        self.left, self._met, self.is_cut = limits.values, {}, False

    def may_change(self, value):
        """Whether the value of an attribute may change without the attribute: plain ones are noticed elsewhere."""
        if isinstance(value, self._tensor):
            return not value.is_cuda
        return isinstance(value, (*_CONTAINERS, set)) or _is_array(value) or self._is_object(value)

    def _is_object(self, value):
        """Whether it has attributes of its own that may tell something, and is no code."""
        opaque = isinstance(value, (*_CODE, types.ModuleType)) or _root(type(value).__module__) in _OPAQUE
        return not opaque and id(value) not in self._within and hasattr(value, "__dict__")

    def at(self, value, deep):
        """Return what a value is now, and so deep what is in it: another that has the same in it is as good."""
        if type(value) in _SIMPLE:
            return value
        self.left -= 1
        if not self.may_change(value):
            return id(value)
        if id(value) in self._met:
            return self._met[id(value)]
        if self.left < 0 or deep == 0:
            self.is_cut = True
            return id(value)
        self._met[id(value)] = len(self._met)
        is_all = type(value) in _WHOLE or _is_plain(type(value))
        return type(value) if is_all else id(value), self._into(value, deep - 1)

    def _into(self, value, deep):
        """Return what is in a value that can change."""
        if isinstance(value, self._tensor):
            return id(value), None if value.is_inference() else value._version
        if isinstance(value, dict):  # by dict's own method: a class of its own may import all that it can give
            some = self._some(value, dict.items(value))
            return len(value), tuple([(_of_key(key), self.at(each, deep)) for key, each in some])
        if isinstance(value, set):
            return len(value), frozenset(map(_of_key, self._some(value, value)))
        if isinstance(value, _CONTAINERS):
            return len(value), tuple([self.at(each, deep) for each in self._some(value, value)])
        if _is_array(value):
            is_large = value.nbytes > self._limits.array_bytes
            self.left -= 0 if is_large else value.size // A_PLAIN_ONE
            self.is_cut = self.is_cut or is_large
            return None if is_large else value.tobytes()
        return self._into(vars(value), deep)

    def _some(self, value, elements):
        """Return as many of the elements of a value as are looked at; at once, as another thread may change it."""
        some = tuple(itertools.islice(elements, self._limits.of_one))
        self.left -= len(some) // A_PLAIN_ONE
        self.is_cut = self.is_cut or len(some) < len(value)
        return some


class _Plain:
    """What a class adds to `object` that has nothing but attributes."""


def _is_plain(kind):
    """Whether objects of a class have nothing but attributes: slots, and what is in C (a number, a partial), show."""
    return (kind.__basicsize__, kind.__itemsize__) == (_Plain.__basicsize__, 0)


def _of_key(key):
    """Return what stands for a key, which has a hash and so seldom changes."""
    return key if type(key) in _SIMPLE else id(key)


def _is_array(value):
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def _reached(classes, own):
    """Return (names of attributes, [(what has it, name)]): what code of these modules can reach, what of it is data.

    `own` are functions that the modules have themselves. What has data are the globals of a Python module, the
    attributes of a class, or a variable of an enclosing function.
    """
    bases = {base for each in classes for base in each.__mro__ if _is_followed(base.__module__)}
    waiting = [*own, *[function for base in bases for function in _functions(vars(base).get("forward"))]]
    met, names, found = set(), set(), {}
    while waiting and len(met) < MOST_FUNCTIONS:
        function = waiting.pop()
        if function in met or not _is_followed(function.__module__):
            continue
        met.add(function)
        attributes = _names(function.__code__)[1] - names
        for of, name in (*_variables(function), *[(vars(base), each) for each in attributes for base in bases]):
            value = of.get(name, types)  # a module is no data
            functions = _functions(value)
            waiting += functions
            if not functions and not isinstance(value, (*_CODE, types.ModuleType)):
                found[id(of), name] = of, name
        names |= attributes
    return names, list(found.values())


def _variables(function):
    """Yield (what has it, name) of each variable that a function may load from outside of itself."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):  # noqa: B905 - since Python 3.10
        yield _Cell(cell), name
    of_globals, of_attributes = _names(function.__code__)
    for name in of_globals:
        yield function.__globals__, name
        module = function.__globals__.get(name)
        if isinstance(module, types.ModuleType) and _is_followed(vars(module).get("__name__")):
            for attribute in of_attributes:
                yield vars(module), attribute


class _Cell:
    """A variable of an enclosing function, to be asked for as globals are."""

    def __init__(self, cell):
        self._cell = cell

    def get(self, _name, default=None):
        """Return its value; `default` where it has none yet."""
        return self._cell.cell_contents if _is_filled(self._cell) else default


def _root(module):
    return (module or "").partition(".")[0]


def _is_followed(module):
    return _root(module) not in _NOT_FOLLOWED


def _functions(value):
    """Return the functions of Python in a value: itself, what it wraps or has in its closure, or how it is got."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, (staticmethod, classmethod, types.MethodType)):
        value = value.__func__
    if not isinstance(value, types.FunctionType):
        return []
    inner = [*filter(_is_filled, value.__closure__ or ())]
    inner = [*[cell.cell_contents for cell in inner], getattr(value, "__wrapped__", None)]
    return [value, *[each for each in inner if isinstance(each, types.FunctionType)]]


def _is_filled(cell):
    try:
        cell.cell_contents  # noqa: B018 - it raises where there is none
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=8192)
def _names(code):
    """Return the names that a code, and the codes within it, load: of globals, and of attributes."""
    loads = list(dis.get_instructions(code))
    found = [{each.argval for each in loads if each.opname in wanted} for wanted in (_GLOBAL, _ATTRIBUTE)]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            found = [mine | theirs for mine, theirs in zip(found, _names(inner))]  # noqa: B905 - since Python 3.10
    return tuple(map(frozenset, found))
