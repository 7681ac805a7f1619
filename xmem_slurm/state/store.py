"""Records that are kept until others need their room: each a file in a folder of the user's cache.

A record is a head, which is JSON of one line, and parts behind it, each compressed alone: a reader
who wants the head, or one part, unpacks no other. What was given last is the last to go.
"""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from xmem_slurm.errors import SilentPlace
from xmem_slurm.state import own_files

MIB = 1 << 20
_LEVEL = 1
"""Of gzip: three times smaller than the text, at 100 MB a second; the next levels take longer than
they save."""


class StoredRecord(NamedTuple):
    """What is kept under a name: `head`, and the `packed` parts."""

    path: Path
    head: Mapping[str, Any]
    packed: Sequence[bytes]

    def part(self, number: int) -> bytes:
        """Return a part.

        Raises:
            ValueError: it is damaged.
        """
        import gzip  # noqa: PLC0415 - who needs the head alone does not wait for it
        import zlib  # noqa: PLC0415

        try:
            return gzip.decompress(self.packed[number])
        except (OSError, EOFError, zlib.error, IndexError) as error:
            raise ValueError(f"{self.path}: damaged") from error

    def use(self) -> None:
        """Note that it was given now: it is the newest, and the last to go."""
        with contextlib.suppress(OSError):
            os.utime(self.path)


class Store(NamedTuple):
    """A folder of the user's cache for records, at most `most` of them and of `most_bytes`
    together.
    """

    folder_name: str
    most_bytes: int = 64 * MIB
    most: int = 1000

    @property
    def folder(self) -> Path:
        """Where they are; it need not exist."""
        return own_files.cache_folder(self.folder_name)

    def write(self, name: str, head: Mapping[str, object], parts: Sequence[bytes] = ()) -> None:
        """Keep a record, if there is room for it; what cannot be kept is not.

        One that takes a quarter of all the room is not kept: it would push out what many others are
        for.
        """
        import gzip  # noqa: PLC0415 - as above

        with contextlib.suppress(OSError, SilentPlace):
            packed = [gzip.compress(part, _LEVEL, mtime=0) for part in parts]
            line = json.dumps([head, [*map(len, packed)]]).encode()
            content = b"".join([line, b"\n", *packed])
            if len(content) <= self.most_bytes // 4:
                own_files.make(self.folder)
                self._make_room(len(content))
                own_files.write(self.folder / name, content)

    def read(self, name: str) -> StoredRecord | None:
        """Return the record of this name; None where there is none, or none that can be read."""
        return self._read(self.folder / name)

    def newest(self) -> Iterator[StoredRecord]:
        """Yield all that can be read, what was kept or given last first."""
        with contextlib.suppress(OSError):
            for _, path in own_files.by_age(self.folder):
                record = self._read(path)
                if record is not None:
                    yield record

    def _read(self, path: Path) -> StoredRecord | None:
        try:
            line, _, body = own_files.read(path, self.most_bytes).partition(b"\n")
            head, lengths = json.loads(line)
            ends = [*accumulate(lengths)]
            packed = [body[end - length : end] for length, end in zip(lengths, ends, strict=True)]
            whole = isinstance(head, dict) and len(body) == sum(lengths)
            return StoredRecord(path, head, packed) if whole else None
        except (OSError, ValueError, TypeError):
            return None

    def _make_room(self, wanted: int) -> None:
        """Remove what was given longest ago, until there is room for so many bytes."""
        room_bytes, number = self.most_bytes - wanted, 1
        for _, path in own_files.by_age(self.folder):
            with contextlib.suppress(OSError):  # others may make room at the same time
                room_bytes -= path.lstat().st_size
                number += 1
                if room_bytes < 0 or number > self.most:
                    path.unlink()
