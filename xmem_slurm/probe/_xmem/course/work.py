"""What statements do that no call's name says: arithmetic on large tensors, what a `with` does as it ends."""

import ast

from _xmem.course.expressions import held
from _xmem.course.source import last_name, own

_LARGE = 1024
"""So many elements and more: what is made of two such (every one with every other) is no small matter."""
_COPYING = {"float", "int", "abs", "round", "isfinite", "isnan"}
"""What gives as much as it is given."""


def works(statement, variables):
    """Whether a statement computes with a large tensor on a GPU beside its calls: `z @ z.T`, `x.float()`."""
    for each in ast.walk(statement):
        if isinstance(each, (ast.BinOp, ast.UnaryOp, ast.Compare)):
            if any(_is_large(part, variables) for part in ast.iter_child_nodes(each)):
                return True
        elif isinstance(each, ast.Call) and last_name(each.func) in _COPYING:
            parts = [*each.args, *([each.func.value] if isinstance(each.func, ast.Attribute) else [])]
            if any(_is_large(part, variables, modules=True) for part in parts):
                return True
    return False


def _is_large(node, variables, modules=False):
    while isinstance(node, ast.Subscript):
        node = node.value
    found = held(node, variables) if isinstance(node, (ast.Name, ast.Attribute)) else ...
    if modules and hasattr(type(found), "named_parameters"):
        return True
    return getattr(found, "is_cuda", False) is True and hasattr(found, "numel") and found.numel() >= _LARGE


def counts_on_gpu(test, variables):
    """Whether a condition looks at a whole number that is a tensor: a buffer that counts steps."""
    found = [held(each, variables) for each in ast.walk(test) if isinstance(each, (ast.Name, ast.Attribute))]
    numbers = [each for each in found if getattr(each, "is_cuda", False) is True and hasattr(each, "dtype")]
    return any(each.numel() == 1 and str(each.dtype) in ("torch.int64", "torch.int32") for each in numbers)


def at_end(item, variables):
    """Yield (call, what its names mean) of what the script's own context manager calls as a `with` ends."""
    expression = item.context_expr
    found = held(expression.func if isinstance(expression, ast.Call) else expression, variables)
    kind = found if isinstance(found, type) else type(found)
    leaves = vars(kind).get("__exit__")
    target, after = own(leaves) if leaves is not None else None, 0
    if target is None and isinstance(expression, ast.Call):
        target = own(found) if hasattr(found, "__wrapped__") else None  # contextlib.contextmanager
        yields = [each.lineno for each in ast.walk(target[2]) if isinstance(each, ast.Yield)] if target else []
        target, after = (target, yields[0]) if yields else (None, 0)
    for each in ast.walk(target[2]) if target else ():
        if isinstance(each, ast.Call) and each.lineno > after:
            yield each, target[0].__globals__
