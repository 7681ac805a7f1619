"""What torch's allocator says of itself: how much each device has served, and its peaks, whatever a
script resets.
"""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from _xmem.annotations import Device, DevicePeaks, Function
    from _xmem.repeat.journal import Journal

PEAKS = ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
MOST_RESETS = 1000
"""Of a script that has torch forget its peaks more often the last are kept."""
RISE = 1.001
"""A peak that rises by less is none: scripts keep a loss, 512 bytes, of each step."""
_TOTALS = (
    ("allocation", "allocated"),
    ("allocated_bytes", "allocated"),
    ("requested_bytes", "allocated"),
    ("allocated_bytes", "freed"),
    ("segment", "freed"),
)


class Served:
    """The statistics of the devices of one process; those before a reset count on."""

    _since: dict[int, dict[str, int]]
    _resets: collections.deque[dict[int, dict[str, int]]]
    torch_peaks: DevicePeaks
    peaks: DevicePeaks
    totals: dict[int, tuple[int, ...]]

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.clear()

    def clear(self) -> None:
        """Start as a process that has not used a device."""
        self._torch: Any = None
        self._forgotten: dict[int, int] = {}
        self._resets, self._since = collections.deque(maxlen=MOST_RESETS), {}
        self._told_peaks: DevicePeaks = {}
        self.devices: Sequence[int] = (0,)
        self.counts: list[int] = [0]
        """How many allocations each device had served when it was last asked."""
        self.allocated = 0
        """Bytes that were allocated then, on all of them."""
        self.torch_peaks, self.peaks, self.totals = {}, {}, {}
        """By device: {peak: bytes}, torch's own and with what was skipped; (allocations, bytes,
        requested bytes, freed bytes, segments given back) so far, with that, too."""

    def begin(self, torch: ModuleType) -> None:
        """CUDA is in use from now on."""
        self._torch = torch
        # Not torch.cuda.device_count(): that reads CUDA_VISIBLE_DEVICES anew, which CUDA does once,
        # and for good.
        self.devices = range(torch._C._cuda_getDeviceCount())

    def look(self) -> list[int]:
        """Ask torch; return `counts`."""
        if self._torch is None:
            return self.counts
        counts, allocated, skipped = [], self._journal.allocated, self._journal
        for device in self.devices:
            stats = self._torch._C._cuda_memoryStats(device)
            earlier = self.torch_peaks.get(device, {})
            self._since[device] = since = {name: stats[name]["all"]["peak"] for name in PEAKS}
            self.torch_peaks[device] = self.peaks[device] = {
                name: max(since[name], earlier.get(name, 0)) for name in PEAKS
            }
            self.totals[device] = tuple(stats[name]["all"][part] for name, part in _TOTALS)
            counts.append(self.totals[device][0] + self._forgotten.get(device, 0))
            allocated += stats["allocated_bytes"]["all"]["current"]
            if device == skipped.device and skipped.peak:
                totals = zip(self.totals[device], (*skipped.totals, 0))  # noqa: B905 - since Python 3.10
                self.totals[device] = tuple(one + of_skipped for one, of_skipped in totals)
                self.peaks[device] = {
                    name: peak if name == "reserved_bytes" else max(peak, skipped.peak)
                    for name, peak in self.torch_peaks[device].items()
                }
        self.counts, self.allocated = counts, allocated
        return counts

    def between_resets(self, device: int) -> list[dict[str, int]]:
        """Return the peaks of a device up to each reset of them, and since the last."""
        return [since[device] for since in (*self._resets, self._since) if device in since]

    def grew(self) -> bool:
        """Whether a peak has risen since this last said so."""
        grew = risen(self._told_peaks, self.peaks)
        if grew:
            self._told_peaks = dict(self.peaks)
        return grew

    def peak(self) -> int:
        """Return the most bytes that were ever allocated on one device."""
        return max((peaks["allocated_bytes"] for peaks in self.peaks.values()), default=0)

    def requested(self) -> int:
        """Return the bytes that had been asked for when torch was last asked, on all devices."""
        return sum(requested for _, _, requested, *_ in self.totals.values())

    def current(self) -> int:
        """Return how many bytes are allocated now."""
        stats = map(self._torch._C._cuda_memoryStats, self.devices)
        return sum(device_stats["allocated_bytes"]["all"]["current"] for device_stats in stats)

    def freed(self) -> bool:
        """Whether anything was ever given back."""
        return any(
            self._torch._C._cuda_memoryStats(device)["allocation"]["all"]["freed"]
            for device in self.devices
        )

    def asked(self, ask: Function, _owner: object) -> Function:
        """Around what tells a script of the allocator: calls that were skipped count in what is
        allocated.
        """

        @functools.wraps(ask)
        def told(device: Device = None) -> dict[str, Any]:
            stats, skipped = ask(device), self._journal
            if skipped.numbers and self._index(device) == skipped.device:
                for name in PEAKS:
                    counts = stats[name]["all"]
                    if name != "reserved_bytes":
                        counts["current"] += skipped.allocated
                    counts["peak"] = max(counts["peak"], counts["current"], skipped.peak_since)
            return stats

        return told

    def _index(self, device: Device) -> int:
        index = device
        if not (isinstance(device, int) or device is None):
            index = self._torch.device(device).index
        return self._torch.cuda.current_device() if index is None else index

    def around_reset(self, reset: Function, _owner: object) -> Function:
        """Around what starts the allocator's statistics anew: what they were counts on."""

        @functools.wraps(reset)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            before = self.look()
            if "Peak" in reset.__name__:
                self._resets.append(dict(self._since))
                self._journal.peak_since = 0
            reset(*args, **kwargs)
            if self._torch is not None:
                after = self.look()
                for device in self.devices:
                    self._forgotten[device] = (
                        self._forgotten.get(device, 0) + before[device] - after[device]
                    )
                self.look()

        return wrapped


def risen(before: DevicePeaks, after: DevicePeaks) -> bool:
    """Whether a peak of a device is higher than it was, by more than `RISE`."""
    return any(
        peak > RISE * before.get(device, {}).get(name, 0)
        for device, peaks in after.items()
        for name, peak in peaks.items()
    )
