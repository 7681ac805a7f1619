"""A report's file is there whole or not at all."""

from pathlib import Path


def replace(path: Path, content: bytes) -> None:
    """Write `content` beside `path` and rename it into place.

    Raises:
        OSError: the folder is not there, is full, or is not the user's to write in.
    """
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    part.replace(path)
