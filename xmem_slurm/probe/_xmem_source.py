"""The source of the functions that are running: their statements and loops, by line."""

import ast
import linecache

_parsed = {}  # code: its node, or None


def function(code, names):
    """Return the node of the function, or module, of a code; None where there is no source. `names` are its globals."""
    if code not in _parsed:
        _parsed[code] = None
        try:
            tree = ast.parse("".join(linecache.getlines(code.co_filename, names)))
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            return None
        if code.co_name == "<module>":
            _parsed[code] = tree if tree.body else None
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == code.co_name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first == code.co_firstlineno:
                    _parsed[code] = node
    return _parsed[code]


def statements(node):
    """Return the statements directly below a node, those of its handlers included."""
    found = []
    for name in ("body", "orelse", "finalbody"):
        found += [each for each in getattr(node, name, ()) if isinstance(each, ast.stmt)]
    for handler in getattr(node, "handlers", ()):
        found += handler.body
    return found


def loops_at(node, line):
    """Return the loops that a line of a function stands in, the outermost first."""
    found = []
    while node is not None:
        inside = [each for each in statements(node) if each.lineno <= line <= each.end_lineno]
        node = inside[-1] if inside else None
        if isinstance(node, (ast.For, ast.While)) and line >= node.body[0].lineno:
            found.append(node)
    return found


def within(loop):
    """Yield the statements of a loop at any depth; not those of loops and functions in it."""
    waiting = list(loop.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, (ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            waiting += statements(node)


def names(node):
    """Return the names of all variables in an expression."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def last_name(node):
    """Return what is called in the end: `b` of `a.b`."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def text(node):
    """Return the first line of a statement or expression, cut to what fits in a message."""
    return ast.unparse(node).partition("\n")[0][:60]
