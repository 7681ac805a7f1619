"""Which engine watches this process: torch on stand-in CUDA libraries (device), or real steps on
the CPU (profile)?
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from _xmem.process import stand_ins

if TYPE_CHECKING:
    from _xmem.annotations import Environ, Watcher
    from _xmem.process.times import Times


def recorder(folder: str, environ: Environ, times: Times) -> Watcher:
    """Return the recorder that XMEM_ENGINE names for the torch in `folder`; `times` are what the
    script is told.

    `auto` takes the stand-ins, which are faster by far, unless this torch could not load them: it
    is no CUDA build.
    """
    engine = environ.get("XMEM_ENGINE", "auto")
    if engine == "auto":
        engine = "device" if stand_ins.torch_build(folder).cuda else "profile"
    if engine == "profile":
        from _xmem.cpu.profiler import Profiler

        return Profiler(environ, times)
    from _xmem.record.recorder import Recorder

    return Recorder(environ, times)
