"""Waits for `import torch` in this process: the stand-in CUDA libraries are mapped before it, the recorder goes around.

Every Python of a dry run imports this as it starts, so it imports next to nothing itself.
"""

import atexit
import os
import sys


class _Loader:
    """torch's own loader, with something done before and after. Everything else is asked of the original."""

    def __init__(self, finder, loader):
        self._finder = finder
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        folder = os.path.dirname(module.__spec__.origin)
        recorder = self._finder.recorder(folder)
        if recorder.knows_torch():  # importlib.reload
            self._loader.exec_module(module)
            return
        recorder.before_torch(folder)
        try:
            self._loader.exec_module(module)
            recorder.after_torch(module)
        except BaseException as error:
            recorder.torch_failed(error)
            raise


class _Finder:
    """Finds torch as the finders after it do. Being asked (importlib.util.find_spec) does not use it up.

    What it needs later it takes now: scripts change sys.path and the environment.
    """

    def __init__(self, folder):
        self._path = [folder, *sys.path]
        self._environ = {name: value for name, value in os.environ.items() if name.startswith("XMEM_")}
        self._recorder = None

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.origin and os.path.isfile(os.path.join(os.path.dirname(spec.origin), "version.py")):
                    spec.loader = _Loader(self, spec.loader)
                return spec
        return None

    def recorder(self, folder):
        """Return this process's recorder, made when the torch in `folder` is first imported."""
        if self._recorder is None:
            theirs, sys.path = sys.path, self._path
            try:
                import _xmem_engine

                self._recorder = _xmem_engine.recorder(folder, self._environ)
            finally:
                sys.path = theirs
        os.environ.update(self._environ)  # the stand-ins read it as they are mapped
        return self._recorder

    def at_exit(self):
        if self._recorder is not None:
            self._recorder.finish("exit")


def install(folder):
    """Wait for `import torch`; `folder` is this one. What is registered first at exit runs last, after the script's."""
    finder = _Finder(folder)
    sys.meta_path.insert(0, finder)
    atexit.register(finder.at_exit)
