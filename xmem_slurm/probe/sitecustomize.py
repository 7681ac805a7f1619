"""Run by every Python of a dry run as it starts: wait for torch, then run the sitecustomize that was here before."""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Import the `sitecustomize` that Python would have found without this folder, which leaves sys.path for good."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = ours


if os.environ.get("XMEM_TRACE_DIR"):
    from _xmem import clients, imports
    from _xmem.process import files, network

    files.install(os.environ["XMEM_TRACE_DIR"])
    network.install()
    imports.install(_HERE)
    clients.install()

_chain()
