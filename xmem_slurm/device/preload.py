"""The library that leads every Python of a dry run to the probe, whatever a script makes of
PYTHONPATH.

One small file for LD_PRELOAD (`src/preload/preload.c`), built with gcc when first needed; it has no
part in torch.
"""

import hashlib
import platform
import tempfile
from pathlib import Path

from xmem_slurm.device import builder, generate
from xmem_slurm.errors import DeviceBuildError

_FLAGS = ("-std=c11", "-O1", "-fPIC", "-shared", "-w")
_QUOTELESS = (" ", ":")
"""What separates the names in LD_PRELOAD; there is no way to quote it (ld.so(8))."""


def build(cache: Path | None = None) -> Path:
    """Return the library, building it if there is none yet.

    Raises DeviceBuildError: no compiler, a compiler error, no room in the cache, a cache that
    LD_PRELOAD cannot name, or that others could have written to.
    """
    source = generate.SOURCES / "preload" / "preload.c"
    command = [*_FLAGS, str(source), *builder.ANY_C_LIBRARY]
    folder = cache if cache is not None else builder.cache_folder()
    identity = hashlib.sha256(
        repr((platform.machine(), command)).encode() + source.read_bytes()
    ).hexdigest()[:32]
    target = folder / f"preload-{identity}.so"
    if any(separator in str(target) for separator in _QUOTELESS):
        raise DeviceBuildError(
            f"LD_PRELOAD cannot name a library in {folder}: its path has a space or a colon"
        )
    try:
        builder.make_own(folder, target)
        if target.is_file():
            return target
        with tempfile.TemporaryDirectory(prefix=".preload.", dir=folder) as scratch:
            built = Path(scratch, target.name)
            compiler, _ = builder.find_compiler()
            builder.run([compiler, *command, "-o", str(built)], source.name, scratch)
            built.chmod(0o755)
            built.rename(target)  # whole or not at all; two at once give the same
    except OSError as error:
        raise DeviceBuildError(
            f"cannot write {target.name} to {folder}: {error.strerror}"
        ) from error
    return target
