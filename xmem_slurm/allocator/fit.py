"""How little memory would have been enough?"""

from xmem_slurm.allocator.config import Settings
from xmem_slurm.allocator.device import GRANULARITY
from xmem_slurm.allocator.replay import Run
from xmem_slurm.trace import Trace
from xmem_slurm.units import round_up


def smallest_capacity(trace: Trace, settings: Settings | None = None) -> int:
    """Return a capacity (bytes, multiple of 2 MiB) on which the trace fits and 2 MiB below which it does not.

    Both were replayed. Fitting is not monotonic: with less memory the allocator frees its cache earlier, which can
    leave it with fewer fragments, so a trace can fit on less than this and fail on a little more (seen within 3 % of
    the capacity). Whether it fits on a given GPU is for `replay` to say; this number says about how much a job needs.
    Above the peak of reserved bytes every capacity fits, unless the settings make the size of the GPU matter (a memory
    fraction, expandable segments).

    The search halves the range and takes about 15 replays, of which those that fail end at the failure. 0 for a trace
    without allocations.
    """
    unlimited = Run(trace, None, settings)
    unlimited.to_event(None)
    fails, fits = 0, round_up(unlimited.allocator.reserved_bytes_peak, GRANULARITY)
    while not _fits(trace, fits, settings):
        fails, fits = fits, round_up(fits + fits // 8, GRANULARITY)
    while fits - fails > GRANULARITY:
        middle = round_up((fits + fails) // 2, GRANULARITY)
        if _fits(trace, middle, settings):
            fits = middle
        else:
            fails = middle
    return fits


def _fits(trace: Trace, capacity: int, settings: Settings | None) -> bool:
    return Run(trace, capacity, settings).to_event(None) is None
