"""Calls that were skipped, and are made after all once their backward pass is of a kind that nobody
has seen.

Note [Made late]: what stands for a call knows the backward passes that were recorded. A script may
ask for another one late: for derivatives of derivatives, with the graph kept, of one of two heads,
for the gradients of a few parameters. What that takes cannot be told from those before. So the call
is made then, on arguments like its own, and torch goes back through it: what the call was noted to
hold is let go of, and torch's own graph has it instead. As a backward pass begins, the level is
then that of the call as it was; only what it gave is there twice, and arguments that its graph does
not hold are there for a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

if TYPE_CHECKING:
    from types import ModuleType

    from _xmem.annotations import Tensor
    from _xmem.repeat.recorded import BackwardCall


class LateCall(NamedTuple):
    """A call that was made late: what it gave that needs a gradient, and the arguments that do."""

    outs: Sequence[Tensor]
    inputs: Sequence[Tensor]


def arguments(
    torch: ModuleType, kinds: Sequence[tuple[Any, ...]], saved: dict[int, Tensor]
) -> list[Any]:
    """Return leaves of these kinds (`Kinds.of`); of some, by their places, the tensors are there.

    Those have their graph or, where they need a gradient and have none, are leaves of their own.
    """
    leaves = []
    for place, kind in enumerate(kinds):
        if len(kind) == 2:  # a plain value, behind its type
            leaves.append(kind[1])
            continue
        shape, stride, dtype, device, needs_gradient, values = kind
        if place in saved:
            leaf = saved[place]
        elif values is None:
            leaf = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        else:
            leaf = torch.tensor(values, dtype=dtype).reshape(shape)
        leaves.append(leaf.requires_grad_() if needs_gradient and not leaf.requires_grad else leaf)
    return leaves


def context(torch: ModuleType, switches: Sequence[Any]) -> Any:
    """Return the region of autocast that a call of these switches was in (`Kinds.switches`)."""
    autocast = switches[3]
    if not autocast:
        return torch.autocast("cuda", enabled=False)
    return torch.autocast("cuda", dtype=autocast[0], cache_enabled=autocast[1])


def are_alike(switches: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether torch is set now as for a call of these switches, but for gradients and `context`."""
    return (switches[2], *switches[4:]) == (now[2], *now[4:])


def gradients(
    torch: ModuleType,
    late: LateCall,
    given: Sequence[Tensor | None],
    parameters: Sequence[Tensor],
    backward_call: BackwardCall,
    *,
    returned: bool,
) -> list[Tensor | None]:
    """Have torch go back through a call that was made late; return the gradients of its inputs, and
    of its parameters those that are to be `returned`.

    The others torch adds to what parameters have, one by one, as in any backward pass.
    """
    pairs = [(out, gradient) for out, gradient in zip(late.outs, given) if gradient is not None]  # noqa: B905 - since Python 3.10
    outs, of_outs = [out for out, _ in pairs], [gradient for _, gradient in pairs]
    named = backward_call.inputs
    wanted = [parameter for parameter in parameters if not named or id(parameter) in named]
    if not returned:
        # Named inputs are no way through a reentrant checkpoint, and not needed where the way ends
        # in the arguments.
        ends = all(leaf.is_leaf for leaf in late.inputs)
        torch.autograd.backward(
            outs,
            of_outs,
            retain_graph=backward_call.keep_graph,
            inputs=None if ends else [*late.inputs, *wanted],
        )
        found = [leaf.grad for leaf in late.inputs]
        for leaf in late.inputs:
            leaf.grad = None  # the graph may be gone through again
        return [*found, *[None] * len(parameters)]
    found = list(
        torch.autograd.grad(
            outs,
            [*late.inputs, *wanted],
            of_outs,
            retain_graph=backward_call.keep_graph,
            create_graph=backward_call.create_graph,
            allow_unused=True,
        )
    )
    of_inputs, of_wanted = found[: len(late.inputs)], iter(found[len(late.inputs) :])
    return [
        *of_inputs,
        *[next(of_wanted) if not named or id(each) in named else None for each in parameters],
    ]
