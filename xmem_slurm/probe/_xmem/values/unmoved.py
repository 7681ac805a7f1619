"""Which calls of an operator leave known values as they are? Those of a model: they go on at once.

Note [Unmoved values]: a step of training is hundreds of launches or thousands, hardly any of which
is given a tensor of known values, and each goes through a kernel of ours. So before all else that
asks whether the storage of any tensor that counts has an entry in the table (`Values.may_know`). If
none has, and nothing is made up for what this operator gives (Note [Plausible values]; of tensors
on the host nothing is), there is nothing to compute, mark or forget: the rest of the kernel would
come to that, too, and is left out. It is not for an operator that is not listed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _xmem.values.plausible import COUNTS, MADE_UP

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.values.table import Values

    Unmoved = Callable[[tuple[Any, ...], dict[str, Any]], bool]
    """Says of (arguments, keywords) of a call whether it changes nothing that is known."""

_BY_FIRST = {"rules.in_place", "rules.over", "rules.scatter_", "rules.triangle"}
"""Rules where what is known of the others is no matter while their first is not known."""


def check(torch: ModuleType, values: Values, rule: str, name: str) -> Unmoved | None:
    """Return what says of (arguments, keywords) that such a call changes nothing that is known.

    None: it cannot be said of any. `name` is the operator's, without that of its overload.
    """
    may_know = values.may_know

    def of_all(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
        return not may_know(args)

    def of_first(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
        return not may_know(args[:1])

    def but_truth(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
        return args[0].dtype is not torch.bool and not may_know(args)

    def on_host(args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
        return not any(getattr(arg, "is_cuda", False) for arg in args[:2])

    def copy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """A copy to the host reads values, one to the device brings them; of truth values others
        may be made.
        """
        device = kwargs.get("device")
        stays = device is None or (device.type == "cpu") is not args[0].is_cuda
        return stays and but_truth(args, kwargs)

    if rule in ("rules.by_element", "rules.as_a_whole"):
        if name in MADE_UP:
            return on_host
        return but_truth if name in COUNTS else of_all
    if rule in _BY_FIRST and name != "random_":
        return of_first
    return copy if rule == "rules.to_copy" else None
