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
        self._by_parameter: dict[int, _OfOneOptimizer] = {}
        self._all = 0
        self._began: float | None = None
        self._waited_for: bool | None = None

    def stepped(self, optimizer: Optimizer, grew: bool, moment: float) -> int:
        """Count a step, in which a peak of memory may have grown; `moment` in seconds. Return how
        many it was of its own.

        One without parameters has none.
        """
        if self._began is None:
            self._began = moment
        parameter = _first_parameter(optimizer)
        if parameter is None:
            self.leads = False
            return 0
        of_one = self._by_parameter.get(id(parameter))
        if of_one is None or of_one.parameter() is not parameter:
            of_one = self._by_parameter[id(parameter)] = _OfOneOptimizer(parameter)
        self._all += 1
        of_one.number += 1
        of_one.since_peak += 1
        leader, of_one.last = self._leader, self._all
        if (
            leader is None
            or leader.parameter() is None
            or self._all - leader.last > GONE * len(self._by_parameter)
            or of_one.number > leader.number
        ):
            self._leader = of_one
        self.leads = of_one is self._leader
        self.number = max(self.number, of_one.number)
        if grew:
            for of_each in self._by_parameter.values():
                of_each.since_peak = 0
        return of_one.number

    @property
    def all(self) -> int:
        """Steps of all optimizers together."""
        return self._all

    def fewest(self) -> int:
        """Return the steps of the optimizer that made the fewest of those that stepped at all."""
        return min((of_one.number for of_one in self._by_parameter.values()), default=0)

    def repeat(self, enough: int = STEADY_STEPS) -> bool:
        """Whether every optimizer in use has stepped often enough since a peak last grew."""
        self._by_parameter = {
            key: of_one
            for key, of_one in self._by_parameter.items()
            if of_one.parameter() is not None
        }
        used = [
            of_one
            for of_one in self._by_parameter.values()
            if (self._all - of_one.last) * of_one.number <= MISSED * self._all
        ]
        whole = self.number >= MANY_STEPS
        counts = (of_one.number if whole else of_one.since_peak for of_one in used)
        return min(counts, default=0) >= enough

    def waits(self, optimizer_class: type, moment: float) -> bool:
        """Whether there is an optimizer that has not stepped at all, and that was not waited for
        long.
        """
        if self._waited_for is None:
            self._waited_for = self._has_unused(optimizer_class)
        return self._waited_for and self._began is not None and moment - self._began < WAIT_SECONDS

    def _has_unused(self, optimizer_class: type) -> bool:
        parameters = [_first_parameter(optimizer) for optimizer in alive.of_class(optimizer_class)]
        return any(
            parameter is not None and id(parameter) not in self._by_parameter
            for parameter in parameters
        )


def _first_parameter(optimizer: Optimizer) -> Tensor | None:
    """Return an optimizer's first parameter; None of one whose groups are all empty."""
    return next(
        (parameter for group in optimizer.param_groups for parameter in group["params"]), None
    )
