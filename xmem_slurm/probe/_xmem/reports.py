"""What is made for people to look at is made of little: nobody sees the pictures of a dry run.

Trackers (wandb, TensorBoard) count what weights and gradients there are by numpy's histogram, after each epoch: half of
what a dry run of a U-Net took. What the script's own code counts is counted in full, as it may go by that. A film has
few frames: three of them took a minute, which is all that a dry run has.
"""

import functools
import itertools
import sys

from _xmem.process import own_code

ENOUGH = 1 << 14
"""Values that a histogram is made of."""
FRAMES = 4
"""Frames of a film."""


def thinned(histogram, numpy):
    """Around numpy's histogram, of values that are as good as any others: only so many are counted for a package."""

    @functools.wraps(histogram)
    def counted(a, *args, **kwargs):
        """Count values of an array, or of a tensor, which has `numel`."""
        values = a.size if type(a) is numpy.ndarray else a.numel() if hasattr(a, "numel") else 0
        is_for_people = not own_code.is_of_the_job(sys._getframe(1).f_globals.get("__name__"))
        if is_for_people and values > ENOUGH and not args[3:] and kwargs.get("weights") is None:
            a = a.reshape(-1)[:: values // ENOUGH]
        return histogram(a, *args, **kwargs)

    return counted


def shortened(frames, _animation):
    """Around what gives the frames of matplotlib's films that are saved."""

    @functools.wraps(frames)
    def first(animation):
        return itertools.islice(frames(animation), FRAMES)

    return first
