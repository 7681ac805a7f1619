"""Run by every Python of a dry run as it starts: wait for torch, then run the sitecustomize that
was here before.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain() -> None:
    """Import the `sitecustomize` that Python would have found without this folder, which leaves
    sys.path for good.
    """
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


def _install() -> None:
    from _xmem import clients, imports
    from _xmem.process import files, network, times
    from _xmem.process.audit import Listener

    listener = Listener()
    files.install(os.environ["XMEM_TRACE_DIR"], listener)
    network.install(listener)
    imports.install(_HERE, listener, times.install(os.environ.get("XMEM_CLOCK") == "leaps"))
    clients.install()


if os.environ.get("XMEM_TRACE_DIR"):
    _install()

_chain()
