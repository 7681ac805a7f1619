"""Where does a changed script stay, so that the job's record can point at it, and for how long?

Slurm takes a job's name from the script's file name, and shows its path as the job's Command. So a
changed script goes to a folder of its own below the user's state directory, under the name that it
had. Slurm copies the script when the job is submitted: once sbatch has read it the copy is only for
people, and may go when it is old.
"""

import contextlib
import tempfile
import time
from pathlib import Path

from xmem_slurm.state import own_files

KEPT_DAYS = 30
"""How long a copy stays..."""
KEPT_MOST = 500
"""...and how many stay at most..."""
KEPT_SECONDS = 3600
"""...except the youngest: sbatch may be about to read them, even one that waits for a slow
controller."""


def keep(name: str, script: bytes) -> Path:
    """Write the script under this file name, and clear old ones away. Return its path.

    Raises:
        OSError: it cannot be written, and nothing of it is left; or others could exchange it there.
    """
    jobs = own_files.make(own_files.record_folder("jobs"))
    _prune(jobs)
    folder = Path(tempfile.mkdtemp(prefix=time.strftime("%Y%m%d-%H%M%S-"), dir=jobs))
    path = folder / name
    try:
        own_files.write(path, script, 0o700)
    except OSError:
        _remove(folder)
        raise
    return path


def _prune(jobs: Path) -> None:
    """Remove what is too old, and the oldest of what is too many."""
    for index, (age, folder) in enumerate(own_files.by_age(jobs)):
        if age > KEPT_DAYS * 86400 or (index >= KEPT_MOST - 1 and age > KEPT_SECONDS):
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a folder and the script in it; anything else in there is not ours and stays."""
    with contextlib.suppress(OSError):
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
