"""A Python of the job's that has imported torch on the stand-ins, and forks for each script that is
to be run.

Run by the job's Python as `warm_server.py SOCKET OWNER`; it ends with the process OWNER.
`warm_python` is who asks.

Nothing of the probe is here: the child starts it as a Python that starts does (sitecustomize). What
it finds warm is the interpreter and torch, which stays out of sight until the script imports it.
Then the probe goes around that import as around any other; only that torch's modules are not
executed again. CUDA was not touched before.

Python 3.9 and the standard library, as in the probe.
"""

import atexit
import contextlib
import copy
import ctypes
import importlib
import importlib.util
import json
import os
import runpy
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from importlib.machinery import PathFinder, SourceFileLoader

IMPORTED = ("torch", "torch._dynamo")
"""The second is what torch imports itself as the first optimizer is made."""
TICK = "XMEM_TEST_TICK"
BUILT = []
"""The folder of the stand-ins, once they are mapped."""
OUT_OF_SIGHT = ("torch", "torchgen", "functorch", "triton")


class Ticks:
    """In place of the clock by which the probe judges a run: each look of the main thread at it
    takes so many seconds.

    It looks at each batch and each step, so a script comes equally far on every machine.
    """

    def __init__(self, seconds):
        self._seconds, self._now = seconds, time.monotonic()

    def __call__(self):
        if threading.current_thread() is threading.main_thread():
            self._now += self._seconds
        return self._now


class WarmTorch:
    """Finds the torch that was imported before, and gives back all that came with it: a finder and
    a loader."""

    def __init__(self, modules, at_exit):
        self._modules, self._at_exit = modules, at_exit
        self._torch = modules["torch"]
        self._spec = self._torch.__spec__

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torch" or not self._modules or not self._would_be_found():
            return None
        spec = copy.copy(self._spec)
        spec.loader = self
        return spec

    def _would_be_found(self):
        """Whether this is the torch that the script would import, and nothing of it was tampered
        with before."""
        found = PathFinder.find_spec("torch")
        return (
            found is not None
            and found.origin == self._spec.origin
            and sys.modules.keys().isdisjoint(self._modules)
        )

    def create_module(self, spec):
        return self._torch

    def exec_module(self, module):
        module.__spec__, module.__loader__ = self._spec, self._spec.loader
        modules, self._modules = self._modules, {}
        sys.modules.update(modules)
        for function, args, kwargs in self._at_exit:
            atexit.register(function, *args, **kwargs)
        if TICK in os.environ:
            sys.modules["_xmem.process.clock"].Clock.now = Ticks(float(os.environ[TICK]))


def warm_torch():
    """Import torch on the stand-ins, and put it out of sight."""
    at_exit, register = [], atexit.register
    atexit.register = lambda function, *args, **kwargs: (
        at_exit.append((function, args, kwargs)) or function
    )
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    build = [*json.loads(os.environ["XMEM_DEVICE_BUILD"]), folder]
    built = subprocess.run(build, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    BUILT.append(built)
    # as the probe does it
    for name in sorted(os.listdir(built), key=lambda name: ("libcudart" not in name, name)):
        if ".so" in name:
            ctypes.CDLL(os.path.join(built, name), mode=ctypes.RTLD_GLOBAL)
    for name in IMPORTED:
        importlib.import_module(name)
    atexit.register = register
    names = [name for name in sys.modules if name.partition(".")[0] in OUT_OF_SIGHT]
    return WarmTorch({name: sys.modules.pop(name) for name in names}, at_exit)


class Server:
    """Forks for each connection. A child whose connection is closed is killed."""

    def __init__(self, listener, owner):
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._selector.register(
            os.pidfd_open(owner), selectors.EVENT_READ, lambda _owner: os._exit(0)
        )

    def serve(self):
        """Return (request, descriptors of its stdin, stdout, stderr) in a child; never in the
        server."""
        while True:
            for key, _ in self._selector.select():
                request = key.data(key.fileobj)
                if request is not None:
                    return request

    def _accept(self, listener):
        connection, _ = listener.accept()
        text, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        while not text.endswith(b"\n"):
            text += connection.recv(1 << 16)
        child = os.fork()
        if child == 0:
            self._leave(connection, listener)
            return json.loads(text), descriptors
        for each in descriptors:
            os.close(each)
        connection.sendall(b"%d\n" % child)
        ended = os.pidfd_open(child)
        self._selector.register(
            connection, selectors.EVENT_READ, lambda _: self._gone(connection, child)
        )
        self._selector.register(
            ended, selectors.EVENT_READ, lambda _: self._ended(connection, child, ended)
        )
        return None

    def _leave(self, connection, listener):
        """Close in a child what is the server's: collected later, it would take the number of a
        file of the script."""
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket) and key.fileobj is not listener:
                key.fileobj.close()
        connection.close()
        self._selector.close()

    def _gone(self, connection, child):
        self._selector.unregister(connection)
        os.kill(child, signal.SIGKILL)

    def _ended(self, connection, child, ended):
        self._selector.unregister(ended)
        os.close(ended)
        status = os.waitpid(child, 0)[1]
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
            connection.sendall(b"%d\n" % status)
        connection.close()


def become(request, descriptors, kept):
    """Be a Python that starts as `request` says: its environment, folder, arguments and files, and
    sitecustomize."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and name not in kept:
            with contextlib.suppress(OSError):  # that of the listing
                os.close(int(name))
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["environ"])
    ctypes.CDLL(None).xmem_configure()  # what the stand-ins read as they were loaded
    # those that are mapped, not a second copy, which would see nothing
    if "XMEM_DEVICE_BUILD" in os.environ:
        os.environ["XMEM_DEVICE_BUILD"] = json.dumps(["sh", "-c", "echo " + shlex.quote(BUILT[0])])
    os.chdir(request["cwd"])
    sys.orig_argv = [sys.executable, *request["argv"]]
    sys.path[:0] = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401


def run(argv):
    """Run what the arguments of a Python name, in `__main__`."""
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__
    sys.modules["__main__"] = main
    if argv[0] == "-m":
        sys.argv[:] = ["-m", *argv[2:]]
        sys.path.insert(0, os.getcwd())
        runpy._run_module_as_main(argv[1])
    elif argv[0] == "-c":
        sys.argv[:] = ["-c", *argv[2:]]
        sys.path.insert(0, "")
        exec(compile(argv[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = argv
        sys.path.insert(0, os.path.dirname(os.path.realpath(argv[0])))
        main.__file__, main.__cached__ = argv[0], None
        main.__loader__ = SourceFileLoader("__main__", argv[0])
        with open(argv[0], "rb") as file:
            code = compile(file.read(), os.path.abspath(argv[0]), "exec")
        exec(code, main.__dict__)


def ended(argv):
    """Run it to its end, as the interpreter does; return the exit status."""
    try:
        run(argv)
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        tracebacks = error.__traceback__.tb_next.tb_next  # without `ended` and `run`
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tracebacks
        sys.excepthook(type(error), error.with_traceback(tracebacks), tracebacks)
        return 1


def main():
    socket_path, owner = sys.argv[1:]
    sys.path.pop(0)  # this file's folder
    leave = os._exit
    torch = warm_torch()
    kept = set(os.listdir("/proc/self/fd"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_path + ".new")
        listener.listen(64)
        os.rename(socket_path + ".new", socket_path)
        request, descriptors = Server(listener, int(owner)).serve()
        listener.detach()
    become(request, descriptors, kept)
    sys.meta_path.insert(1, torch)
    status = ended(request["argv"])
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    leave(status & 0xFF)


if __name__ == "__main__":
    main()
