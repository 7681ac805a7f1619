"""How little memory is enough? Found by replays; the unlimited peak holds fragments that a job can
do without.
"""

from xmem_slurm.allocator.addresses import GRANULARITY
from xmem_slurm.allocator.replay import Replay, replay
from xmem_slurm.trace import Trace
from xmem_slurm.units import round_up

RESOLUTION = 100
"""The search ends within one part in so many of the capacity, or within a page: GPUs differ by
more, and every halving costs a replay."""

_STRIDE = 8
"""The search goes up by one part in so many before it halves: batches that vary need 1.05 to 1.5
times what is allocated at most, however many times that is reserved."""

_STEP = 50
_CLEAR = 16
"""Going up by one part in `_STEP`, a capacity counts if all up to one part in `_CLEAR` above it are
enough, too. Seen with batches that vary: gaps 2 to 3 % wide in which the job fails, up to 6 % above
the least on which it runs."""


def smallest_capacity(trace: Trace, unlimited: Replay) -> int:
    """Return about the smallest capacity (bytes, multiple of 2 MiB) that is enough for a trace, and
    safely so.

    `unlimited` is the trace's replay without a limit. Enough is `Replay.suffices`. That is not
    monotonic: with less memory the allocator frees its cache earlier, which can leave it with fewer
    fragments, so a trace can run on less than this by luck; the result stands above such gaps.
    Whether a job fits a given GPU is for `replay` to say.

    The search begins at the bytes allocated at most, as replays that fail end at the failure, and
    ends at the bytes reserved at most. Settings that make the size of the GPU matter (a memory
    fraction, expandable segments) can need more than those. 0 for a trace without allocations.
    """
    most = round_up(unlimited.peak_reserved_bytes, GRANULARITY)
    if most == 0:
        return 0
    fails = max(0, unlimited.peak_allocated_bytes - 1) // GRANULARITY * GRANULARITY
    enough = _up(fails, _STRIDE, most)
    while not replay(trace, enough).suffices:
        fails, enough = enough, _up(enough, _STRIDE, most)
    while enough - fails > max(GRANULARITY, enough // RESOLUTION):
        middle = round_up((fails + enough) // 2, GRANULARITY)
        if replay(trace, middle).suffices:
            enough = middle
        else:
            fails = middle
    return _above_gaps(trace, enough, most)


def room_for_bounds(trace: Trace, capacity: int) -> int:
    """Return the least capacity from `capacity` on that serves a trace whose requests are as large
    as they may be.

    That it would live on freeing its cache then does not count: the larger ones are a chance, and
    cost no job its life.
    """
    while trace.bounds and not replay(trace, capacity, at_most=True).fits:
        capacity += max(GRANULARITY, round_up(capacity // _STEP, GRANULARITY))
    return capacity


def _up(capacity: int, part: int, most: int) -> int:
    """Go up by one part in `part`, at least a page, and not past `most` in one go."""
    higher = capacity + max(GRANULARITY, round_up(capacity // part, GRANULARITY))
    return min(higher, most) if capacity < most else higher


def _above_gaps(trace: Trace, enough: int, most: int) -> int:
    """Return the least capacity from `enough` on above which nothing near fails; `most` is known to
    be one.
    """
    tried, unbroken = enough, True
    while tried < most and (not unbroken or tried - enough < enough // _CLEAR):
        tried = _up(tried, _STEP, most)
        works = tried == most or replay(trace, tried).suffices
        if works and not unbroken:
            enough = tried
        unbroken = works
    return enough
