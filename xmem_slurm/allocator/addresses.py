"""Which addresses does the driver give to device memory? Note [Device addresses],
device/src/cudart/addresses.c.

The same rules, number by number, so that a replay can be compared with torch's own library on the
stand-ins.
"""

from bisect import bisect, insort

from xmem_slurm.units import MIB, round_up

GRANULARITY = 2 * MIB
"""Bytes of one page of GPU memory (cuMemGetAllocationGranularity on every NVIDIA GPU since
Pascal)."""
CHUNK = 32 * MIB
UPPER, UPPER_HOLE = 96 * MIB, 24 * MIB
"""The context's upper chunk, and what is free of it."""
POOL_OF_132 = 414 * MIB
"""What the driver holds until the first launch, of a GPU with 132 multiprocessors."""
WINDOW_END = 48 << 40
"""Where the stand-ins' addresses end, from which they go down."""


class Addresses:
    """The address space of one process below `end`: chunks, and the holes in them, each a (start,
    end), sorted.

    With the chunks of a context on a GPU of so many multiprocessors, where their number is given.
    """

    __slots__ = ("chunks", "end", "holes", "pool")

    def __init__(self, end: int = WINDOW_END, multiprocessors: int | None = None) -> None:
        self.end = end
        self.chunks: list[tuple[int, int]] = []
        self.holes: list[tuple[int, int]] = []
        self.pool: tuple[int, int] | None = None
        if multiprocessors:
            size = round_up(POOL_OF_132 * multiprocessors // 132, GRANULARITY)
            upper = end - UPPER
            start = upper - round_up(size, CHUNK)
            self.pool = start, size
            self.chunks = [(start, upper), (upper, end)]
            self.holes = [(start + size, upper)] * (start + size < upper) + [
                (end - UPPER_HOLE, end)
            ]

    def launched(self) -> None:
        """Give the driver's pool back: a kernel is launched. Of all launches the first one does
        it.
        """
        if self.pool is not None:
            self.give_back(*self.pool)
            self.pool = None

    def take(self, size: int) -> int:
        """Return the address of a place for `size` bytes."""
        size = round_up(size, GRANULARITY)
        for number, (start, end) in enumerate(self.holes):
            if end - start >= size:
                self.holes[number : number + 1] = (
                    [(start + size, end)] if end - start > size else []
                )
                return start
        chunk = round_up(size, CHUNK)
        start = self._end_of_room(chunk) - chunk
        insort(self.chunks, (start, start + chunk))
        if chunk > size:
            insort(self.holes, (start + size, start + chunk))
        return start

    def give_back(self, address: int, size: int) -> None:
        """Free what `take` returned for `size` bytes."""
        number = bisect(self.chunks, (address, self.end)) - 1
        first, last = self.chunks[number]
        start, end = address, address + round_up(size, GRANULARITY)
        at = bisect(self.holes, (start, end))
        if at < len(self.holes) and self.holes[at][0] == end < last:
            end = self.holes.pop(at)[1]
        if at and self.holes[at - 1][1] == start > first:
            at -= 1
            start = self.holes.pop(at)[0]
        if (start, end) == (first, last):
            del self.chunks[number]
        else:
            self.holes.insert(at, (start, end))

    def _end_of_room(self, size: int) -> int:
        """Return the end of the highest place outside the chunks that has room for `size` bytes."""
        end = self.end
        for start, last in reversed(self.chunks):
            if end - last >= size:
                break
            end = start
        return end
