"""Where does a changed script stay, so that the job's record can point at it, and for how long?

Slurm takes a job's name from the script's file name, and shows its path as the job's Command. So a changed script goes
to a folder of its own below the user's state directory, under the name that it had. Slurm copies the script when the
job is submitted: once sbatch has read it the copy is only for people, and may go when it is old.
"""

import contextlib
import os
import tempfile
import time
from pathlib import Path

import platformdirs

KEPT_DAYS = 30
"""How long a copy stays..."""
KEPT_MOST = 500
"""...and how many stay at most..."""
KEPT_SECONDS = 3600
"""...except the youngest: sbatch may be about to read them, even one that waits for a slow controller."""


def keep(name: str, script: bytes) -> Path:
    """Write the script under this file name, and clear old ones away. Return its path.

    Raises:
        OSError: it cannot be written; nothing of it is left.
    """
    jobs = platformdirs.user_state_path("xmem-slurm") / "jobs"
    jobs.mkdir(parents=True, exist_ok=True, mode=0o700)
    _prune(jobs, time.time())
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=jobs))
    path = folder / name
    try:
        path.write_bytes(script)
        path.chmod(0o700)
    except OSError:
        _remove(folder)
        raise
    return path


def _prune(jobs: Path, now: float) -> None:
    """Remove what is too old, and the oldest of what is too many. Others may do the same at the same time."""
    ages: list[tuple[float, Path]] = []
    with os.scandir(jobs) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                ages.append((now - entry.stat(follow_symlinks=False).st_mtime, Path(entry.path)))
    ages.sort()
    for index, (age, folder) in enumerate(ages):
        if age > KEPT_DAYS * 86400 or (index >= KEPT_MOST - 1 and age > KEPT_SECONDS):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder and the script in it; anything else in there is not ours and stays."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
