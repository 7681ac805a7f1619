"""Run by every Python of a dry run as it starts: wait for torch, then run the sitecustomize that was here before."""

import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Run the `sitecustomize` that Python would have found without this folder."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("XMEM_TRACE_DIR"):
    import _xmem_import

    _xmem_import.install()

_chain()
