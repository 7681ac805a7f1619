"""Forecasts what real steps would take on this CPU, before they are taken: the forward pass on
shapes alone.

A forked process runs the first call of the model under torch's FakeTensorMode: nothing is computed,
and whatever the model changes of itself is lost with the process. It counts operations, bytes moved
and bytes kept for the backward pass, and times a product and a copy for this machine's pace, in CPU
seconds. A number that is read is zero, and of a mask everything is selected. Where other shapes
depend on values there is no forecast.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Dtype, Module, Tensor

LONGEST_SECONDS = 60
"""A forecast that takes longer comes too late."""
_EDGE = 768
"""Rows and columns of the product that is timed: large enough for a CPU's full pace, done in 1 to
100 ms."""
_COPIED_BYTES = 32 << 20
"""Large, so that the copy that is timed goes to memory, and not to a cache alone."""
_TRIES = 5


def forecast(
    torch: ModuleType,
    module: Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    answer: Callable[[float, int], None],
) -> None:
    """Call `answer(forward_seconds, kept_bytes)` from another thread once it is known; never, if it
    cannot be known.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        if (
            os.fork() == 0
            # a grandchild is nobody's to wait for: a script that waits for its children is not
            # confused
        ):
            _answer(torch, module, args, kwargs, writing)
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    threading.Thread(
        target=_listen, args=(reading, answer), name="xmem-forecast", daemon=True
    ).start()


def _listen(reading: int, answer: Callable[[float, int], None]) -> None:
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    if text:
        answer(*json.loads(text))


def _answer(
    torch: ModuleType, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], writing: int
) -> None:
    """Run in the forked process, which ends here."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_SECONDS)
        torch.set_num_threads(1)  # the other threads are the parent's
        counts = _count(torch, module, args, kwargs)
        rate, bandwidth = _pace(torch, counts.main_type())
        seconds = sum(counts.flops.values()) / rate + counts.moved / bandwidth
        os.write(writing, json.dumps([seconds, counts.kept + counts.largest]).encode())
    finally:
        os._exit(0)


class _Counts:
    """Of one forward pass: operations by type, bytes read and written, bytes kept for backward, the
    largest tensor.
    """

    def __init__(self) -> None:
        self.flops: dict[Dtype, int] = {}
        self.moved = self.kept = self.largest = 0

    def main_type(self) -> Dtype | None:
        return max(self.flops, key=lambda dtype: self.flops[dtype], default=None)


def _count(
    torch: ModuleType, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _Counts:
    """Return the counts of one call of a module, run on shapes alone."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    aten = torch.ops.aten
    counts = _Counts()
    storages = {}  # what is kept is held, too: addresses are not used again

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: Any,
            _types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            if func is aten._local_scalar_dense.default:
                return 0.0 if args[0].is_floating_point() else 0
            if func is aten.nonzero.default:
                return args[0].new_zeros((args[0].numel(), args[0].dim()), dtype=torch.long)
            result = func(*args, **(kwargs or {}))
            tensors = [tensor for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
            bytes_made = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            counts.largest = max(counts.largest, bytes_made)
            counts.moved += 0 if func.is_view else 2 * bytes_made
            flops_of = flop_registry.get(func._overloadpacket)
            if flops_of is not None and tensors:
                flops = flops_of(*args, **(kwargs or {}), out_val=result)
                counts.flops[tensors[0].dtype] = counts.flops.get(tensors[0].dtype, 0) + flops
            return result

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage() if isinstance(tensor, FakeTensor) else None
        if storage is not None and storage._cdata not in storages:
            storages[storage._cdata] = storage
            counts.kept += storage.nbytes()
        return tensor

    with (
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        FakeTensorMode(allow_non_fake_inputs=True),
        Count(),
    ):
        result = module.forward(*args, **kwargs)
    del result
    return counts


def _pace(torch: ModuleType, dtype: Dtype | None) -> tuple[float, float]:
    """Return operations a second of one thread, and bytes a second."""
    one = torch.ones(_EDGE, _EDGE, dtype=dtype or torch.float32)
    copied = torch.ones(_COPIED_BYTES // 4)
    product, copy = _seconds(lambda: one @ one), _seconds(copied.clone)
    return 2 * _EDGE**3 / product, 2 * _COPIED_BYTES / copy


def _seconds(work: Callable[[], object]) -> float:
    """Return the best of a few: what others do on this machine meanwhile is not its pace."""
    best = float("inf")
    for _ in range(_TRIES):
        started = time.thread_time()
        work()
        best = min(best, time.thread_time() - started)
    return best
