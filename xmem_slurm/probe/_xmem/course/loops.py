"""A loop of a script as its source has it: how far is it, and what will its variables be?"""

import ast
import copy
import itertools

from _xmem.course.changes import first_taken
from _xmem.course.expressions import UnknownError, computed, held, is_pure, length, value
from _xmem.course.source import last_name, names, own, within

MOST_ITERATIONS = 100_000
"""A loop is looked ahead so far; what comes later comes after days."""
_SAME_LENGTH = ("tqdm", "zip", "enumerate", "iter", "reversed", "list")
"""What gives as many as what it is given."""
_UNSAID = ("__getitem__", "__iter__", "__len__", "__call__")
_PAIR = 2
MOST_BESIDE = 32
"""So many of a list are looked at each, in a loop that the step is not in."""
_ENDLESS = 1 << 40
"""So far `itertools.count()` is taken to go."""
MOST_LISTED = 10_000
"""So many combinations of several lists are listed."""
MOST_VALUES = 400_000
"""Expressions computed in one look: 0.2 s."""


class LoopCourse:
    """How far a loop is, and what its variables will be.

    `done` counts the iteration that is under way; `of` is None where the end is not known, `left` too. `names` are the
    variables of its function, which is in this `line`, after so many `steps`. `budget`: [values still to be computed].
    """

    def __init__(self, loop, names, line, steps, budget):
        self._names, self._budget = dict(names), budget
        self._line, self._rounds = line, min(steps, MOST_ITERATIONS)
        self.done = self.of = None
        self.unknown = set()
        """Variables that it sets to plain values, of which nobody knows what they will be."""
        self.listed = set()
        """Variables that run through a list of the script's: what they are may be a size."""
        self._aliases = {}  # attribute or length that is counted up, as text: (what has it, its name)
        self._series = {}  # name: (its values in all iterations, the place of this iteration's, line of its change)
        if isinstance(loop, ast.For):
            self._for(loop.target, loop.iter)
        else:
            self._while(loop.test)
        self.left = self.of - self.done if self.of is not None and self.done is not None else None
        self._counters(loop)
        if self.left is None:
            self._until_break(loop)

    def _for(self, target, source):
        self.of = self._length(source)
        parts = [each.id if isinstance(each, ast.Name) else None for each in getattr(target, "elts", [target])]
        self._places(source, parts)
        self.unknown = {
            each for each in names(target) - set(self._series) if type(self._names.get(each)) in (int, float, str, bool)
        }

    def _places(self, source, parts):
        """Find how far a `for` is, by what it goes through and the names of what it takes from there."""
        if isinstance(source, ast.Call) and last_name(source.func) == "enumerate":
            start = self._value(source.args[1]) if len(source.args) > 1 else 0
            if type(start) is int and parts[0] is not None:
                self._at(parts[:1], range(start, start + (self.of or MOST_ITERATIONS)))
            return
        if isinstance(source, ast.Call) and last_name(source.func) == "count" and None not in parts:
            start, by = [*map(self._value, source.args), *(0, 1)[len(source.args) :]]
            if type(start) is int and type(by) is int and by > 0:
                self._at(parts, range(start, start + by * _ENDLESS, by))
                self.of = None
            return
        values = self._all(source)
        if values is not None and None not in parts:
            self._at(parts, values)
            self.listed = set(parts) if self.done and not isinstance(values, range) else set()

    def _all(self, source):
        """Return all that is looped over, where that can be told harmlessly; else None."""
        name = last_name(source.func) if isinstance(source, ast.Call) else ""
        if name == "trange":
            source = ast.Call(ast.Name("range", ast.Load()), source.args, [])
        elif name in _SAME_LENGTH or name == "product":
            parts = [self._all(each) for each in source.args]
            known = parts and None not in parts
            made = itertools.product if name == "product" else zip if name == "zip" else None
            return (
                None if not known else parts[0] if made is None else list(itertools.islice(made(*parts), MOST_LISTED))
            )
        values = held(source, self._names)
        values = getattr(values, "iterable", None) if _shows(values) else self._value(source)
        return values if isinstance(values, (range, list, tuple)) else None

    def _at(self, names, values):
        """Find the place of what the variables `names` are now among all `values` of them."""
        now = tuple(self._names.get(name, ...) for name in names)
        if not all(type(each) in (int, str, float, bool, tuple) for each in now):
            return
        now, guess = now if len(now) > 1 else now[0], self._rounds - 1
        if isinstance(values, range) or values.count(now) == 1:
            place = values.index(now) if now in values else None
        else:  # a value that comes more than once: by the steps so far
            place = guess if 0 <= guess < len(values) and values[guess] == now else None
        if place is None:
            return
        self.done, first = place + 1, max(0, place + 1 - MOST_ITERATIONS)
        self.of = self.of or len(values)
        series = list(values[first : self.done + MOST_ITERATIONS])
        for number, name in enumerate(names):
            own = series if len(names) == 1 else [each[number] for each in series]
            self._series[name] = own, place - first, 0

    def _length(self, node):
        """Return the length of what is looped over; None where it has none, or could not be asked harmlessly."""
        if isinstance(node, ast.Call) and last_name(node.func) in _SAME_LENGTH:
            lengths = [self._length(each) for each in (node.args if last_name(node.func) == "zip" else node.args[:1])]
            return None if None in lengths or not lengths else min(lengths)
        known = self._value(node)
        return len(known) if isinstance(known, (range, list, tuple)) else length(node, self._names)

    def _while(self, test):
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Lt, ast.LtE)):
            at, end = self._value(test.left), self._value(test.comparators[0])
            if (
                isinstance(test.left, (ast.Name, ast.Attribute, ast.Subscript))
                and type(at) is int
                and isinstance(end, (int, float))
                and end < 1 << 62
            ):
                self.of, self.done = int(end) + isinstance(test.ops[0], ast.LtE), at + 1

    def _counters(self, loop, *, local=True):
        """Find what is counted up in it: `step += 1`, `losses.append(loss)`."""
        for node in within(loop):
            for target, added in _added(node):
                by, of = self._value(added), None
                if type(by) is int and by > 0 and (local or not isinstance(target, ast.Name)):
                    if not isinstance(target, ast.Name):
                        key = target.attr if isinstance(target, ast.Attribute) else ast.unparse(target.slice)
                        of = held(target.value, self._names), key
                    self._counter("".join(ast.unparse(target).split()), held(target, self._names), by, node.lineno, of)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                method = node.value.func
                listed = held(method.value, self._names) if getattr(method, "attr", "") == "append" else None
                if type(listed) is list:
                    self._counter("len(%s)" % ast.unparse(method.value), len(listed), 1, node.lineno, (listed, "len"))

    def _counter(self, name, now, by, line, of):
        if type(now) is int and name not in self._series:
            most = MOST_ITERATIONS if self.left is None else min(self.left, MOST_ITERATIONS)
            values = [now + by * number for number in range(1 - self._rounds, most + 1)]
            self._series[name] = values, self._rounds - 1, line
            if of is not None:
                self._names[name], self._aliases[name] = now, of

    def beside(self, names, loop):
        """Return the same course with more that its variables are: in a loop within it, without the step.

        What that counts on something of its own (`state["step"] += 1`) is counted once in each iteration.
        """
        found = copy.copy(self)
        found._names = {**self._names, **{name: each for name, each in names.items() if name not in self._series}}
        found._series, found._aliases = dict(self._series), dict(self._aliases)
        found._counters(loop, local=False)
        return found

    def own(self, node):
        """Return an expression with names for attributes and lengths that are counted up."""
        return _Renaming(self._aliases).visit(copy.deepcopy(node)) if self._aliases else node

    def _until_break(self, loop):
        """`while True` ends where a condition on what it counts does so."""
        for node in within(loop):
            if isinstance(node, ast.If) and any(isinstance(each, (ast.Break, ast.Return)) for each in node.body):
                values = self.values(node.test, node.lineno) if self.moves(node.test) else None
                if values is not None and True in map(bool, values[1]):
                    self.left = [bool(value) for value in values[1]].index(True) + 1
                    self.of = None if self.done is None else self.done + self.left
                    for name, (series, place, line) in self._series.items():
                        self._series[name] = series[: place + 1 + self.left], place, line
                    return

    def moves(self, node):
        """Whether an expression hangs on a variable of this loop, or on what cannot be computed."""
        node = self.own(node)
        return self.hangs(node) or not is_pure(node, self._names)

    def hangs(self, node):
        """Whether an expression, `own` one, hangs on a variable of this loop."""
        return bool(names(node) & set(self._series))

    def values(self, node, line):
        """Return what an expression in a line was in the iterations so far, and what it will be; None: not known."""
        node = self.own(node)
        moving = names(node) & set(self._series)
        if not moving or not is_pure(node, self._names):
            return None
        places = {name: self._place(name, line) for name in moving}
        before = min(self._series[name][1] for name in moving) + (line < self._line)
        after = min(len(self._series[name][0]) - places[name] for name in moving) - (line < self._line)
        first = {name: places[name] + (line < self._line) - before for name in moving}
        self._budget[0] -= before + after
        if self._budget[0] < 0:
            return None
        series = {name: self._series[name][0][first[name] : first[name] + before + after] for name in moving}
        try:
            found = computed(node, self._names, series)
        except UnknownError:
            return None
        return found[:before], found[before:]

    def first_of_parts(self, node, wanted):
        """Return in how many iterations a part of an `and` or `or`, that as a whole is not known, is first met."""
        test = node.test
        parts = test.values if isinstance(test, ast.BoolOp) else ()
        needs_all = parts and isinstance(test.op, ast.And) is wanted
        if needs_all and any(
            self._value(each) not in (None, ...) and bool(self._value(each)) is not wanted
            for each in parts
            if not self.moves(each)
        ):
            return None
        found = [first_taken(self.values(each, node.lineno), wanted) for each in parts]
        return next((each for each in found if each is not None), None)

    def _place(self, name, line):
        """Return the place in its series of what a variable is in a line of the iteration that is under way."""
        _, place, change = self._series[name]
        return place + (change < line) - (change < self._line) if change else place

    def _value(self, node):
        """Return what an expression is now; None where it cannot be computed."""
        try:
            return value(node, self._names)
        except UnknownError:
            return None


def _added(node):
    """Yield (target, what is added to it) of a statement that counts: `n += 1`, `n = n + 1`, `a, n = b, n + 1`."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        yield node.target, node.value
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        targets = getattr(node.targets[0], "elts", node.targets)
        values = node.value.elts if len(targets) > 1 and isinstance(node.value, ast.Tuple) else [node.value]
        for target, value in zip(targets, values) if len(targets) == len(values) else ():  # noqa: B905
            adds = isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
            named = isinstance(target, (ast.Name, ast.Attribute))
            if adds and named and ast.unparse(value.left) == ast.unparse(target):
                yield target, value.right


def listed(loop, names):
    """Return for each of a list that a `for` goes through what its variables are then; [{}] where that is not known."""
    source, target = getattr(loop, "iter", None), getattr(loop, "target", None)
    numbered = False
    while isinstance(source, ast.Call):
        name, numbered = last_name(source.func), numbered or last_name(source.func) == "enumerate"
        method = isinstance(source.func, ast.Attribute)
        if not (name == "values" if method else name in _SAME_LENGTH and source.args):
            return [{}]
        source = source.func.value if method else source.args[0]
    target = target.elts[1] if numbered and len(getattr(target, "elts", ())) == _PAIR else target
    found = held(source, names)
    found = list(found.values()) if isinstance(found, dict) else found
    if not (isinstance(found, (list, tuple)) or hasattr(type(found), "named_parameters")):
        return [{}]
    try:
        found = list(itertools.islice(found, MOST_BESIDE))
    except Exception:  # a module that is no list
        return [{}]
    if not isinstance(target, ast.Name):
        parts = [each.id if isinstance(each, ast.Name) else "" for each in getattr(target, "elts", ())]
        alike = [each for each in found if isinstance(each, tuple) and len(each) == len(parts)]
        return [dict(zip(parts, each)) for each in alike] or [{}]  # noqa: B905
    return [{target.id: each} for each in found] or [{}]


def local(loop, names):
    """Return what a loop's own names for parts of what it goes through mean: `state = self.state[p]`."""
    found = {}
    for each in within(loop):
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            meant = (
                held(each.value, {**names, **found}) if isinstance(each.value, (ast.Subscript, ast.Attribute)) else ...
            )
            if meant is not ...:
                found[each.targets[0].id] = meant
    return found


def _shows(found):
    """Whether it is a bar of tqdm's around what is looped over."""
    return type(found).__module__.partition(".")[0] == "tqdm"


class Called(LoopCourse):
    """A function that a loop calls once in each iteration, as if its body stood there.

    `names` are the variables that it can see, `given` has of its parameters (values so far, those to come), where these
    can be told. What the loop around, which calls it in this `line`, counts on an object, it may look at.
    """

    def __init__(self, node, names, given, loop, line):
        self._names, self._budget = dict(names), loop._budget
        self._line, self._rounds = 0, loop._rounds
        self.done = self.of = None
        self.left, self.listed, self.unknown, self._aliases = loop.left, set(), set(), {}
        self._series = {name: ([*past, *future], len(past), 0) for name, (past, future) in given.items()}
        self._counted(node, loop, line)
        self._counters(node)
        self._told(node)

    def _counted(self, node, loop, line):
        for each in ast.walk(node):
            if isinstance(each, ast.Attribute):
                owner = held(each.value, self._names)
                for name, (counts, attribute) in loop._aliases.items():
                    if owner is counts and each.attr == attribute:
                        own, (values, now, _) = ast.unparse(each), loop._series[name]
                        place = loop._place(name, line)
                        first = max(0, place - now)  # what it had before it was counted up, the function did not see
                        self._series[own] = values[first:], place - first + (line < loop._line), 0
                        self._aliases[own] = owner, attribute
                        self._names[own] = loop._names[name]

    def _told(self, node):
        """Find what it is given and keeps: `self.epoch = epoch`."""
        for each in within(node):
            target = each.targets[0] if isinstance(each, ast.Assign) else None
            told = getattr(each.value, "id", "") if isinstance(target, ast.Attribute) else ""
            if told in self._series and type(held(target, self._names)) is int:
                name, (values, now, _) = ast.unparse(target), self._series[told]
                self._series[name] = values, now, 0
                self._aliases[name] = held(target.value, self._names), target.attr
                self._names[name] = held(target, self._names)

    def seen_by(self, bound, node, function):
        """Yield (function, node, names) of what Python calls of an object's own class, if `node` changes the object.

        That are its properties, and what gives samples (`__getitem__`): no source says where they are called.
        """
        if bound is None or not any(owner is bound for owner, _ in self._aliases.values()):
            return
        for name, each in vars(type(bound)).items():
            found = each.fget if isinstance(each, property) else each if name in _UNSAID else None
            target = own(found)
            if target is not None and target[0] is not function and target[2].args.args:
                names = {**target[0].__globals__, target[2].args.args[0].arg: bound}
                yield target[0], target[2], names

    def moves(self, node):
        """Whether an expression hangs on what it is given, or counts."""
        return self.hangs(self.own(node))


class _Renaming(ast.NodeTransformer):
    """Puts names in the place of attributes and lengths."""

    def __init__(self, names):
        self._names = names

    def visit_Attribute(self, node):
        return self._renamed(node)

    def visit_Call(self, node):
        return self._renamed(node)

    def visit_Subscript(self, node):
        return self._renamed(node)

    def _renamed(self, node):
        text = ast.unparse(node)
        return ast.copy_location(ast.Name(text, ast.Load()), node) if text in self._names else self.generic_visit(node)
