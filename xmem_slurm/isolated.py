"""How is another Python of ours started, with none of the user's PYTHON* variables, that finds what
this one has found?

One that is isolated looks where it itself is installed, and this package may lie elsewhere (`pip
install --prefix`).
"""

import subprocess
import sys
from functools import cache
from pathlib import Path


def command(code: str) -> list[str]:
    """Return the words that run a line of code; it imports what it needs of ours."""
    places = _places()
    return [
        sys.executable,
        "-I",
        "-c",
        f"import sys; sys.path[:] = {places!r}; {code}" if places else code,
    ]


@cache
def _places() -> list[str]:
    """Return where this process looks for modules, if another one would not find this very package
    by itself.
    """
    look = "import xmem_slurm; print(xmem_slurm.__file__)"
    completed = subprocess.run(
        [sys.executable, "-I", "-c", look], cwd="/", capture_output=True, text=True, check=False
    )
    if completed.stdout.strip() == str(Path(__file__).with_name("__init__.py")):
        return []
    return [entry for entry in sys.path if entry.startswith("/")]
