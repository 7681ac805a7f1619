"""What the collectives of a rank give that runs without the others, as far as values decide shapes.

Note [Ranks that are alike]: a collective's kernel does not run, and c10d raises no version counter,
so what an output held before would still count as known. Where this rank's values are known
(`values/known_values`), they stand for every rank's, also those of one that runs: a gather has them
in each place, a sum is their multiple, and in an exchange of all with all, each rank sends this one
what this one sends it, so that experts get as many tokens as they do on average. Where they are not
known, neither is the output. gloo's tensors on the CPU get the same where they are small; of larger
ones torch's group without peers fills in what `all_gather` gives, and leaves the rest as it was.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from _xmem import doubts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType

    from _xmem.annotations import Function, HasValues, ProcessGroup, Tensor

    OutputValues = list[tuple[Sequence[Tensor], Sequence[Tensor | None]]]
    """Outputs of a collective with the values of each, None where they are not known."""


class Collectives:
    """Stands beside those of one rank, of whose tensors `values` has those that are known."""

    def __init__(self, torch: ModuleType, values: HasValues) -> None:
        self._torch, self._known_values = torch, values
        self._library: Any = None  # what is registered holds as long as its library

    def put(self, tensor: Tensor, values: Tensor | None) -> None:
        """Let `values` be those of this tensor from now on, of which `None` says that they are not
        known.
        """
        self._put_all([tensor], [values])

    def _put_all(self, tensors: Sequence[Tensor], values: Sequence[Tensor | None]) -> None:
        """The same of the outputs of one collective, which may be parts of one tensor."""
        torch, table = self._torch, self._known_values.table
        with torch.no_grad():
            whole = tensors[0]._base if tensors and type(tensors[0]) is torch.Tensor else None
            if (
                whole is not None
                and whole.is_cuda
                and table is not None
                and table.of(whole) is None
            ):
                all_of_it = all(tensor._base is whole for tensor in tensors) and all(
                    value is not None for value in values
                )
                if all_of_it and sum(tensor.numel() for tensor in tensors) == whole.numel():
                    table.note(whole, torch.zeros(whole.shape, dtype=whole.dtype, device="cpu"))
            for tensor, value in zip(tensors, values):  # noqa: B905 - Python 3.9
                self._put_one(torch, table, tensor, value)

    def _put_one(
        self, torch: ModuleType, table: Any, tensor: Tensor, values: Tensor | None
    ) -> None:
        """Let these be the values of one output; None: they are not known."""
        # gathers of parts that differ in size are known no further than their own
        if values is not None:
            values = values.reshape(tensor.shape) if values.numel() == tensor.numel() else None
        if tensor.device.type == "cpu":
            if values is not None and not tensor.is_inference():
                # `data` has a version counter of its own: c10d does not raise the tensor's
                tensor.data.copy_(values)
        elif table is not None and table.applies(tensor) and tensor.layout is torch.strided:
            host = table.of(tensor)
            if values is not None and host is not None:
                host.copy_(values)
                return
            table.forget(tensor)
            if values is not None:
                table.note(tensor, values)

    def _values(self, tensor: Tensor) -> Tensor | None:
        """Return a copy of a small tensor's values, in one dimension; None where they are not
        known.
        """
        torch, table = self._torch, self._known_values.table
        plain = (
            type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        )
        if (
            not plain
            or table is None
            or not table.small(tensor)
            or torch._C._len_torch_dispatch_stack()
        ):
            return None
        values = self._known_values.of(tensor) if tensor.device.type in ("cpu", "cuda") else None
        return None if values is None else values.detach().reshape(-1).clone()

    def among_alike(self, collective: Function, _owner: type) -> Function:
        """Stand beside a method of ProcessGroup."""
        outcome = getattr(self, _COLLECTIVES[collective.__name__])

        def among_alike(group: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
            outcomes = []
            with contextlib.suppress(Exception):  # what is wrong with the arguments, torch says
                outcomes = outcome(group.rank(), group.size(), *args, **kwargs)
            work = collective(group, *args, **kwargs)
            for outputs, values in outcomes:
                self._put_all(outputs, values)
            return work

        return among_alike

    # -- outcomes: of this rank's number and how many there are; pairs of outputs, and their values

    def _gathered(
        self, _rank: int, _world: int, outputs: Any, inputs: Any, *_options: Any, **_named: Any
    ) -> OutputValues:
        """One list of outputs for each input, or the one for the only input."""
        pairs = zip(outputs, inputs) if isinstance(inputs, (list, tuple)) else [(outputs, inputs)]  # noqa: B905
        return [(tensors, [self._values(one)] * len(tensors)) for tensors, one in pairs]

    def _gathered_at_root(
        self, rank: int, world: int, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> OutputValues:
        return self._gathered(rank, world, outputs, inputs) if rank == _root(options, named) else []

    def _gathered_coalesced(
        self, _rank: int, _world: int, outputs: Any, inputs: Any, *_options: Any, **_named: Any
    ) -> OutputValues:
        """One list of outputs for each rank."""
        return [(tensors, [self._values(one) for one in inputs]) for tensors in outputs]

    def _gathered_into(
        self, _rank: int, world: int, outputs: Any, inputs: Any, *_options: Any, **_named: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        host_values = [self._values(one) for one in inputs]
        return [
            (outputs, [None if values is None else values.repeat(world) for values in host_values])
        ]

    def _reduced(
        self, rank: int, world: int, tensors: Any, *options: Any, **named: Any
    ) -> OutputValues:
        outputs, _ = _lists(tensors, None)
        return [
            (
                outputs,
                [
                    _over_ranks(self._values(one), _operation(options, named), rank, world)
                    for one in outputs
                ],
            )
        ]

    def _reduced_at_root(
        self, rank: int, world: int, tensors: Any, *options: Any, **named: Any
    ) -> OutputValues:
        if rank != _root(options, named):
            return []
        return self._reduced(rank, world, tensors, *options, **named)

    def _scattered(
        self, rank: int, _world: int, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        if rank == _root(options, named):
            return [(outputs, [self._values(tensors[rank]) for tensors in inputs])]
        return [(outputs, [None] * len(outputs))]

    def _reduced_and_scattered(
        self, rank: int, world: int, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        operation = _operation(options, named)
        return [
            (
                outputs,
                [
                    _over_ranks(self._values(tensors[rank]), operation, rank, world)
                    for tensors in inputs
                ],
            )
        ]

    def _part_reduced(
        self, rank: int, world: int, outputs: Any, inputs: Any, *options: Any, **named: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        return [
            (
                outputs,
                [self._own_part(one, _operation(options, named), rank, world) for one in inputs],
            )
        ]

    def _own_part(
        self, tensor: Tensor, operation: str | None, rank: int, world: int
    ) -> Tensor | None:
        values = self._values(tensor)
        if values is None or len(values) % world:
            return None
        return _over_ranks(values.reshape(world, -1)[rank], operation, None, world)

    def _exchanged(
        self, rank: int, _world: int, outputs: Any, inputs: Any, *_options: Any, **_named: Any
    ) -> OutputValues:
        parts = _matching(
            [self._values(tensor) for tensor in inputs],
            [tensor.numel() for tensor in outputs],
            rank,
        )
        return [(outputs, parts)]

    def _exchanged_at_once(self, rank: int, world: int, *args: Any, **_named: Any) -> OutputValues:
        output, one, output_splits, splits = args[:4]
        values = self._values(one)
        if values is None or not len(values):
            return [([output], [None])]
        row = one.numel() // len(one)
        sent = values.split([split * row for split in splits] or len(values) // world)
        parts = _matching(
            sent,
            [split * row for split in output_splits] or [output.numel() // world] * world,
            rank,
        )
        if any(part is None for part in parts):
            return [([output], [None])]
        return [([output], [self._torch.cat(parts)])]

    # -- operators ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Stand beside the operators of torch.distributed._functional_collectives, through which
        DTensor goes.
        """
        torch = self._torch
        try:
            self._library = torch.library.Library("_c10d_functional", "IMPL")
            below = torch._C._after_ADInplaceOrView_keyset
            for name, method in _FUNCTIONAL.items():
                operator = getattr(torch.ops._c10d_functional, name).default
                kernel = self._functional(
                    operator.redispatch, below, getattr(self, _COLLECTIVES[method])
                )
                self._library.impl(operator, kernel, "ADInplaceOrView", with_keyset=True)
        except (AttributeError, TypeError, RuntimeError) as error:
            doubts.note(
                "hook-missing",
                "other torch.ops._c10d_functional in this release (%s)" % type(error).__name__,
            )

    def _functional(
        self, redispatch: Function, below: Any, outcome: Callable[..., OutputValues]
    ) -> Function:
        """Return the kernel of an operator, which goes on to what is `below` and has the values of
        this outcome.
        """
        names = self._torch._C._distributed_c10d.ReduceOp

        def kernel(keys: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
            """Go on to the operator itself, then put the outcome where its outputs are."""
            out = redispatch(keys & below, first, *args, **kwargs)
            outcomes = []
            with contextlib.suppress(Exception):  # of a group that is only traced
                group = sys.modules["torch.distributed.distributed_c10d"]._resolve_process_group(
                    args[-1]
                )
                options = [
                    getattr(names, arg.upper(), None) if isinstance(arg, str) else arg
                    for arg in args[:-1]
                ]
                if outcome == self._reduced:
                    outputs, inputs = _lists(out, first)
                    self._put_all(outputs, [self._values(tensor) for tensor in inputs])
                    outcomes = outcome(group.rank(), group.size(), out, *options)
                else:
                    outcomes = outcome(group.rank(), group.size(), out, first, *options)
            for outputs, values in outcomes:
                self._put_all(outputs, values)
            return out

        return kernel


def _lists(outputs: Any, inputs: Any) -> tuple[Sequence[Tensor], Any]:
    """Return both as lists: of one output, and what it is of."""
    return (outputs, inputs) if isinstance(outputs, (list, tuple)) else ([outputs], [inputs])


def _matching(
    sent: Sequence[Tensor | None], sizes: Sequence[int], rank: int
) -> list[Tensor | None]:
    """Return what comes from each rank: what this one sends it, or itself, as it is of the size
    that is expected.
    """
    parts = []
    for number, size in enumerate(sizes):
        fitting = [
            part for part in (sent[number], sent[rank]) if part is not None and len(part) == size
        ]
        parts.append(fitting[0] if fitting else None)
    return parts


def _over_ranks(
    values: Tensor | None, operation: str | None, rank: int | None, world: int
) -> Tensor | None:
    """Return what an operation gives of the values of `world` ranks that are alike."""
    torch = sys.modules["torch"]
    if values is None or operation is None:
        return None
    if values.dtype is torch.bool or operation in ("AVG", "MIN", "MAX", "BAND", "BOR"):
        return values
    if operation == "SUM":
        own_part = torch.zeros_like(values)
        if rank is not None and len(values) == world and not values.is_floating_point():
            own_part[rank] = values[rank]
            if torch.equal(own_part, values):  # each rank fills in its own place: a gather
                return values[rank].repeat(world)
        return values * world
    return values**world if operation == "PRODUCT" else None


def _operation(options: tuple[Any, ...], named: dict[str, Any]) -> str | None:
    """Return the name of a ReduceOp, SUM if none is given; None for one that is not known here."""
    names = sys.modules["torch"]._C._distributed_c10d.ReduceOp
    operations = [getattr(option, "reduceOp", option) for option in (*options, *named.values())]
    operations = [option for option in operations if isinstance(option, (names, names.RedOpType))]
    if not operations:
        return "SUM"
    names_of_all = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR")
    return next((name for name in names_of_all if operations[0] == getattr(names, name)), None)


def _root(options: tuple[Any, ...], named: dict[str, Any]) -> int:
    roots = [getattr(option, "rootRank", option) for option in (*options, *named.values())]
    return next((option for option in roots if isinstance(option, int)), 0)


_COLLECTIVES = {
    "allgather": "_gathered",
    "_allgather_base": "_gathered_into",
    "allgather_coalesced": "_gathered_coalesced",
    "allgather_into_tensor_coalesced": "_gathered_into",
    "gather": "_gathered_at_root",
    "scatter": "_scattered",
    "allreduce": "_reduced",
    "allreduce_coalesced": "_reduced",
    "reduce": "_reduced_at_root",
    "reduce_scatter": "_reduced_and_scattered",
    "_reduce_scatter_base": "_part_reduced",
    "reduce_scatter_tensor_coalesced": "_part_reduced",
    "alltoall": "_exchanged",
    "alltoall_base": "_exchanged_at_once",
}
"""ProcessGroup's methods of torch 2.4 to 2.15. Their outputs come first, then their inputs, then
options."""

_FUNCTIONAL = {
    "all_reduce": "allreduce",
    "all_reduce_": "allreduce",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_reduce_coalesced_": "allreduce_coalesced",
    "all_gather_into_tensor": "_allgather_base",
    "all_gather_into_tensor_out": "_allgather_base",
    "all_gather_into_tensor_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
"""Operators of `_c10d_functional`, and the method that each stands for: input, options, the group's
name."""
