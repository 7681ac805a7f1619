"""How much host memory does this process hold that no file backs: what counts against `--mem`?

That is what is resident, but for two things which a dry run leaves out and the job does not:
weights that are not drawn and what is read as zeros (`values/host_weights`), which take no memory
here, and large checkpoints, which are mapped here and read there. Mapped files do not count:
processes of a node share them, and the kernel may drop them.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CHANGE = 1 / 32
"""By so much what is mapped must have changed before those are looked at again, which takes a
millisecond for each GiB: what is found is right to that."""


class HostMemory:
    """The most that was found, in bytes."""

    def __init__(self) -> None:
        self.most_bytes = 0
        # where it begins: (bytes, whether a file backs it)
        self._left_out: dict[int, tuple[int, bool]] = {}
        self._missing = self._mapped = self._of_workers = 0
        self._mincore = ctypes.CDLL(None).mincore

    def leaves_out(self, begin: int, size: int, in_file: bool = False) -> None:
        """Of memory of so many bytes from there on the job has all, as long as it is mapped."""
        self._left_out[begin] = size, in_file

    def look(self) -> None:
        """See whether it is more than before; where the script has most of it: as weights leave,
        and at a step.
        """
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open("/proc/self/statm", "rb") as file:
                _, resident, of_files, _, _, mapped, _ = map(int, file.read().split())
            if self._left_out and abs(mapped - self._mapped) > CHANGE * self._mapped:
                self._mapped, self._missing = mapped, self._not_resident()
            # proc_pid_statm(5): in pages; what is resident and of no file is the process's own
            private_bytes = (resident - of_files) * mmap.PAGESIZE
            self.most_bytes = max(self.most_bytes, private_bytes + self._missing + self._of_workers)

    def look_back(self) -> None:
        """Look, and see what was the most between looks: what ever was resident, less what is of
        files now. Before a trace is written, which takes memory, too.
        """
        self.look()
        with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
            with open("/proc/self/status", "rb") as file:
                rows = dict(line.split(b":", 1) for line in file)
            most, *of_files = (
                int(rows[name].split()[0]) << 10 for name in (b"VmHWM", b"RssFile", b"RssShmem")
            )
            self.most_bytes = max(self.most_bytes, most - sum(of_files))

    def drawn_by(self, workers: Sequence[int], number: int, batch_bytes: int) -> None:
        """Count what the workers of a data loader hold: `number` of them in the job, each as much
        as the largest of these (process numbers) has for itself, and batches of so many bytes that
        are on the way.
        """
        with contextlib.suppress(OSError, ValueError, IndexError):
            largest = max(map(_private, workers))
            self._of_workers = max(self._of_workers, number * (largest + batch_bytes))

    def _not_resident(self) -> int:
        """Return how many bytes of what was left out are not in memory; what is gone is
        forgotten.
        """
        missing = 0
        for begin, (size, in_file) in list(self._left_out.items()):
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            pages = (begin + size - first) // mmap.PAGESIZE
            residency = ctypes.create_string_buffer(pages)
            length = ctypes.c_size_t(pages * mmap.PAGESIZE)
            if self._mincore(ctypes.c_void_p(first), length, residency):
                # ENOMEM: it is not mapped any more. The script's thread and that which writes the
                # trace both look, and either may have seen that before.
                self._left_out.pop(begin, None)
            else:
                of_file = 0 if in_file else residency.raw.count(b"\1")
                missing += size - of_file * mmap.PAGESIZE
        return missing


def _private(process: int) -> int:
    """Return the bytes that a process shares with no other: of a fork, what was written since."""
    with open("/proc/%d/smaps_rollup" % process, "rb") as file:
        rows = [line.split() for line in file]
    return sum(int(row[1]) << 10 for row in rows if row[0] == b"Private_Dirty:")
