"""How little memory would have been enough?"""

from xmem_slurm.allocator.config import Settings
from xmem_slurm.allocator.device import GRANULARITY
from xmem_slurm.allocator.replay import Run
from xmem_slurm.trace import Trace
from xmem_slurm.units import round_up


def smallest_capacity(trace: Trace, settings: Settings | None = None) -> int:
    """Return the smallest capacity found, in bytes and a multiple of 2 MiB, on which the trace replays without failure."""
    unlimited = Run(trace, None, settings)
    unlimited.to_event(None)
    fits = round_up(unlimited.allocator.reserved_bytes_peak, GRANULARITY)
    fails = unlimited.allocator.allocated_bytes_peak // GRANULARITY * GRANULARITY - GRANULARITY
    while fits - fails > GRANULARITY:
        middle = (fits + fails) // 2 // GRANULARITY * GRANULARITY
        if Run(trace, middle, settings).to_event(None) is None:
            fits = middle
        else:
            fails = middle
    return fits
