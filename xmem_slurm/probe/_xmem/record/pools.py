"""Which allocations lie in the pools of CUDA graphs? Torch's history does not say so (before 2.15),
its segments do.

The allocator keeps such a pool apart from the common one as it keeps streams apart, so each stand
here as a stream of its own. The stand-in device gives no address out twice, so a segment's place
tells its pool for good.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _xmem.annotations import HistoryEntry, Note

_COMMON = (0, 0)


class Pools:
    """The segments of private pools seen so far, by device."""

    def __init__(self) -> None:
        self._segments: dict[int, dict[int, tuple[int, Any]]] = {}  # device: {address: (end, pool)}

    def look(self, segments: list[dict[str, Any]]) -> None:
        """Note what torch's snapshot says of its segments."""
        for segment in segments:
            pool = tuple(segment.get("segment_pool_id", _COMMON))
            if pool != _COMMON:
                end = segment["address"] + segment["total_size"]
                self._segments.setdefault(segment["device"], {})[segment["address"]] = (end, pool)

    def streams(self, device: int, entries: list[HistoryEntry]) -> list[int]:
        """Return the streams of entries (action, address, size, stream); that of a private pool is
        negative.
        """
        segments = self._segments.get(device)
        if not segments:
            return [stream for _, _, _, stream in entries]
        starts = sorted(segments)
        numbers: dict[tuple[Any, int], int] = {}

        def pooled(address: int, stream: int) -> int:
            at = bisect.bisect_right(starts, address) - 1
            end, pool = segments[starts[at]] if at >= 0 else (0, None)
            if address >= end:
                return stream
            return -1 - numbers.setdefault((pool, stream), len(numbers))

        return [pooled(address, stream) for _, address, _, stream in entries]

    def doubt(self, note: Note) -> None:
        """Say that there are such pools."""
        pools = {pool for segments in self._segments.values() for _, pool in segments.values()}
        if pools:
            note("private-pool", "pools of CUDA graphs, replayed as streams", len(pools))
