"""Stands in the graph for a call that was skipped: holds what it would, and its backward pass
stands for the call's.
"""

from typing import Any, NamedTuple, Sequence

from _xmem.repeat.known import Known


class Held:
    """What the graph of a skipped call holds: let go of with it."""

    def __init__(self, calls, number):
        self._calls, self.number = calls, number

    def __del__(self):
        self._calls.let_go(self.number)


class SkippedGraph(NamedTuple):
    """The graph of a skipped call: what is known of it, what it holds in the trace, and which
    tensors of the script's.

    Of what needs a gradient, `inputs` are no parameters. `state` is that of the module.
    """

    state: Any
    known: Known
    held: Held
    tensors: Sequence[Any]
    inputs: int


def node_class(torch, calls):
    """Return the autograd function of skipped calls: `calls` has their backward passes."""

    class SkippedCall(torch.autograd.Function):
        """Takes a graph, what the call gives, and all that needs a gradient, parameters last."""

        @staticmethod
        def forward(ctx, graph, given, *needs):
            ctx.graph = graph
            ctx.layouts = [
                (each.shape, each.stride(), each.dtype, each.device)
                for each in needs[: graph.inputs]
            ]
            ctx.parameters = needs[graph.inputs :]
            ctx.set_materialize_grads(False)
            return tuple(given)

        @staticmethod
        def backward(ctx, *gradients):
            found = calls.went_back(ctx, gradients)
            if not calls.keeps_graph:
                ctx.graph = ctx.graph._replace(tensors=())
            return (None, None, *found)

    return SkippedCall
