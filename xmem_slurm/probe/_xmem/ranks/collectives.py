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
    """Stands beside those of one rank, of whose tensors `known` are the values."""

    def __init__(self, torch: ModuleType, known: HasValues) -> None:
        self._torch, self._known = torch, known
        self._library: Any = None  # what is registered holds as long as its library

    def put(self, tensor: Tensor, values: Tensor | None) -> None:
        """Let `values` be those of this tensor from now on, of which `None` says that they are not
        known.
        """
        self._put_all([tensor], [values])

    def _put_all(self, tensors: Sequence[Tensor], values: Sequence[Tensor | None]) -> None:
        """The same of the outputs of one collective, which may be parts of one tensor."""
        torch, table = self._torch, self._known.table
        with torch.no_grad():
            whole = tensors[0]._base if tensors and type(tensors[0]) is torch.Tensor else None
            if (
                whole is not None
                and whole.is_cuda
                and table is not None
                and table.of(whole) is None
            ):
                all_of_it = all(each._base is whole for each in tensors) and all(
                    each is not None for each in values
                )
                if all_of_it and sum(each.numel() for each in tensors) == whole.numel():
                    table.note(whole, torch.zeros(whole.shape, dtype=whole.dtype, device="cpu"))
            for tensor, each in zip(tensors, values):  # noqa: B905 - Python 3.9
                self._put_one(torch, table, tensor, each)

    def _put_one(
        self, torch: ModuleType, table: Any, tensor: Tensor, values: Tensor | None
    ) -> None:
        """Let these be the values of one output; None: they are not known."""
        if (
            values is not None
        ):  # gathers of parts that differ in size are known no further than their own
            values = values.reshape(tensor.shape) if values.numel() == tensor.numel() else None
        if tensor.device.type == "cpu":
            if values is not None and not tensor.is_inference():
                tensor.data.copy_(
                    values
                )  # `data` has a version counter of its own: c10d does not raise the tensor's
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
        torch, table = self._torch, self._known.table
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
        known = self._known.of(tensor) if tensor.device.type in ("cpu", "cuda") else None
        return None if known is None else known.detach().reshape(-1).clone()

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
        self, _here: int, _world: int, outputs: Any, inputs: Any, *_options: Any, **_more: Any
    ) -> OutputValues:
        """One list of outputs for each input, or the one for the only input."""
        pairs = zip(outputs, inputs) if isinstance(inputs, (list, tuple)) else [(outputs, inputs)]  # noqa: B905
        return [(each, [self._values(one)] * len(each)) for each, one in pairs]

    def _gathered_at_root(
        self, here: int, world: int, outputs: Any, inputs: Any, *options: Any, **more: Any
    ) -> OutputValues:
        return self._gathered(here, world, outputs, inputs) if here == _root(options, more) else []

    def _gathered_coalesced(
        self, _here: int, _world: int, outputs: Any, inputs: Any, *_options: Any, **_more: Any
    ) -> OutputValues:
        """One list of outputs for each rank."""
        return [(each, [self._values(one) for one in inputs]) for each in outputs]

    def _gathered_into(
        self, _here: int, world: int, outputs: Any, inputs: Any, *_options: Any, **_more: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        known = [self._values(one) for one in inputs]
        return [(outputs, [None if values is None else values.repeat(world) for values in known])]

    def _reduced(
        self, here: int, world: int, tensors: Any, *options: Any, **more: Any
    ) -> OutputValues:
        each, _ = _lists(tensors, None)
        return [
            (
                each,
                [
                    _over_ranks(self._values(one), _operation(options, more), here, world)
                    for one in each
                ],
            )
        ]

    def _reduced_at_root(
        self, here: int, world: int, tensors: Any, *options: Any, **more: Any
    ) -> OutputValues:
        return (
            self._reduced(here, world, tensors, *options, **more)
            if here == _root(options, more)
            else []
        )

    def _scattered(
        self, here: int, _world: int, outputs: Any, inputs: Any, *options: Any, **more: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        if here == _root(options, more):
            return [(outputs, [self._values(each[here]) for each in inputs])]
        return [(outputs, [None] * len(outputs))]

    def _reduced_and_scattered(
        self, here: int, world: int, outputs: Any, inputs: Any, *options: Any, **more: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        operation = _operation(options, more)
        return [
            (
                outputs,
                [_over_ranks(self._values(each[here]), operation, here, world) for each in inputs],
            )
        ]

    def _part_reduced(
        self, here: int, world: int, outputs: Any, inputs: Any, *options: Any, **more: Any
    ) -> OutputValues:
        outputs, inputs = _lists(outputs, inputs)
        return [
            (
                outputs,
                [self._own_part(one, _operation(options, more), here, world) for one in inputs],
            )
        ]

    def _own_part(
        self, tensor: Tensor, operation: str | None, here: int, world: int
    ) -> Tensor | None:
        values = self._values(tensor)
        if values is None or len(values) % world:
            return None
        return _over_ranks(values.reshape(world, -1)[here], operation, None, world)

    def _exchanged(
        self, here: int, _world: int, outputs: Any, inputs: Any, *_options: Any, **_more: Any
    ) -> OutputValues:
        parts = _matching(
            [self._values(each) for each in inputs], [each.numel() for each in outputs], here
        )
        return [(outputs, parts)]

    def _exchanged_at_once(self, here: int, world: int, *args: Any, **_more: Any) -> OutputValues:
        output, one, output_splits, splits = args[:4]
        values = self._values(one)
        if values is None or not len(values):
            return [([output], [None])]
        row = one.numel() // len(one)
        sent = values.split([split * row for split in splits] or len(values) // world)
        parts = _matching(
            sent,
            [split * row for split in output_splits] or [output.numel() // world] * world,
            here,
        )
        return [
            ([output], [None if any(each is None for each in parts) else self._torch.cat(parts)])
        ]

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

        def kernel(keys: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
            """Go on to the operator itself, then put the outcome where its outputs are."""
            out = redispatch(keys & below, given, *args, **kwargs)
            outcomes = []
            with contextlib.suppress(Exception):  # of a group that is only traced
                group = sys.modules["torch.distributed.distributed_c10d"]._resolve_process_group(
                    args[-1]
                )
                options = [
                    getattr(names, each.upper(), None) if isinstance(each, str) else each
                    for each in args[:-1]
                ]
                if outcome == self._reduced:
                    outputs, inputs = _lists(out, given)
                    self._put_all(outputs, [self._values(each) for each in inputs])
                    outcomes = outcome(group.rank(), group.size(), out, *options)
                else:
                    outcomes = outcome(group.rank(), group.size(), out, given, *options)
            for outputs, values in outcomes:
                self._put_all(outputs, values)
            return out

        return kernel


def _lists(outputs: Any, inputs: Any) -> tuple[Sequence[Tensor], Any]:
    """Return both as lists: of one output, and what it is of."""
    return (outputs, inputs) if isinstance(outputs, (list, tuple)) else ([outputs], [inputs])


def _matching(
    sent: Sequence[Tensor | None], sizes: Sequence[int], here: int
) -> list[Tensor | None]:
    """Return what comes from each rank: what this one sends it, or itself, as it is of the size
    that is expected.
    """
    found = []
    for number, size in enumerate(sizes):
        fitting = [
            each for each in (sent[number], sent[here]) if each is not None and len(each) == size
        ]
        found.append(fitting[0] if fitting else None)
    return found


def _over_ranks(
    values: Tensor | None, operation: str | None, here: int | None, world: int
) -> Tensor | None:
    """Return what an operation gives of the values of `world` ranks that are alike."""
    torch = sys.modules["torch"]
    if values is None or operation is None:
        return None
    if values.dtype is torch.bool or operation in ("AVG", "MIN", "MAX", "BAND", "BOR"):
        return values
    if operation == "SUM":
        own = torch.zeros_like(values)
        if here is not None and len(values) == world and not values.is_floating_point():
            own[here] = values[here]
            if torch.equal(own, values):  # each rank fills in its own place: a gather
                return values[here].repeat(world)
        return values * world
    return values**world if operation == "PRODUCT" else None


def _operation(options: tuple[Any, ...], more: dict[str, Any]) -> str | None:
    """Return the name of a ReduceOp, SUM if none is given; None for one that is not known here."""
    names = sys.modules["torch"]._C._distributed_c10d.ReduceOp
    given = [getattr(each, "reduceOp", each) for each in (*options, *more.values())]
    given = [each for each in given if isinstance(each, (names, names.RedOpType))]
    if not given:
        return "SUM"
    known = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR")
    return next((name for name in known if given[0] == getattr(names, name)), None)


def _root(options: tuple[Any, ...], more: dict[str, Any]) -> int:
    given = [getattr(each, "rootRank", each) for each in (*options, *more.values())]
    return next((each for each in given if isinstance(each, int)), 0)


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
