"""The source of the functions that are running: their statements and loops, by line."""

import ast
import functools
import linecache
import sys
import sysconfig
import types

_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))

_WRAPPED = 4
"""So many decorators around a function are taken off."""
_ANY_ERROR = {"BaseException", "Exception", "RuntimeError", "ValueError", "AssertionError", "TypeError", "IndexError"}
"""What a step that goes wrong in a dry run raises."""


def is_installed(file):
    """Whether a file is of an installed package."""
    return "site-packages" in file or "dist-packages" in file or file.startswith("<frozen")


def is_own(code, names):
    """Whether a code is the script's, or of what lies beside it; `names` are its globals."""
    return not (_is_foreign(code.co_filename) or str(names.get("__name__", "")).startswith("_xmem"))


def _is_foreign(file):
    return is_installed(file) or file.startswith(_LIBRARIES)


def own(found):
    """Return (function, object it is bound to or None, its node) of what a script calls, if that is its own; or None.

    What is called as a module's `forward` is that.
    """
    if not isinstance(found, (types.FunctionType, types.MethodType)):
        kind = vars(type(found))
        method = kind.get("forward", kind.get("__call__"))
        found = types.MethodType(method, found) if isinstance(method, types.FunctionType) else None
    bound, found = getattr(found, "__self__", None), getattr(found, "__func__", found)
    for _ in range(_WRAPPED):
        found = getattr(found, "__wrapped__", found)
    if not isinstance(found, types.FunctionType) or not is_own(found.__code__, found.__globals__):
        return None
    node = function(found.__code__, found.__globals__)
    return (found, bound, node) if isinstance(node, ast.FunctionDef) else None


def function(code, names):
    """Return the node of the function, or module, of a code; None where there is no source. `names` are its globals."""
    linecache.getlines(code.co_filename, names)  # kept there: a loader may have to be asked for it
    return _node(code)


@functools.lru_cache(maxsize=None)
def _node(code):
    """Return the node of a code whose file was read, or None."""
    try:
        tree = _tree(code.co_filename)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    if code.co_name == "<module>":
        return tree if tree.body else None
    if code.co_name == "<lambda>":
        alike = [n for n in ast.walk(tree) if isinstance(n, ast.Lambda) and n.lineno == code.co_firstlineno]
        return alike[0] if len(alike) == 1 else None
    last = None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            last = node if first == code.co_firstlineno else last
    return last


@functools.lru_cache(maxsize=None)
def _tree(file):
    return ast.parse("".join(linecache.getlines(file)))


def swallows(script):
    """Whether some file of the script's own goes on after any error: then an end in peace may be that of a failure.

    So it may, too, where there is no source: `script` is its first file, or None.
    """
    try:
        files = {
            str(getattr(module, "__file__", None))
            for name, module in list(sys.modules.items())
            if name.partition(".")[0] not in ("_xmem", "sitecustomize")
        }
        own_files = [file for file in files if file.endswith(".py") and not _is_foreign(file)]
        nodes = (node for file in (script, *own_files) for node in ast.walk(_tree(file)))
        return not _tree(script).body or any(map(_goes_on, nodes))
    except Exception:  # no source, or a module that is not what it seems
        return True


def _goes_on(node):
    if isinstance(node, ast.Call):
        return last_name(node.func) == "suppress" and any(last_name(each) in _ANY_ERROR for each in node.args)
    if not isinstance(node, ast.ExceptHandler) or any(isinstance(each, ast.Raise) for each in ast.walk(node)):
        return False
    caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(each is None or last_name(each) in _ANY_ERROR for each in caught)


def statements(node):
    """Return the statements directly below a node, those of its handlers included."""
    found = []
    for name in ("body", "orelse", "finalbody"):
        found += [each for each in getattr(node, name, ()) if isinstance(each, ast.stmt)]
    for handler in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        found += handler.body
    return found


def loops_at(node, line):
    """Return the loops that a line of a function stands in, the outermost first."""
    found = []
    while node is not None:
        inside = [each for each in statements(node) if each.lineno <= line <= each.end_lineno]
        node = inside[-1] if inside else None
        if repeats(node, line):
            found.append(node)
    return found


def repeats(node, line):
    """Whether it is a loop, and the line is of what it repeats: not of its `else`."""
    return isinstance(node, (ast.For, ast.While)) and is_within(node.body, line)


def is_within(body, line):
    """Whether a line is of these statements."""
    return body[0].lineno <= line <= body[-1].end_lineno


def last_line(loop):
    """Return the last line of what a loop repeats."""
    return loop.body[-1].end_lineno


def within(loop):
    """Yield the statements of a loop at any depth; not those of loops and functions in it."""
    waiting = list(loop.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting += statements(node)


def loops_in(node):
    """Return the loops of a loop or function, not those in them, and comprehensions (`[a.tick() for a in all]`)."""
    return [loop for each in within(node) for loop in _loops_of(each)]


@functools.lru_cache(maxsize=None)
def _loops_of(statement):
    if isinstance(statement, (ast.For, ast.While)):
        return [statement]
    if not isinstance(statement, ast.Expr):
        return []
    found = [each for each in ast.walk(statement) if isinstance(each, (ast.ListComp, ast.GeneratorExp))]
    loops = [(each.generators[0], ast.copy_location(ast.Expr(each.elt), statement)) for each in found]
    return [ast.copy_location(ast.For(of.target, of.iter, [body], []), statement) for of, body in loops]


def branches(node):
    """Yield (an `if`, what is done where it holds, what where it does not) of a loop or function, at any depth.

    What follows `if ...: continue`, or `return`, is done where it does not hold.
    """
    blocks = [node.body]
    while blocks:
        block = blocks.pop(0)
        for place, each in enumerate(block):
            if isinstance(each, ast.If):
                leaves = isinstance(each.body[-1], (ast.Continue, ast.Return))
                yield each, each.body, each.orelse + (block[place + 1 :] if leaves else [])
            for case in _cases(each):
                yield case, case.body, []
            if not isinstance(each, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                parts = [getattr(each, name, ()) for name in ("body", "orelse", "finalbody")]
                more = (*getattr(each, "handlers", ()), *getattr(each, "cases", ()))
                blocks += [part for part in (*parts, *(one.body for one in more)) if part]


@functools.lru_cache(maxsize=None)
def _cases(node):
    """Return an `if` for each case of a `match` (Python 3.10) by plain values; what is neither has none."""
    found, before = [], []
    for case in getattr(node, "cases", ()):
        test = _matches(node.subject, case.pattern, before)
        if test is not None:
            before.append(test)
            test = test if case.guard is None else ast.BoolOp(ast.And(), [test, case.guard])
            found.append(ast.copy_location(ast.If(test, case.body, []), case.body[0]))
    return found


def _matches(subject, pattern, before):
    """Return the condition on which a pattern is met; None of one that is not of plain values."""
    if hasattr(pattern, "value"):
        value = pattern.value if isinstance(pattern.value, ast.expr) else ast.Constant(pattern.value)
        return ast.Compare(subject, [ast.Eq()], [value])
    if hasattr(pattern, "patterns") and type(pattern).__name__ == "MatchOr":
        tests = [_matches(subject, each, before) for each in pattern.patterns]
        return None if None in tests else ast.BoolOp(ast.Or(), tests)
    if getattr(pattern, "name", "") is None and pattern.pattern is None and before:  # all that is left
        return ast.UnaryOp(ast.Not(), ast.BoolOp(ast.Or(), list(before)))
    return None


def calls(statement):
    """Return the calls of a statement itself, not those of the statements in it."""
    inside = {id(part) for each in statements(statement) for part in ast.walk(each)}
    return [each for each in ast.walk(statement) if isinstance(each, ast.Call) and id(each) not in inside]


def names(node):
    """Return the names of all variables in an expression."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def last_name(node):
    """Return what is called in the end: `b` of `a.b`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def text(node):
    """Return the first line of a statement or expression, cut to what fits in a message."""
    return ast.unparse(node).partition("\n")[0][:60]
