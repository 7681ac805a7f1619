"""Which memory holds parameters, gradients, optimizer state and buffers? Asked of the tensors, by
their addresses.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from _xmem.process import alive, description

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from _xmem.annotations import Optimizer
    from _xmem.record.served import Served
    from _xmem.record.sites import Sites


class Tags:
    """The tags of one process. `sites` names parameters, `allocator` counts allocations."""

    def __init__(self, sites: Sites, allocator: Served) -> None:
        self._sites, self._allocator = sites, allocator
        # (category, counts, {device: {address: name}})
        self._tags: list[tuple[str, list[int], dict[int, dict[int, str]]]] = []

    def optimizer(self, torch: ModuleType, optimizer: Optimizer, named: bool) -> None:
        """Tag what an optimizer holds after a step; `named`: with the names of its parameters."""
        names = self._sites.names() if named else {}
        parameters = [
            (names.get(id(p), ""), p) for group in optimizer.param_groups for p in group["params"]
        ]
        self._tag(torch, "PARAM", parameters)
        self._tag(torch, "GRAD", [("", p.grad) for _, p in parameters if p.grad is not None])
        self._tag(
            torch, "OPT", [(names.get(id(p), ""), state) for p, state in optimizer.state.items()]
        )

    def modules(self, torch: ModuleType) -> None:
        """Tag parameters and buffers of every module alive: those that no optimizer holds are
        memory too.
        """
        modules, names = alive.instances(torch.nn.Module), self._sites.names()
        with contextlib.suppress(Exception):  # a module that is half built
            self._tag(
                torch,
                "PARAM",
                [(names.get(id(p), ""), p) for m in modules for p in m._parameters.values()],
            )
            self._tag(
                torch,
                "BUFFER",
                [(names.get(id(b), ""), b) for m in modules for b in m._buffers.values()],
            )

    def _tag(self, torch: ModuleType, category: str, named: Iterable[tuple[str, Any]]) -> None:
        """Note that the tensors in `named` [(name or "", whatever holds tensors)] are of this
        category now.
        """
        addresses: dict[int, dict[int, str]] = {}
        for name, value in named:
            for leaf in description.leaves([value]):
                tensor = getattr(leaf, "_local_tensor", leaf)  # a DTensor's own part
                if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                    # a tensor without storage of its own, or that forbids it
                    with contextlib.suppress(Exception):
                        addresses.setdefault(tensor.device.index, {})[
                            tensor.untyped_storage().data_ptr()
                        ] = name
        if addresses:
            self._tags.append((category, self._allocator.look(), addresses))

    def of(self, device: int, place: Callable[[int], int]) -> list[dict[str, Any]]:
        """Return `tags` of a trace; `place` says, of how many allocations that were served, how
        many are in it.
        """
        return [
            {
                "category": category,
                "allocations": place(counts[device]),
                "addresses": list(addresses[device]),
                "names": _names(addresses[device]),
            }
            for category, counts, addresses in self._tags
            if device in addresses
        ]


def _names(by_address: dict[int, str]) -> list[str]:
    """Return the names of tensors; none where none has one, which keeps traces small."""
    return list(by_address.values()) if any(by_address.values()) else []
