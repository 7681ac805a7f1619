"""What is plotted for people to look at takes no longer than it must: nobody sees the plots of a
dry run.

Trackers (wandb, TensorBoard) count what weights and gradients there are by numpy's histogram, after
each epoch: half of what a dry run of a U-Net took. Here these are one number as a rule, which has
one bar. Of a film that is saved the first frames are drawn, and the others if those use the GPU:
three films took a minute, all that a dry run has.
"""

import functools
import sys

LARGE = 1 << 14
"""Values of which it pays to see first whether they are all the same."""
FRAMES = 4
"""Frames of a film."""


def of_one_number(histogram, numpy):
    """Around numpy's histogram: many times the same number are counted once, which gives the same
    counts.
    """

    @functools.wraps(histogram)
    def counted(a, bins=10, range=None, density=None, weights=None):  # noqa: A002 - numpy's name
        values = numpy.asarray(a)
        if values.size < LARGE or density or weights is not None or values.min() != values.max():
            return histogram(values, bins, range, density, weights)
        counts, edges = histogram(values.reshape(-1)[:1], bins, range)
        return counts * values.size, edges

    return counted


def shortened(frames, _animation):
    """Around what gives the frames of matplotlib's films that are saved."""

    @functools.wraps(frames)
    def first(animation):
        statistics = sys.modules["torch"].cuda.memory_stats  # empty before CUDA is used
        before = statistics().get("allocation.all.allocated")
        for number, frame in enumerate(frames(animation), 1):
            yield frame
            if number == FRAMES and statistics().get("allocation.all.allocated") == before:
                return

    return first
