"""Of values that something had and will have: when is it larger, or first met? And what does a statement keep?"""

import ast
import collections
import math

from _xmem.course.expressions import UnknownError, held, value
from _xmem.course.source import branches, last_name, names, within


def first_taken(values, wanted):
    """Return in how many iterations a condition is first met; None where it was, will not be, or is not known."""
    past, future = values or ((), ())
    if any(bool(each) is wanted for each in past):
        return None
    return next((number for number, each in enumerate(future, 1) if bool(each) is wanted), None)


def first_larger(past, future, places):
    """Return in how many iterations there is a larger size than there was, or another switch or place; None: never."""
    numbers = [size_of(each) for each in past]
    if None in numbers or None in map(size_of, future):
        return None
    most = max(numbers, default=0)
    for number, each in enumerate(future, 1):
        if size_of(each) > most or ((places or isinstance(each, bool)) and each not in past):
            return number
    return None


def size_of(found):
    """Return a size, of a shape its elements, of a range its length; None of what is none."""
    if isinstance(found, range):
        return len(found)
    if isinstance(found, tuple) and all(type(each) is int for each in found):
        return math.prod(found)
    return int(found) if type(found) in (int, bool) else None


def counts(node):
    """Whether it only counts: `epoch * len(loader) + index`, `step + 1`."""
    parts = (ast.BinOp, ast.Name, ast.Constant, ast.Load, ast.Add, ast.Sub)
    simple = all(isinstance(each, parts) for each in ast.walk(node))
    return simple or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and len(names(node)) > 1)


def enlarges(statement, variables):
    """Whether a statement makes a number larger each time, and it is no counter: `size *= 2`, `length += 64`."""
    if isinstance(statement, ast.AugAssign):
        target, by = statement.target, statement.value
        if isinstance(statement.op, ast.Add):
            larger = isinstance(by, ast.Constant) and type(by.value) is int and by.value > 1
        else:
            larger = isinstance(statement.op, (ast.Mult, ast.LShift, ast.Pow)) and isinstance(by, ast.Constant)
        return larger and type(by.value) is int and type(held(target, variables)) is int
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], (ast.Name, ast.Attribute)):
        now, source = held(statement.targets[0], variables), statement.value
        if type(now) is int and ast.unparse(statement.targets[0]) in [ast.unparse(each) for each in ast.walk(source)]:
            try:
                return value(source, variables) > now + 1
            except (UnknownError, TypeError):
                return False
    return False


def kept(loop, course, innermost, variables):
    """Yield (statement, bytes, times to come) of what a loop puts where it stays, on the GPU.

    Not what the innermost does each time: that is seen as it grows.
    """
    every = list(within(loop))
    branched = {id(part): node for node, then, _ in branches(loop) for each in then for part in ast.walk(each)}
    for each in every:
        node = branched.get(id(each))
        size = _keeps(each, variables) if node is not None or not innermost else 0
        if not size:
            continue
        values = course.values(node.test, node.lineno) if node is not None and course.moves(node.test) else None
        times = course.left if node is None else sum(map(bool, values[1])) if values else None
        target = each.value.func.value if isinstance(each, ast.Expr) else each.targets[0].value
        if times and not any(_renews(other, ast.unparse(target)) for other in every):
            yield each, size, times


def _keeps(statement, variables):
    """Return the bytes on the GPU of what a statement last put where it stays: `kept.append(x)`, `kept[epoch] = x`."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        if last_name(statement.value.func) not in ("append", "appendleft"):
            return 0
        into = held(statement.value.func.value, variables) if isinstance(statement.value.func, ast.Attribute) else ...
    elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
        into = held(statement.targets[0].value, variables)
        into = list(into.values()) if type(into) is dict else ...
    else:
        return 0
    endless = type(into) is list or (isinstance(into, collections.deque) and into.maxlen is None)
    if not endless or not into:
        return 0
    before = set(_storages(into[-2], 0)) if len(into) > 1 else set()
    return sum(dict(each for each in _storages(into[-1], 0) if each not in before).values())


def _renews(statement, text):
    """Whether a statement empties what goes by this text, or puts something else in its place."""
    if isinstance(statement, ast.Assign):
        return text in [ast.unparse(each) for target in statement.targets for each in ast.walk(target)][:1]
    if isinstance(statement, ast.Delete):
        return any(text in ast.unparse(each) for each in statement.targets)
    emptying = ("clear", "pop", "popleft", "popitem")
    calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and last_name(each.func) in emptying]
    return any(ast.unparse(getattr(each.func, "value", each)) == text for each in calls)


def _storages(found, depth):
    """Yield (where, bytes) of all that lies on the GPU in a tensor, a module, or lists and dictionaries of them."""
    if depth > 2:
        return
    if hasattr(type(found), "named_parameters"):
        found = list(found.parameters())
    if getattr(found, "is_cuda", False) is True:
        storage = found.untyped_storage()
        yield storage.data_ptr(), storage.nbytes()
    elif isinstance(found, (list, tuple, dict)):
        for each in found.values() if isinstance(found, dict) else found:
            yield from _storages(each, depth + 1)
