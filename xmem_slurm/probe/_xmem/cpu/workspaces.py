"""What would cuDNN's operators, which ran on the CPU, take of a GPU's memory beside their results?

Where torch is a CUDA build, the stand-in CUDA libraries lie under it, idle while the steps run on
the CPU. Afterwards each convolution is done on them once more: torch chooses as it does on a GPU,
by what the job's own cuDNN says where it can be asked (device/src/libraries/cudnn_plans.c), and
takes the workspace from its allocator, which counts it. So both engines have their workspaces, and
their doubts about them, from the same place; those about batch norm, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _xmem.process import stand_ins

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ctypes import CDLL
    from types import ModuleType

    from _xmem.annotations import Function

_BACKWARD = "aten::convolution_backward"
_OPERATORS = ("aten::convolution", "aten::batch_norm", _BACKWARD)
_DOUBTS = "cudnn-"


class Workspaces:
    """Of one process, whose profiler has stopped. `runtime` is the stand-in CUDA runtime, None for
    a CPU build.

    `profile` is what the profiler returned: its events have the numbers that an operator was given,
    those of its tree the strides of the tensors.
    """

    def __init__(self, torch: ModuleType, runtime: CDLL | None, profile: Any) -> None:
        self._torch = torch
        self._runtime = runtime
        wanted = []
        if runtime is not None:
            wanted = [event for event in profile.events() if event.name() in _OPERATORS]
        self._events = {event.correlation_id(): event for event in wanted}

    def doubts(self) -> list[dict[str, Any]] | None:
        """Return what is not known of the workspaces, [{code, detail, count}]; None where nothing
        could be asked.
        """
        if self._runtime is None:
            return None
        return [
            doubt for doubt in stand_ins.doubts(self._runtime) if doubt["code"].startswith(_DOUBTS)
        ]

    def of(self, event: Any) -> list[int]:
        """Return the bytes that an operator of the profiler's tree takes while it computes each of
        its results.
        """
        same = self._events.get(event.correlation_id) if event.name in _OPERATORS else None
        if same is None:
            return []
        try:
            self._torch._C._cuda_init()
            with self._torch._C.DisableTorchFunction(), self._torch.no_grad():
                return self._measure(event, same.concrete_inputs())
        # no such operator on a GPU, or a torch that counts otherwise: this must not cost the trace
        except Exception:
            self._runtime, self._events = None, {}
            return []

    def _measure(self, event: Any, numbers: Iterable[Any]) -> list[int]:
        arguments = list(map(self._argument, event.extra_fields.inputs, numbers))
        operator = getattr(self._torch.ops.aten, event.name[len("aten::") :])
        if event.name != _BACKWARD:
            return [self._peak_of(operator, arguments)]
        *arguments, wanted = arguments
        one_by_one = [
            [n == m for m in range(len(wanted))] for n, is_wanted in enumerate(wanted) if is_wanted
        ]
        return [self._peak_of(operator, [*arguments, one]) for one in one_by_one]

    def _peak_of(self, operator: Function, arguments: list[Any]) -> int:
        self._torch._C._cuda_resetPeakMemoryStats(0)
        result = operator(*arguments)
        held = self._torch._C._cuda_memoryStats(0)["requested_bytes"]["all"]
        del result
        return held["peak"] - held["current"]

    def _argument(self, metadata: Any, number: Any) -> Any:
        if not hasattr(metadata, "strides"):
            return number
        return self._torch.empty_strided(
            list(metadata.sizes), list(metadata.strides), dtype=metadata.dtype, device="cuda"
        )
