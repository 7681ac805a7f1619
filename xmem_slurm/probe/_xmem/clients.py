"""What programs that submit jobs leave for their job only once it is submitted: in a dry run it is
there before.
"""

from __future__ import annotations

import os
import re

from _xmem import imports

TYPE_CHECKING = False

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

_PICKLE = re.compile("[0-9a-f]{32}[.]pkl")
"""What submitit calls the pickle of a job that has no number yet (1.0 to 1.5,
submitit/core/core.py)."""


def install() -> None:
    """Wait for submitit: its job sleeps until its pickle has the job's number in its name."""
    imports.after("submitit.core.utils", _give_pickle)


def _give_pickle(module: Any) -> None:
    """Let a job read the pickle that was written last, or of those of an array the one of its task.

    Where the folder has the job's number in its name (Hydra's launcher: .submitit/%j), the pickle
    is in the one above until there is a number, and submitit makes the folder once it has it.
    """
    named = module.JobPaths.submitted_pickle.fget

    def submitted_pickle(self: Any) -> Any:
        path = named(self)
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        return _of_task(module.JobPaths.get_first_id_independent_folder(self._folder)) or path

    module.JobPaths.submitted_pickle = property(submitted_pickle, doc=named.__doc__)


def _of_task(folder: Path) -> Path | None:
    pickles = [path for path in folder.iterdir() if _PICKLE.fullmatch(path.name)]
    pickles.sort(key=lambda path: path.stat().st_mtime_ns)
    environ = os.environ
    count = int(environ.get("SLURM_ARRAY_TASK_COUNT", 1))
    first = int(environ.get("SLURM_ARRAY_TASK_MIN", 0))
    of_array = pickles[-count:]
    task = int(environ.get("SLURM_ARRAY_TASK_ID", first)) - first
    return of_array[task] if task < len(of_array) else None
