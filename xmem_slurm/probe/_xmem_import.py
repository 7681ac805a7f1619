"""An import hook that maps the stand-in CUDA libraries before torch loads, and starts the recorder after."""

import ctypes
import importlib.abc
import json
import os
import re
import subprocess
import sys

import _xmem_record

_CUDA_VERSION = re.compile(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", re.MULTILINE)
_TORCH_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


class _Loader(importlib.abc.Loader):
    """torch's own loader, with something done before and after. Everything else is asked of the original."""

    def __init__(self, spec):
        self._spec = spec
        self._loader = spec.loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        recorder = _xmem_record.Recorder(_map_stand_ins)
        recorder.before_torch(_torch_folder(self._spec))
        try:
            self._loader.exec_module(module)
            recorder.after_torch(module)
        except BaseException as error:
            recorder.torch_failed(error)
            raise


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch as the finders after it do. Being asked (importlib.util.find_spec) does not use it up."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch":
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find and finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec)
                return spec
        return None


def install():
    """Wait for `import torch` in this process."""
    sys.meta_path.insert(0, _Finder())


def torch_build(folder):
    """Return (torch version, CUDA version or None) of the torch in `folder`, without importing it."""
    with open(os.path.join(folder, "version.py"), encoding="utf-8") as file:
        text = file.read()
    version, cuda = _TORCH_VERSION.search(text), _CUDA_VERSION.search(text)
    return (version.group(1) if version else "unknown"), (cuda.group(1) if cuda else None)


def _torch_folder(spec):
    return next(iter(spec.submodule_search_locations or [os.path.dirname(spec.origin)]))


def _map_stand_ins(folder):
    """Map the stand-ins for the torch in `folder` under the names that it links to; return the CUDA runtime's.

    The dynamic loader never looks for a library whose SONAME is mapped already, so this wins over torch's RPATH, and
    the real libraries may lie beside it.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "LD_PRELOAD"}
    build = subprocess.run(
        [*json.loads(os.environ["XMEM_DEVICE_BUILD"]), folder],
        env=clean,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    if build.returncode:
        raise RuntimeError((build.stderr.strip() or "the stand-in CUDA libraries could not be built").splitlines()[-1])
    built = build.stdout.strip()
    names = sorted(os.listdir(built), key=lambda name: ("libcudart" not in name, name))
    libraries = [ctypes.CDLL(os.path.join(built, name), mode=ctypes.RTLD_GLOBAL) for name in names if ".so" in name]
    return libraries[0]
