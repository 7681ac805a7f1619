"""Which estimates were made here lately? Kept whole, with their traces, so that they can be read again in any form.

Each is a file in the user's cache, one for a command in a folder; the newest `MOST` of them stay. Whoever made one
before this version of ours did, or has other types, has none: it is made again.
"""

import contextlib
import gzip
import hashlib
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from xmem_slurm import __version__
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.state import own_files
from xmem_slurm.trace import File

_FOLDER = "sizings"
MOST = 20
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class KeptSizing:
    """What was known of each component of a job, and of which: `command` as it was typed in `folder`.

    It was `made` at that time (seconds since the epoch) under the name `key`, and rests on `files`; None of them where
    it does not last. `several`: it was a heterogeneous job.
    """

    made: float
    version: str
    key: str
    command: Sequence[str]
    folder: str
    sized: Mapping[int, Sizing]
    left: Mapping[int, str]
    several: bool
    files: Sequence[File] | None

    def is_of(self, script: str) -> bool:
        """Whether a file of this name was one of its words."""
        wanted = Path(script).resolve()
        words = {part for word in self.command for part in (word, *word.split())}
        return any(Path(self.folder, word).resolve() == wanted for word in words)


def keep(
    command: Sequence[str],
    sized: Mapping[int, Sizing],
    left: Mapping[int, str],
    *,
    several: bool,
    key: str = "",
    files: Sequence[File] | None = None,
) -> None:
    """Keep what was estimated, if there is room for it."""
    kept = KeptSizing(time.time(), __version__, key, command, str(Path.cwd()), sized, left, several, files)
    with contextlib.suppress(OSError, ValueError):  # what is no text cannot be kept; no estimate is lost over that
        place = _file_of(command)
        own_files.make(place.parent)
        for _, path in own_files.by_age(place.parent)[MOST - 1 :]:
            path.unlink(missing_ok=True)
        own_files.write(place, gzip.compress(_form().dump_json(kept), 1))


def find(command: Sequence[str], folder: Path | None = None) -> KeptSizing | None:
    """Return what is kept of this command in a folder, None for the one that this process is in."""
    return _read(_file_of(command, folder))


def newest() -> Iterator[KeptSizing]:
    """Yield all that can be read, the newest first."""
    with contextlib.suppress(OSError):
        for _, path in own_files.by_age(own_files.cache_folder(_FOLDER)):
            kept = _read(path)
            if kept is not None:
                yield kept


def _file_of(command: Sequence[str], folder: Path | None = None) -> Path:
    name = hashlib.sha256(
        repr((list(command), str(folder or Path.cwd()))).encode(errors="surrogateescape")
    ).hexdigest()[:32]
    return own_files.cache_folder(_FOLDER) / f"{name}.json.gz"


def _read(path: Path) -> KeptSizing | None:
    try:
        kept: KeptSizing = _form().validate_json(gzip.decompress(own_files.read(path, MOST_BYTES)))
    except (OSError, EOFError, zlib.error, ValidationError):
        return None
    return kept if kept.version == __version__ else None


@cache
def _form() -> TypeAdapter[Any]:
    return TypeAdapter(KeptSizing)
