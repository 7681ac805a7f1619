"""What gives a loop its items: generators of the script's own, which have loops and variables as functions have."""

import ast
import gc
import inspect
import sys
import types

from _xmem.course.expressions import held
from _xmem.course.source import is_own, last_name, own, within


def of(loop, variables):
    """Return the generators of the script's that a loop takes its items from, by `for` or by `next`."""
    found = []
    for each in ast.walk(loop.iter) if isinstance(loop, ast.For) else ():
        if isinstance(each, ast.Call):
            target = own(held(each.func, variables))
            if target is not None and inspect.isgeneratorfunction(target[0]):
                found += _running(target[0].__code__)
        elif isinstance(each, (ast.Name, ast.Attribute)):
            found.append(held(each, variables))
    for statement in within(loop):
        for each in ast.walk(statement):
            if isinstance(each, ast.Call) and last_name(each.func) == "next" and each.args:
                found.append(held(each.args[0], variables))
    found += _streams()
    known = {id(each): each for each in found if isinstance(each, types.GeneratorType) and each.gi_frame is not None}
    return [each for each in known.values() if _is_own(each)]


def hooks(call, variables):
    """Yield what `own` says of each hook of the script's on an optimizer that makes a step, or on a module, here."""
    steps = last_name(call.func) == "step" and isinstance(call.func, ast.Attribute)
    found = held(call.func.value if steps else call.func, variables)
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_forward_hooks", "_forward_pre_hooks"):
        known = vars(found).get(name) if hasattr(found, "__dict__") and not isinstance(found, type) else None
        yield from (own(each) for each in (known.values() if isinstance(known, dict) else ()))


def _streams():
    """Return the generators that are under way of iterable data sets of the script's."""
    if not _has_own(_iterable()):
        return []
    found = [each for each in gc.get_objects() if type(each) is types.GeneratorType and each.gi_frame is not None]
    return [each for each in found if isinstance(each.gi_frame.f_locals.get("self"), _iterable())]


def _has_own(kind):
    """Whether a class, or one below it, is iterated over by a method of the script's."""
    return own(vars(kind).get("__iter__")) is not None or any(map(_has_own, kind.__subclasses__()))


def _iterable():
    """Return torch's class of iterable data sets, or one that nothing is of."""
    return getattr(sys.modules.get("torch.utils.data"), "IterableDataset", _None)


class _None:
    pass


def _running(code):
    """Return the generator of a code that is under way, if there is one alone."""
    alive = [each for each in gc.get_objects() if type(each) is types.GeneratorType and each.gi_code is code]
    alive = [each for each in alive if each.gi_frame is not None]
    return alive if len(alive) == 1 else []


def _is_own(generator):
    return is_own(generator.gi_code, generator.gi_frame.f_globals)
