"""Which objects of a class are alive?

A search costs 0.2 s in a process that has transformers. So what is asked for often is `watched` as
it is made; modules, which scripts also copy, unpickle and trace, are searched for.
"""

from __future__ import annotations

import functools
import gc
import itertools
import weakref

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from _xmem.annotations import Function

_watched: dict[object, list[weakref.ref[Any]]] = {}  # class: references to what was made of it


def watched(make: Function, kind: type) -> Function:
    """Return an `__init__` in place of `make` that keeps note of every object of a class, and of
    its subclasses.
    """
    references = _watched.setdefault(kind, [])

    @functools.wraps(make)
    def noted_make(thing: object, *args: Any, **kwargs: Any) -> None:
        references.append(weakref.ref(thing))
        make(thing, *args, **kwargs)

    return noted_make


def any_made(kind: type | None) -> bool:
    """Whether there ever was an object of a class that is watched."""
    return bool(_watched.get(kind))


def of_class(kind: type | None) -> list[Any]:
    """Return what is alive of a watched class."""
    return [
        thing
        for thing in (reference() for reference in list(_watched.get(kind, ())))
        if thing is not None
    ]


def instances(kind: type) -> list[Any]:
    """Search for them, those of its subclasses included.

    Nobody may hold an object that another thread is still building: CPython refuses to resize a
    tuple that is known to others ("SystemError: bad argument to internal function"). So what
    gc.get_objects() returns never becomes ours: one call, all of it in C, makes a set of classes of
    it, between whose parts no other thread can run.
    """
    classes = set(map(type, itertools.chain.from_iterable(itertools.starmap(gc.get_objects, [()]))))
    kinds = {one_class for one_class in classes if issubclass(one_class, kind)}
    return [thing for thing in gc.get_referrers(*kinds) if type(thing) in kinds]
