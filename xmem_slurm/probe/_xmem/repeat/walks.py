"""Walks over a model give what torch's give, in less time: frameworks walk often at each step.

torch's are generators within generators, one for each level of a model, and ask each parameter for
its hash, which is a function of Python's (torch/nn/modules/module.py, 2.4 to 2.15). Here modules
are collected first, so a script that replaces modules while it walks over parameters goes on with
those that there were.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

    from _xmem.annotations import Function, Module


class Walks:
    """The walks of one process."""

    def __init__(self, torch: ModuleType) -> None:
        self._is_compiling, self._module = torch.compiler.is_compiling, torch.nn.Module

    def members(self, walk: Function, _module_class: type) -> Function:
        """Around what gives (name, parameter), or (name, buffer), of a module and all within."""

        @functools.wraps(walk)
        def members(
            module: Module,
            get_members_fn: Function,
            prefix: str = "",
            recurse: bool = True,
            remove_duplicate: bool = True,
        ) -> Iterator[tuple[str, Any]]:
            modules = [] if recurse else [(prefix, module)]
            can_collect = remove_duplicate and not self._is_compiling()
            if not can_collect or (
                recurse and not _collect(module, prefix, self._module.named_modules, set(), modules)
            ):
                return walk(module, get_members_fn, prefix, recurse, remove_duplicate)
            return _members(modules, get_members_fn)

        return members

    def trained(self, train: Function, _module_class: type) -> Function:
        """Around what switches a module and all within to training or evaluation: what is so
        already is left alone.
        """

        @functools.wraps(train)
        def trained(module: Module, mode: bool = True) -> Module:
            if self._is_compiling() or not isinstance(mode, bool):
                return train(module, mode)
            _switch(module, mode, self._module.train)
            return module

        return trained


def _collect(
    module: Module,
    prefix: str,
    torch_walk: Function,
    met: set[Module],
    modules: list[tuple[str, Module]],
) -> bool:
    """Add (name, module) of a module and all within to `modules`, each once; return whether all go
    torch's `torch_walk` way.
    """
    if type(module).named_modules is not torch_walk or "named_modules" in vars(module):
        return False
    if module in met:
        return True
    met.add(module)
    modules.append((prefix, module))
    return all(
        _collect(child, prefix + "." + name if prefix else name, torch_walk, met, modules)
        for name, child in module._modules.items()
        if child is not None
    )


def _members(
    modules: Iterable[tuple[str, Module]], get_members: Function
) -> Iterator[tuple[str, Any]]:
    """Yield (name, member), each member once: which it is tells it apart."""
    met = {}  # that they stay alive meanwhile: what has gone may leave its id to another
    for of, module in modules:
        for name, member in get_members(module):
            if member is not None and id(member) not in met:
                met[id(member)] = member
                yield of + "." + name if of else name, member


def _switch(module: Module, mode: bool, torch_train: Function) -> None:
    """Switch a module, then its children; those with a way of their own by that."""
    if vars(module).get("training") is not mode:
        module.training = mode
    for child in module.children():
        if type(child).train is torch_train and "train" not in vars(child):
            _switch(child, mode, torch_train)
        else:
            child.train(mode)
