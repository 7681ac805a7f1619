"""Ranges that are named for a profiler are not opened while none looks on: to open and close one
costs 15 to 30 us.

Each optimizer step and `zero_grad` has one, FSDP has some for each module, and a step that is
skipped takes not much more than that. Torch closes none that says so (torch/autograd/profiler.py,
record_function, 2.4 to 2.15).
"""

import functools


class Ranges:
    """The ranges of one process (torch.profiler.record_function)."""

    def __init__(self, torch):
        self._profiler = torch.autograd.profiler

    def opened(self, enter, _range_class):
        """Around what opens one."""

        @functools.wraps(enter)
        def opened(named):
            if not self._profiler._is_profiler_enabled:
                named.run_callbacks_on_exit = False
                return named
            named.run_callbacks_on_exit = True  # it may have been used before
            return enter(named)

        return opened
