"""Waits for `import torch` in this process: the stand-in CUDA libraries are mapped before it, the
recorder goes around.

Other modules can be waited for as well. Every Python of a dry run imports this as it starts, so it
imports next to nothing itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    from _xmem.annotations import Watcher
    from _xmem.process.audit import Listener
    from _xmem.process.times import Times

LACKING = "lacking"
"""The file that names the Python whose script ended for want of a module, with no torch yet."""


class _Loader:
    """A module's own loader, with something done around it. Everything else is asked of the
    original.
    """

    def __init__(
        self, around: Callable[[ModuleType, Callable[[ModuleType], None]], None], loader: Any
    ) -> None:
        self._around = around
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._around(module, self._loader.exec_module)


class _Finder:
    """Finds torch as the finders after it do. Being asked (importlib.util.find_spec) does not use
    it up.

    What it needs later it takes now: scripts change sys.path and the environment.
    """

    def __init__(self, folder: str, times: Times) -> None:
        self._path, self._times = [folder, *sys.path], times
        self._environ = {
            name: value for name, value in os.environ.items() if name.startswith("XMEM_")
        }
        self._recorder: Watcher | None = None
        # (thread, module) that the other finders are being asked for
        self._in_progress: set[tuple[int, str]] = set()
        self._around: dict[str, Callable[[ModuleType, Callable[[ModuleType], None]], None]] = {
            "torch": self._around_torch
        }  # by a module's name: what is called with it and what executes it
        # by a module's name: what is called with it once it is there
        self._after: dict[str, list[Callable[[ModuleType], None]]] = {}

    def importing(self, name: str, *_rest: Any) -> None:
        """Stay the first finder: others that came later (comet_ml) may not ask those after them."""
        if self._recorder is not None:
            package = name.partition(".")[0]
            if package.isascii() and package not in getattr(sys, "stdlib_module_names", ()):  # 3.10
                self._recorder.says("importing " + package[:40])
        if name in self._around and sys.meta_path[:1] != [self]:
            sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        request = threading.get_ident(), fullname
        if fullname not in self._around or request in self._in_progress:
            return None
        self._in_progress.add(request)  # one of the others may ask us in turn
        try:
            finders = [
                finder
                for finder in sys.meta_path
                if finder is not self and hasattr(finder, "find_spec")
            ]
            spec: Any = next(
                filter(None, (finder.find_spec(fullname, path, target) for finder in finders)), None
            )
        finally:
            self._in_progress.discard(request)
        if spec is not None and (fullname != "torch" or _is_torch(spec.origin)):
            spec.loader = _Loader(self._around[fullname], spec.loader)
        return spec

    def _around_torch(self, module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        """Have the recorder watch the import, unless it is one more of a module that it knows."""
        spec: Any = module.__spec__
        folder = os.path.dirname(spec.origin)
        recorder = self.recorder(folder)
        if recorder.knows_torch():  # importlib.reload
            execute(module)
            return
        recorder.says("importing torch")
        recorder.before_torch(folder)
        try:
            execute(module)
            recorder.after_torch(module)
        except BaseException as error:
            recorder.torch_failed(error)
            raise

    def recorder(self, folder: str) -> Watcher:
        """Return this process's recorder, made when the torch in `folder` is first imported."""
        if self._recorder is None:
            theirs, sys.path = sys.path, self._path
            try:
                from _xmem import start

                self._recorder = start.recorder(folder, self._environ, self._times)
            finally:
                sys.path = theirs
        os.environ.update(self._environ)  # the stand-ins read it as they are mapped
        return self._recorder

    def after(self, name: str, act: Callable[[ModuleType], None]) -> None:
        """Call `act` with the module `name` once it has been imported."""
        self._around.setdefault(name, self._around_other)
        self._after.setdefault(name, []).append(act)

    def _around_other(self, module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
        execute(module)
        for act in self._after[module.__name__]:
            act(module)

    def at_exit(self) -> None:
        if self._recorder is not None:
            self._recorder.finish("exit")
        elif isinstance(getattr(sys, "last_value", None), ModuleNotFoundError):
            self._note_python()

    def _note_python(self) -> None:
        """Say which Python lacked a module: without torch there is no trace. The first does."""
        with contextlib.suppress(OSError, KeyError):
            path = os.path.join(self._environ["XMEM_TRACE_DIR"], LACKING)
            with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
                file.write(sys.executable or "")


def _is_torch(origin: str | None) -> bool:
    if not origin:
        return False
    return os.path.isfile(os.path.join(os.path.dirname(origin), "version.py"))


_finders: list[_Finder] = []


def install(folder: str, audit: Listener, times: Times) -> None:
    """Wait for `import torch`; `folder` is this one, `times` are what the script is told of the
    time.

    What is registered first at exit runs last, after the script's.
    """
    finder = _Finder(folder, times)
    _finders.append(finder)
    sys.meta_path.insert(0, finder)
    audit.take(("import",), finder.importing)
    atexit.register(finder.at_exit)


class _Begun(type(sys.__spec__)):  # type: ignore[misc] # ModuleSpec, which is not imported for it
    """The spec of a module that is being executed: importlib notes in it when that has ended.

    A module that imports torch itself is there before its own names are.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "_initializing" and not value:
            module, waiting = sys.modules.get(self.name), self.waiting
            del self.waiting
            plain: Any = type(sys.__spec__)
            self.__class__ = plain
            for act in waiting if module is not None else ():  # it may have failed
                act(module)


def after(name: str, act: Callable[[ModuleType], None]) -> None:
    """Call `act` with the module `name`: now if it is there, else once it has been imported."""
    module = sys.modules.get(name)
    spec: Any = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):
        if type(spec) is not _Begun:
            spec.waiting = []
            spec.__class__ = _Begun
        spec.waiting.append(act)
    elif module is not None:
        act(module)
    for finder in _finders:
        finder.after(name, act)
