"""Computes a script's own expressions, where that does nothing else.

They are made of constants, of variables and attributes that hold plain values of Python, of arithmetic and comparisons,
of a few functions of Python's, and of functions of the script that are made of such alone (`batch_size_at(step)`).
"""

import ast
import bisect
import functools
import math
import types

from _xmem.course import source

_CALLS = {
    "len": len, "min": min, "max": max, "int": int, "abs": abs, "range": range, "round": round, "bool": bool,
    "divmod": divmod, "sum": sum,
}  # fmt: skip
_MODULES = (math.__name__, bisect.bisect.__module__)
"""Of these modules every function does no more than compute."""
_PURE = (
    ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.operator, ast.unaryop,
    ast.boolop, ast.cmpop, ast.Tuple, ast.List, ast.Set, ast.Subscript, ast.IfExp, ast.expr_context,
)  # fmt: skip
_BODY = (
    *_PURE, ast.Return, ast.If, ast.Assign, ast.AugAssign, ast.Expr, ast.arguments, ast.arg, ast.FunctionDef,
    ast.Lambda,
)  # fmt: skip
_PLAIN = (int, float, bool, str, type(None), range, tuple, list, set, frozenset, dict)
_DEEP = 3
"""Functions that call functions are followed so far."""


class UnknownError(Exception):
    """An expression cannot be computed, or not without doing more."""


def value(node, variables):
    """Return what an expression is with these variables.

    Raises:
        UnknownError: see above.
    """
    if not is_pure(node, variables):
        raise UnknownError
    return computed(node, variables, {})[0]


def computed(node, variables, series):
    """Return what one that `is_pure` is for each of the values that `series` {name: [values]} gives its variables."""
    code = _compiled(node)
    names = source.names(node)
    own, functions = {n: variables[n] for n in names if n in variables}, {"__builtins__": {}, **_CALLS}
    found = []
    try:
        for values in zip(*series.values()) if series else [()]:  # noqa: B905 - Python 3.9
            own.update(zip(series, values))  # noqa: B905
            found.append(eval(code, functions, own))  # noqa: S307 - the script's own, made of plain parts
    except Exception as error:
        raise UnknownError from error
    if not all(isinstance(each, _PLAIN) for each in found):
        raise UnknownError
    return found


@functools.lru_cache(maxsize=None)
def _compiled(node):
    return compile(ast.fix_missing_locations(ast.Expression(node)), "<ahead>", "eval")


def is_pure(node, variables, depth=0):
    """Whether computing an expression does nothing else: all that it is made of is plain."""
    if isinstance(node, ast.Call):
        arguments = node.args
        if node.keywords:
            return False
        if isinstance(node.func, ast.Name) and node.func.id == "len" and node.func.id not in variables:
            return len(arguments) == 1 and length(arguments[0], variables) is not None
        return _may_be_called(node.func, variables, depth) and all(is_pure(a, variables, depth) for a in arguments)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return isinstance(held(node, variables), _PLAIN)
    return isinstance(node, _PURE) and all(is_pure(each, variables, depth) for each in ast.iter_child_nodes(node))


def held(node, variables):
    """Return what a variable, an attribute, or a place in a list or dictionary holds; ... where there is none."""
    if isinstance(node, ast.Subscript):
        owner = held(node.value, variables)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else held(node.slice, variables)
        try:
            if type(owner) in (list, tuple) and type(key) is int:
                return owner[key] if key < len(owner) else ...
            return owner.get(key, ...) if isinstance(owner, dict) and key is not ... else ...
        except Exception:  # a key of the script's that has no hash
            return ...
    if isinstance(node, ast.Attribute):
        owner = held(node.value, variables)
        try:
            return ... if owner is ... else getattr(owner, node.attr, ...)
        except Exception:  # a property of the script's
            return ...
    return variables.get(node.id, ...) if isinstance(node, ast.Name) else ...


def length(node, variables):
    """Return the length of what an expression names; None where it has none."""
    found = held(node, variables)
    if found is ... or isinstance(found, (str, bytes)):
        return None
    try:
        return len(found)
    except Exception:
        return None


def _may_be_called(function, variables, depth):
    if isinstance(function, ast.Name) and function.id in _CALLS:
        return function.id not in variables
    found = held(function, variables)
    if isinstance(found, types.BuiltinFunctionType):
        return found.__module__ in _MODULES or (type(found.__self__) is dict and found.__name__ == "get")
    bound, found = getattr(found, "__self__", None), getattr(found, "__func__", found)
    if not isinstance(found, types.FunctionType) or depth == _DEEP:
        return False
    node = source.function(found.__code__, found.__globals__)
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)) or getattr(node, "decorator_list", ()):
        return False
    return _is_pure_function(node, found, bound, depth)


def _is_pure_function(node, found, bound, depth):
    """Whether a function of the script's does no more than compute what it returns."""
    code = found.__code__
    own = dict.fromkeys(code.co_varnames, 0)
    own.update((name, cell.cell_contents) for name, cell in zip(code.co_freevars, found.__closure__ or ()))  # noqa: B905
    if bound is not None:
        own[code.co_varnames[0]] = bound
    variables = {**found.__globals__, **own}
    for each in ast.walk(node):
        if isinstance(each, ast.Call):
            if each.keywords or not _may_be_called(each.func, variables, depth + 1):
                return False
        elif isinstance(each, (ast.Assign, ast.AugAssign)):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            if not all(isinstance(target, ast.Name) for target in targets):
                return False
        elif isinstance(each, (ast.Name, ast.Attribute)):
            known = held(each, variables)
            callables = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
            plain = isinstance(known, (*_PLAIN, *callables)) or (known is bound and bound is not None)
            if not plain and getattr(each, "id", "") not in _CALLS:
                return False
        elif not isinstance(each, _BODY):
            return False
    return True


def sizes(node, variables, skips, listed):
    """Yield the largest parts of a statement that can be computed, of which sizes may be made.

    Variables by themselves are such only if they are `listed`. Places in data (`data[i]`) are none, those in a module
    are: another layer. Calls that it `skips` are left out.
    """
    if isinstance(node, (ast.JoinedStr, ast.Lambda, ast.FunctionDef, ast.ClassDef)):
        return
    if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):  # what is assigned to
        return
    if isinstance(node, ast.Call) and skips(source.last_name(node.func)):
        return
    alone = isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id not in listed)
    if isinstance(node, ast.expr) and not alone and is_pure(node, variables):
        yield node
        return
    for each in ast.iter_child_nodes(node):
        place = isinstance(node, ast.Subscript) and each is node.slice
        of_data = place and not hasattr(held(node.value, variables), "named_parameters")
        if of_data and any(isinstance(part, ast.Slice) for part in ast.walk(each)):  # `tokens[at : at + length]`
            yield from (part for part in ast.walk(each) if isinstance(part, ast.Name) and part.id in listed)
        if not isinstance(each, ast.stmt) and not of_data:
            yield from sizes(each, variables, skips, listed)
