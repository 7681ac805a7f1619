"""Refuses early what would not end within its memory and time on this CPU, with what it would need.

Asked four times: as the model is first called, by its shapes (`cpu/forecast`); when its backward
pass begins, by the forward pass; after each step, by that step; and when the time is spent. Seconds
are those of the budget.
"""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING, Any

from _xmem.cpu import forecast
from _xmem.process import alive

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from _xmem.annotations import Module
    from _xmem.process.budget import TimeLeft

LEAST_STEPS = 2
"""The first step lacks the optimizer's state, the second is the first whole one. What cannot end
two is refused."""
BACKWARD_SHARE = 2.0
"""A backward pass computes two products for each one of the forward pass, and takes twice its
time."""
STATES = 3
"""Gradients and, for most optimizers, two moments: so many times the trainable parameters come on
top of a forward."""
SPREAD = 2.0
"""A step may take so many times as long as the one before it: caches and clocks of a CPU are
others' as well."""
LOOK_SECONDS = 0.25
"""How often the thread looks whether the time is up."""
_TOO_LARGE = "too large to be run on this machine's CPU: "


class Guard:
    """Of one process. Where the budget has no limit nothing is refused; `refuse` ends the
    process.
    """

    def __init__(
        self, budget: TimeLeft, memory_bytes: int | None, refuse: Callable[[str], None]
    ) -> None:
        self._budget = budget
        self._memory = memory_bytes
        self._refuse = refuse
        self._torch: Any = None
        self._forward_began: float | None = None
        self._step_began: float | None = None
        self._steps = 0
        self._over = not budget.is_limited()

    def begin(self, torch: ModuleType) -> None:
        """Watch from here on: the script uses its GPU for the first time."""
        self._torch = torch
        self._step_began = self._budget.own_seconds()
        if not self._over:
            threading.Thread(target=self._watch, name="xmem", daemon=True).start()
            self._around_first_call()

    def end(self) -> None:
        """Let the process be."""
        self._over = True

    def forward(self) -> None:
        """Note that a model begins to compute; one that does so before the script uses its GPU is
        none of ours.
        """
        if self._forward_began is None and self._torch is not None:
            self._forward_began = self._budget.own_seconds()

    def backward(self) -> None:
        """Judge a first step by its forward pass."""
        if self._steps == 0 and self._forward_began is not None:
            forward = self._budget.own_seconds() - self._forward_began
            self._judge(
                self._states(),
                forward * (BACKWARD_SHARE + (LEAST_STEPS - 1) * (1 + BACKWARD_SHARE)),
            )
            self._forward_began = None

    def stepped(self) -> bool:
        """Count an optimizer step; return whether there is time for one more."""
        moment = self._budget.own_seconds()
        assert self._step_began is not None
        seconds, self._step_began = moment - self._step_began, moment
        self._steps += 1
        if self._steps < LEAST_STEPS:
            self._judge(0, seconds * (LEAST_STEPS - self._steps))
        return SPREAD * seconds <= self._budget.seconds_left()

    def _around_first_call(self) -> None:
        """Ask for a forecast when a model is first called to be trained."""
        torch, module = self._torch, self._torch.nn.Module
        call = module.__call__

        def called(model: Module, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled() and model.training:
                module.__call__ = call
                if not self._over:
                    self._judge(self._states(), 0.0)
                    forecast.forecast(torch, model, args, kwargs, self._foreseen)
            return call(model, *args, **kwargs)

        module.__call__ = called

    def _foreseen(self, forward_seconds: float, kept_bytes: int) -> None:
        """Judge by the forecast, in a thread of its own while the model computes."""
        if self._steps == 0:
            self._judge(
                self._states() + kept_bytes, forward_seconds * (1 + BACKWARD_SHARE) * LEAST_STEPS
            )

    def _states(self) -> int:
        """Bytes that gradients and optimizer state will take."""
        modules = alive.instances(self._torch.nn.Module)
        trainable = {
            id(p): p
            for m in modules
            for p in m._parameters.values()
            if p is not None and p.requires_grad
        }
        return STATES * sum(p.numel() * p.element_size() for p in trainable.values())

    def _judge(self, more_bytes: int, more_seconds: float) -> None:
        if self._over:
            return
        resident, seconds_left = _resident_bytes(), self._budget.seconds_left()
        allowed = min(self._memory or float("inf"), resident + _available_bytes())
        needed = resident + more_bytes
        if needed <= allowed and more_seconds <= seconds_left:
            return
        needs = "about %s" % _size(needed) + (
            " and %s" % _duration(more_seconds) if more_seconds else ""
        )
        self._over = True
        self._refuse(
            _TOO_LARGE
            + "it needs %s here, and has %s and %s"
            % (needs, _size(allowed), _duration(seconds_left))
        )

    def late(self) -> str | None:
        """Return what is to be said now that the time is spent; None where there are steps enough
        for an answer.
        """
        if self._steps >= LEAST_STEPS or self._step_began is None:
            return None
        return _TOO_LARGE + "it was at optimizer step %d when the time was spent" % (
            self._steps + 1
        )

    def _watch(self) -> None:
        """End the process when its time is spent: nobody but its own thread could stop the
        profiler.

        Where there are steps enough for an answer that thread does so, as it is asked to end.
        """
        pid = os.getpid()
        while self._budget.seconds_left() > 0:
            time.sleep(LOOK_SECONDS)
        why = self.late()
        if why is not None and not self._over and os.getpid() == pid:
            self._over = True
            self._refuse(why)


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _available_bytes() -> int:
    """Bytes of host memory that this machine has left. Source: MemAvailable, proc_meminfo(5), in
    KiB.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


def _size(count: float) -> str:
    return "%.1f GiB" % (count / (1 << 30))


def _duration(seconds: float) -> str:
    return "%.0f s" % max(0.0, seconds) if seconds < 100 else "%.0f minutes" % (seconds / 60)
