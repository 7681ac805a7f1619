"""Ranges that are named for a profiler are not opened while none looks on: to open and close one
costs 15 to 30 us.

Each optimizer step and `zero_grad` has one, FSDP has some for each module, and a step that is
skipped takes not much more than that. Torch closes none that says so (torch/autograd/profiler.py,
record_function, 2.4 to 2.15).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from _xmem.annotations import Function


class Ranges:
    """The ranges of one process (torch.profiler.record_function)."""

    def __init__(self, torch: ModuleType) -> None:
        self._profiler = torch.autograd.profiler

    def opened(self, enter: Function, _range_class: type) -> Function:
        """Around what opens one."""

        @functools.wraps(enter)
        def opened(named: Any) -> Any:
            if not self._profiler._is_profiler_enabled:
                named.run_callbacks_on_exit = False
                return named
            named.run_callbacks_on_exit = True  # it may have been used before
            return enter(named)

        return opened
