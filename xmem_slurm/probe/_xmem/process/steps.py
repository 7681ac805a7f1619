"""Counts optimizer steps, and tells when they only repeat what was seen. Seconds are those of
`process/clock`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from _xmem.process import alive

if TYPE_CHECKING:
    from _xmem.annotations import Optimizer, Tensor

STEADY_STEPS = 3
"""So many steps of every optimizer without a new peak, and the run repeats itself: the first step
lacks the optimizer's state, the second is the first whole one."""
ALIKE_STEPS = 2
"""So many are enough in a brief run where each of them asked for what an earlier one did."""
MANY_STEPS = 64
"""After so many it does so all the same: what still grows then (losses that are kept) grows with
every step."""
GONE = 2
"""Where an optimizer has missed so many steps of each there was, another one tells when the script
comes round."""
MISSED = 4
"""An optimizer that missed so many of its turns is not in use any more: another has taken its
place."""
WAIT_SECONDS = 10.0
"""How long an optimizer that has not stepped at all is waited for: a GAN's generator may step once
in many steps."""


class _OfOneOptimizer:
    """The steps of one optimizer, known by a `parameter`: how many, how many `since_peak`, and the
    number among those of all that the last one was.
    """

    __slots__ = ("last", "number", "parameter", "since_peak")

    def __init__(self, parameter: Tensor) -> None:
        self.parameter = weakref.ref(parameter)
        self.number = self.since_peak = self.last = 0


class Steps:
    """The steps of all optimizers of a process.

    An optimizer is known by its first parameter: some scripts make a new one over the same
    parameters for every step.
    """

    def __init__(self) -> None:
        self.number = 0
        """Steps of the optimizer that made the most: where each parameter has its own, a step is
        one round of all."""
        self.leads = False
        """Whether the step that was counted last was one by which the script comes round."""
        # the optimizer whose are those: the one with the most steps, as long as it is in use
        self._leader: _OfOneOptimizer | None = None
        # by the id of the parameter
        self._seen: dict[int, _OfOneOptimizer] = {}
        self._all = 0
        self._began: float | None = None
        self._waited_for: bool | None = None

    def stepped(self, optimizer: Optimizer, grew: bool, now: float) -> int:
        """Count a step, in which a peak of memory may have grown; `now` in seconds. Return how many
        it was of its own.

        One without parameters has none.
        """
        if self._began is None:
            self._began = now
        parameter = _first_parameter(optimizer)
        if parameter is None:
            self.leads = False
            return 0
        seen = self._seen.get(id(parameter))
        if seen is None or seen.parameter() is not parameter:
            seen = self._seen[id(parameter)] = _OfOneOptimizer(parameter)
        self._all += 1
        seen.number += 1
        seen.since_peak += 1
        leader, seen.last = self._leader, self._all
        if (
            leader is None
            or leader.parameter() is None
            or self._all - leader.last > GONE * len(self._seen)
            or seen.number > leader.number
        ):
            self._leader = seen
        self.leads = seen is self._leader
        self.number = max(self.number, seen.number)
        if grew:
            for each in self._seen.values():
                each.since_peak = 0
        return seen.number

    @property
    def all(self) -> int:
        """Steps of all optimizers together."""
        return self._all

    def least(self) -> int:
        """Return the steps of the optimizer that made the fewest of those that stepped at all."""
        return min((seen.number for seen in self._seen.values()), default=0)

    def repeat(self, enough: int = STEADY_STEPS) -> bool:
        """Whether every optimizer in use has stepped often enough since a peak last grew."""
        self._seen = {key: seen for key, seen in self._seen.items() if seen.parameter() is not None}
        used = [
            seen
            for seen in self._seen.values()
            if (self._all - seen.last) * seen.number <= MISSED * self._all
        ]
        whole = self.number >= MANY_STEPS
        counts = (seen.number if whole else seen.since_peak for seen in used)
        return min(counts, default=0) >= enough

    def waits(self, optimizer_class: type, now: float) -> bool:
        """Whether there is an optimizer that has not stepped at all, and that was not waited for
        long.
        """
        if self._waited_for is None:
            self._waited_for = self._has_unused(optimizer_class)
        return self._waited_for and self._began is not None and now - self._began < WAIT_SECONDS

    def _has_unused(self, optimizer_class: type) -> bool:
        parameters = [_first_parameter(optimizer) for optimizer in alive.of_class(optimizer_class)]
        return any(
            parameter is not None and id(parameter) not in self._seen for parameter in parameters
        )


def _first_parameter(optimizer: Optimizer) -> Tensor | None:
    """Return an optimizer's first parameter; None of one whose groups are all empty."""
    return next(
        (parameter for group in optimizer.param_groups for parameter in group["params"]), None
    )
