"""Stands in the graph for a call that was skipped: holds what it would, and its backward pass
stands for the call's. What that gives may be differentiated again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterable, NamedTuple, Sequence

from _xmem.repeat.recorded import node_number

if TYPE_CHECKING:
    from types import ModuleType

    from _xmem.annotations import Tensor
    from _xmem.repeat.calls import Calls, State
    from _xmem.repeat.known import Known


class Held:
    """What the graph of a skipped call holds: let go of with it."""

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls, self.number = calls, number

    def __del__(self) -> None:
        self._calls.let_go(self.number)


class SkippedGraph(NamedTuple):
    """The graph of a skipped call: what is known of it, what it holds in the trace, and which
    tensors of the script's.

    `tensors` are of what it gave, `arguments` of what it was given, by their places among all;
    `places` are those of the arguments that need a gradient. `state` is that of the module.
    """

    state: State
    behavior: Known
    held: Held
    tensors: Sequence[Any]
    arguments: dict[int, Any]
    places: Sequence[int]


def node_class(torch: ModuleType, calls: Calls) -> type:
    """Return the autograd function of skipped calls: `calls` has their backward passes."""
    base: Any = torch.autograd.Function

    class SkippedCall(base):
        """Takes a graph, what the call gives, and all that needs a gradient, parameters last."""

        @staticmethod
        def forward(
            ctx: Any, graph: SkippedGraph, outputs: list[Any], *needs: Tensor
        ) -> tuple[Any, ...]:
            ctx.graph, count = graph, len(graph.places)
            # Note [Made late]: the call that was made, whether one was at all, and whether a graph
            # of the script's leads through it.
            ctx.late, ctx.was_made, ctx.is_shared = None, False, False
            ctx.layouts = [
                (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
                for tensor in needs[:count]
            ]
            ctx.parameters = needs[count:]
            if count:  # so that who makes the call late finds the way back through them
                ctx.save_for_backward(
                    *[
                        tensor if place in graph.arguments else None
                        for place, tensor in zip(graph.places, needs)  # noqa: B905 - since Python 3.10
                    ]
                )
            ctx.set_materialize_grads(False)
            return tuple(outputs)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
            results = calls.went_back(ctx, gradients)
            if not calls.keeps_graph:
                ctx.graph, ctx.late = ctx.graph._replace(tensors=(), arguments={}), None
            return (None, None, *results)

    return SkippedCall


def added_up(roots: Iterable[Any]) -> tuple[dict[int, Sequence[int]], set[int]]:
    """Return {id of a parameter: numbers of nodes} of those that several nodes in the graphs of
    these tensors give a gradient: torch's engine runs them by falling number. And which of all
    nodes are skipped calls, by their numbers.

    Torch keeps what such a parameter is given until all have, and adds up each at once: what the
    first one gives stands till then, what the others give does not.
    """
    waiting = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
    met, calls = set(waiting), []
    givers: dict[int, list[int]] = {}  # at first without skipped calls
    while waiting:
        node = waiting.pop()
        if _is_skipped(node):
            calls.append(node)
        for parent, _ in _following(node):
            if type(parent).__name__ == "AccumulateGrad":
                givers.setdefault(id(parent.variable), []).append(node_number(node))
            elif parent is not None and parent not in met:
                met.add(parent)
                waiting.append(parent)
    if givers or len(calls) > 1:
        for node in calls:
            number = node_number(node)
            for parameter in map(id, node.parameters):
                givers.setdefault(parameter, []).append(number)
    several: dict[int, Sequence[int]] = {
        leaf: numbers for leaf, numbers in givers.items() if len(numbers) > 1
    }
    return several, set(map(node_number, calls)) if several else set()


def _is_skipped(node: Any) -> bool:
    return isinstance(getattr(node, "graph", None), SkippedGraph)


def _following(node: Any) -> Sequence[tuple[Any, int]]:
    """Return the edges of a node, of a skipped call those that lead to no parameter."""
    if not _is_skipped(node):
        edges: Sequence[tuple[Any, int]] = node.next_functions
        return edges
    count = len(node.graph.places)
    return node.next_functions[:count] if count else ()  # to ask for them takes time


def derivatives_class(torch: ModuleType) -> type:
    """Return the autograd function that a script finds behind gradients of skipped calls which it
    has made with a graph of their own: their derivatives are there, and have no values.
    """
    base: Any = torch.autograd.Function

    class SkippedDerivatives(base):
        """Takes gradients, and what they are functions of."""

        @staticmethod
        def forward(ctx: Any, gradients: Sequence[Tensor], *sources: Tensor) -> tuple[Tensor, ...]:
            ctx.layouts = [
                (source.shape, source.stride(), source.dtype, source.device) for source in sources
            ]
            return tuple(gradients)

        @staticmethod
        def backward(ctx: Any, *_: Tensor | None) -> tuple[Any, ...]:
            derivatives = [
                torch.empty_strided(shape, stride, dtype=dtype, device=device)
                for shape, stride, dtype, device in ctx.layouts
            ]
            again = torch.is_grad_enabled()
            return (None, *[derivative.requires_grad_(again) for derivative in derivatives])

    return SkippedDerivatives
