"""What gives a loop its items: generators of the script's own, which have loops and variables as functions have."""

import ast
import gc
import inspect
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
    known = {id(each): each for each in found if isinstance(each, types.GeneratorType) and each.gi_frame is not None}
    return [each for each in known.values() if _is_own(each)]


def _running(code):
    """Return the generator of a code that is under way, if there is one alone."""
    alive = [each for each in gc.get_objects() if type(each) is types.GeneratorType and each.gi_code is code]
    alive = [each for each in alive if each.gi_frame is not None]
    return alive if len(alive) == 1 else []


def _is_own(generator):
    return is_own(generator.gi_code, generator.gi_frame.f_globals)
