"""Which programs of this machine must a job not reach by their own path, and what of ours stands in
their place?

A script may call /usr/bin/srun, or begin PATH anew: the shims' folder on PATH does not help there.
"""

import os
import shutil
from pathlib import Path

from xmem_slurm.dryrun.containers import runtimes, shim
from xmem_slurm.dryrun.shims import commands, fetchers

_ALWAYS = ("/usr/local/bin", "/usr/bin", "/bin")
"""Where profiles and scripts that set PATH begin."""
_UNCOVERED = ("torchrun", "deepspeed", *fetchers.FETCHERS)
"""Their shims need the real one: which Python it belongs to, and to run it. They start nothing
outside the dry run."""
_OTHER_NAMES = ("orterun", "prterun")
"""What Open MPI's mpirun and mpiexec are links to."""


def covers(path: str, ours: Path) -> dict[Path, Path]:
    """Map each real program that a shim stands for, on `path` or in the usual folders, to its shim
    in `ours`.

    One of a container's runtimes is then to be found in the folder ASIDE beside `ours`, where its
    shim starts it. What Podman starts in turn is there, read-only. Symlinks are followed. What is a
    link to a program of another kind (a stub that is /bin/true, a wrapper for everything) is left
    alone: that program has other uses.
    """
    container_programs = (
        shutil.which(name, path=os.pathsep.join(_ALWAYS)) for name in runtimes.OF_IMAGES
    )
    replaced = {Path(runtime).resolve(): Path(runtime) for runtime in container_programs if runtime}
    for folder in dict.fromkeys([*path.split(os.pathsep), *_ALWAYS]):
        if not folder.startswith("/") or Path(folder) == ours:
            continue
        for name in commands.SHIMS:
            program = Path(folder, name)
            if name in _UNCOVERED or not os.access(program, os.X_OK):
                continue
            real = program.resolve()
            if real.is_file() and (real.name.startswith(name) or real.name in _OTHER_NAMES):
                replaced[real] = ours / name
                if name in commands.CONTAINERS:
                    aside = ours.parent / shim.ASIDE / name
                    aside.touch()
                    replaced[aside] = real
    return replaced
