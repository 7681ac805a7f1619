"""Which engine watches this process: torch on stand-in CUDA libraries (device), or real steps on
the CPU (profile)?
"""

from _xmem.process import stand_ins


def recorder(folder, environ, times):
    """Return the recorder that XMEM_ENGINE names for the torch in `folder`; `times` are what the
    script is told.

    `auto` takes the stand-ins, which are faster by far, unless this torch could not load them: it
    is no CUDA build.
    """
    engine = environ.get("XMEM_ENGINE", "auto")
    if engine == "auto":
        engine = "device" if stand_ins.torch_build(folder)[1] else "profile"
    if engine == "profile":
        from _xmem.cpu.profiler import Profiler

        return Profiler(environ, times)
    from _xmem.record.recorder import Recorder

    return Recorder(environ, times)
