"""Which engine watches this process: torch on stand-in CUDA libraries (device), or real steps on the CPU (profile)?"""

import _xmem_device
import _xmem_limits


def recorder(folder, environ):
    """Return the recorder that XMEM_ENGINE names for the torch in `folder`.

    `auto` takes the stand-ins, which are faster by far, unless this torch could not load them: it is no CUDA build.
    """
    _xmem_limits.watch(environ)
    engine = environ.get("XMEM_ENGINE", "auto")
    if engine == "auto":
        engine = "device" if _xmem_device.torch_build(folder)[1] else "profile"
    if engine == "profile":
        import _xmem_profile

        return _xmem_profile.Profiler(environ)
    import _xmem_record

    return _xmem_record.Recorder(environ)
