"""What the script's own code is told of the time, so that it is seen what it does by it.

Note [Times]: a dry run takes seconds where the job takes hours, so what a script does every half an
hour, or an hour before its limit, never comes. `time.time` and its like therefore give numbers to
the script's own code that notice what they are compared with; packages get the plain ones. A line
whose comparisons were all with a time that was still to come is a doubt.

In the other course of the clock (XMEM_CLOCK=leaps) such times come: at the second of these
comparisons of a line, and whenever their number has doubled, time leaps to the one in question.
What needs more of the two courses stands (`dryrun/engines`).

Not noticed: whole numbers (`int(seconds)`, `time.time_ns`), and `datetime`.
"""

from __future__ import annotations

import functools
import math
import sys
import time

from _xmem.process import own_code

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from _xmem.annotations import Function, Note

CLOCKS = ("time", "monotonic", "perf_counter")
BEYOND = 1e-3
"""Seconds by which time leaps further: a number of 1.8e9 seconds is exact to 2.4e-7 of them."""


class _WaitingLine:
    """What a line of the script has compared with times: how many were to come, and whether one had
    passed.
    """

    def __init__(self) -> None:
        self.to_come, self.passed = 0, False


class Times:
    """Those of one process; `leaps` is its course."""

    def __init__(self, leaps: bool) -> None:
        self._leaps, self._ahead, self._looks = leaps, 0.0, 0
        self._lines: dict[tuple[str, int], _WaitingLine] = {}

    def told(self, clock: Callable[[], float]) -> Callable[[], float]:
        """Return what takes the place of a clock."""

        @functools.wraps(clock)
        def noted_clock() -> float:
            if not own_code.is_of_the_job(sys._getframe(1).f_globals.get("__name__")):
                return clock()
            self._looks += 1
            return Time(clock() + self._ahead, self, 1.0, self._looks)

        return noted_clock

    def remaining(self, line: tuple[str, int], seconds: float) -> float:
        """A line compares with a time that comes in so many seconds; return how many are left of
        them.
        """
        met = self._lines.setdefault(line, _WaitingLine())
        if seconds <= 0:
            met.passed = True
            return seconds
        met.to_come += 1
        if not self._leaps or met.to_come == 1 or met.to_come & (met.to_come - 1):
            return seconds
        met.passed = True
        self._ahead += seconds + BEYOND
        return -BEYOND

    def doubt(self, note: Note) -> None:
        """Say which lines wait for a time that did not come, and of which others both was seen."""
        for line, met in list(self._lines.items()):
            if met.to_come:
                note("both-ways" if met.passed else "clock", "%s:%d" % line)


class Time(float):
    """A point in time, or a length of time, in any unit.

    `look` is which look at the clock it is from, 0 of a length; `rate` is how much it grows in a
    second, were the clock looked at anew.
    """

    look: int
    rate: float
    times: Times

    __slots__ = ("look", "rate", "times")

    def __new__(cls, value: float, times: Times, rate: float, look: int = 0) -> Time:
        self = float.__new__(cls, value)
        self.times, self.rate, self.look = times, rate, look
        return self

    def __reduce__(self) -> Any:
        return float, (float(self),)

    def _with(self, value: Any, rate: float, look: int) -> Any:
        return value if value is NotImplemented else Time(value, self.times, rate, look)

    def __add__(self, operand: Any) -> Any:
        return self._with(float.__add__(self, operand), self.rate, self.look)

    __radd__ = __add__

    def __sub__(self, operand: Any) -> Any:
        look, rate = self.look, self.rate
        if look and isinstance(operand, Time) and operand.look:
            look, rate = 0, rate if look >= operand.look else -rate
        return self._with(float.__sub__(self, operand), rate, look)

    def __rsub__(self, operand: Any) -> Any:
        return self._with(float.__rsub__(self, operand), -self.rate, 0)

    def __neg__(self) -> Any:
        return self._with(float.__neg__(self), -self.rate, 0)

    def __mul__(self, operand: Any) -> Any:
        return self._in_another_unit(float.__mul__, operand, float.__mul__)

    __rmul__ = __mul__

    def __truediv__(self, operand: Any) -> Any:
        return self._in_another_unit(float.__truediv__, operand, float.__truediv__)

    def __floordiv__(self, operand: Any) -> Any:
        return self._in_another_unit(float.__floordiv__, operand, float.__truediv__)

    def _in_another_unit(self, operator: Function, operand: Any, of_rate: Function) -> Any:
        """Return what an operator gives; with a tensor, or an array, that is theirs, and nothing is
        computed here.
        """
        value = operator(self, operand)
        if value is NotImplemented or isinstance(operand, Time):
            return value
        return Time(value, self.times, of_rate(self.rate, operand), self.look)

    def __lt__(self, operand: Any) -> Any:
        return _compare(float.__lt__, self, operand)

    def __le__(self, operand: Any) -> Any:
        return _compare(float.__le__, self, operand)

    def __gt__(self, operand: Any) -> Any:
        return _compare(float.__gt__, self, operand)

    def __ge__(self, operand: Any) -> Any:
        return _compare(float.__ge__, self, operand)


def _compare(comparison: Function, one: Time, operand: Any) -> Any:
    """Compare a time with what may be a number, and notice that: two lengths are compared to see
    which took longer.
    """
    answer = comparison(one, operand)
    both = isinstance(operand, Time)
    if answer is NotImplemented or (both and not (one.look or operand.look)):
        return answer
    frame = sys._getframe(2)
    current, then = (operand, one) if both and operand.look > one.look else (one, operand)
    rate = current.rate
    if (
        not rate
        or not math.isfinite(then)
        or not own_code.is_of_the_job(frame.f_globals.get("__name__"))
    ):
        return answer
    line = frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno
    seconds = (float(then) - float(current)) / rate
    remaining = current.times.remaining(line, seconds)
    if remaining == seconds:
        return answer
    moved = float(then) - remaining * rate
    return comparison(moved, operand) if current is one else comparison(float(one), moved)


def have_read(torch: ModuleType) -> None:
    """Have torch.load read the times of a checkpoint, which are written there as a call of float.

    Since 2.6 it makes no calls but of what it is told (weights_only).
    """
    allow = getattr(torch.serialization, "add_safe_globals", None)
    if allow is not None:
        allow([float])


def install(leaps: bool) -> Times:
    """Tell the script's own code of the time by these from here on, and return them."""
    times = Times(leaps)
    for name in CLOCKS:
        setattr(time, name, times.told(getattr(time, name)))
    return times
