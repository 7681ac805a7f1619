"""What is plotted for people to look at takes no longer than it must: nobody sees the plots of a
dry run.

Trackers (wandb, TensorBoard) count what weights and gradients there are by numpy's histogram, after
each epoch: half of what a dry run of a U-Net took. Here these are one number as a rule, which has
one bar. Of a film that is saved the first frames are drawn, and the others if those use the GPU:
three films took a minute, all that a dry run has.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from _xmem.annotations import Function

LARGE = 1 << 14
"""Values of which it pays to see first whether they are all the same."""
FRAMES = 4
"""Frames of a film."""


def of_one_number(histogram: Function, numpy: ModuleType) -> Function:
    """Around numpy's histogram: many times the same number are counted once, which gives the same
    counts.
    """

    @functools.wraps(histogram)
    def counted(
        a: Any,
        bins: Any = 10,
        range: Any = None,  # noqa: A002 - numpy's name
        density: Any = None,
        weights: Any = None,
    ) -> tuple[Any, Any]:
        values = numpy.asarray(a)
        if values.size < LARGE or density or weights is not None or values.min() != values.max():
            return histogram(values, bins, range, density, weights)
        counts, edges = histogram(values.reshape(-1)[:1], bins, range)
        return counts * values.size, edges

    return counted


def shortened(frames: Function, _animation: type) -> Function:
    """Around what gives the frames of matplotlib's films that are saved."""

    @functools.wraps(frames)
    def first(animation: Any) -> Iterator[Any]:
        statistics = sys.modules["torch"].cuda.memory_stats  # empty before CUDA is used
        before = statistics().get("allocation.all.allocated")
        for number, frame in enumerate(frames(animation), 1):
            yield frame
            if number == FRAMES and statistics().get("allocation.all.allocated") == before:
                return

    return first
