"""A report's file is there whole or not at all."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and rename it into place; what was there hands on its mode and owner.

    Raises:
        OSError: the folder is not there, is full, or is not the user's to write in.
    """
    number, part = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content)
            os.fchmod(number, path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~_umask())
            if path.exists() and os.geteuid() == 0:
                os.fchown(number, path.stat().st_uid, path.stat().st_gid)
        Path(part).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(part).unlink()
        raise


def _umask() -> int:
    """Return the mask of new files, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
