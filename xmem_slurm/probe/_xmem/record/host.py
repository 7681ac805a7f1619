"""How much host memory does this process hold in large pieces: weights on their way to the GPU,
what is offloaded?

What is mapped counts, not what is resident: weights that nobody draws here (`values/host_weights`)
are whole in the job. Files that are mapped do not count: processes of a node share them, and the
kernel may drop them.
"""

import contextlib

PIECE_BYTES = 64 << 20
"""Mappings up to this size are left out: stacks of threads, and the C library's heaps of threads
(HEAP_MAX_SIZE, glibc malloc/arena.c)."""
GROWTH = 1 / 32
"""So much more must be mapped for another look, which costs milliseconds: what is found is right to
that."""


class HostMemory:
    """The most that was found, in bytes."""

    def __init__(self):
        self.most = 0
        self._mapped = 0

    def look(self):
        """See whether it is more than before; where the script has most of it: as weights leave,
        and at a step.
        """
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/self/statm", "rb") as file:
                mapped = int(file.read().split()[5])  # pages of data and stacks (proc_pid_statm(5))
            if mapped > (1 + GROWTH) * self._mapped:
                self._mapped = mapped
                self.most = max(self.most, _in_large_pieces())


def _in_large_pieces():
    """Return the bytes of the private memory that can be written to, of no file, in mappings that
    are large.
    """
    found = 0
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            addresses, access, _, _, inode = line.split(None, 5)[:5]
            begin, _, end = addresses.partition(b"-")
            size = int(end, 16) - int(begin, 16)
            if size > PIECE_BYTES and access.startswith(b"rw-p") and inode == b"0":
                found += size
    return found
