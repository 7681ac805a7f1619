"""The form of what a call gives: which tensors and plain values stand where, in containers and in
objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

DEEPEST = 8
"""So deep objects may lie in objects."""


class Form(NamedTuple):
    """A container of torch's (torch.utils._pytree), and which of its leaves are objects: (class,
    form, leaves).
    """

    spec: Any
    objects: tuple[Any, ...]


class NoFormError(Exception):
    """Something in it is none of these."""


def taken_apart(
    tree: ModuleType, value: Any, is_leaf: Callable[[Any], bool], deep: int = 0
) -> tuple[list[Any], Form]:
    """Return (leaves, form) of a value; `tree` is torch.utils._pytree, `is_leaf` says what is not
    to be opened.

    Raises:
        NoFormError: there is something that is no leaf, and whose attributes do not say all of it.
    """
    leaves: list[Any] = []
    objects: list[tuple[type, Form, int] | None] = []
    elements, spec = tree.tree_flatten(value)
    for element in elements:
        if is_leaf(element):
            leaves.append(element)
            objects.append(None)
            continue
        kind = type(element)
        slots = any(vars(base).get("__slots__") for base in kind.__mro__)
        if deep >= DEEPEST or not hasattr(element, "__dict__") or callable(element) or slots:
            raise NoFormError(kind.__name__)
        parts, form = taken_apart(tree, dict(vars(element)), is_leaf, deep + 1)
        leaves += parts
        objects.append((kind, form, len(parts)))
    return leaves, Form(spec, tuple(objects))


def put_together(tree: ModuleType, leaves: Sequence[Any], form: Form) -> Any:
    """Return the value of this form with these leaves."""
    elements, place = [], 0
    for nested in form.objects:
        if nested is None:
            elements.append(leaves[place])
            place += 1
            continue
        kind, inner, count = nested
        instance = kind.__new__(kind)
        instance.__dict__.update(put_together(tree, leaves[place : place + count], inner))
        elements.append(instance)
        place += count
    return tree.tree_unflatten(elements, form.spec)
