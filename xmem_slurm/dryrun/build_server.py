"""Who builds the stand-ins for a torch that a dry run comes upon? A process next to xsbatch, asked
through a socket.

Inside a dry run nothing of ours can be written, and nothing from there is believed. Who asks
(`device/ask.py`) names a folder. What the torch in it needs is read by one more process, which has
first gone where the asker is, so that it sees what that one sees (an environment that the script
unpacked, a container) and can open no more than that one could; a damaged or endless file costs it
its life, and nobody else's. Only checked names come back from there (`device.needs`), and only C of
our own making is compiled (`device.builder`). No file of the torch is ever loaded or run out here.
"""

import json
import mmap
import os
import resource
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from pydantic import TypeAdapter

from xmem_slurm.descriptors import close_all_but
from xmem_slurm.device import builder, needs
from xmem_slurm.errors import DeviceBuildError, XmemError
from xmem_slurm.sandbox import linux, mounts
from xmem_slurm.units import GIB

SOCKET = "ask"
MOST_TORCHES = 8
"""In one dry run: each may cost a build, and place in the user's cache."""
PATIENCE_SECONDS = 5.0
"""How long one who connects has for his question."""
READ_SECONDS = 60
"""For one torch on a slow file system; usual are 0.3, CPU time that is."""
READ_BYTES = 2 * GIB
BUILD_SECONDS = 600.0
"""A build takes some 15 seconds of CPU time: this is for a busy machine, and for a compiler on a
file system that does not answer any more."""
_QUESTION_BYTES = 1 << 14
_ANSWER_BYTES = 1 << 22
"""What torch needs has 40,000."""
_NEEDS = TypeAdapter(needs.Needs)


class Building:
    """Whether stand-ins are just being built: a byte that the server has in common with who started
    it.
    """

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Meanwhile they are."""
        self._byte[0] = 1
        try:
            yield
        finally:
            self._byte[0] = 0

    @property
    def goes_on(self) -> bool:
        """Whether they are now."""
        return bool(self._byte[0])

    def waited_for(self, since: float) -> bool:
        """Wait until they are built; return whether they are, `BUILD_SECONDS` after that moment."""
        until = since + BUILD_SECONDS
        while self.goes_on and time.monotonic() < until:
            time.sleep(0.1)
        return not self.goes_on


@contextmanager
def serving(folder: Path) -> Iterator[Building]:
    """Answer whoever connects to the socket in `folder`, meanwhile. It forks, so it wants a process
    with one thread.
    """
    building = Building()
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as listening:
        try:
            # the path of a socket has 107 bytes at most
            listening.bind(f"/proc/self/fd/{place}/{SOCKET}")
        finally:
            os.close(place)
        listening.listen(64)
        server = _fork(lambda: _serve(listening, building))
    try:
        yield building
    finally:
        # its compilers are in its group; it may not have made one yet
        with suppress(ProcessLookupError):
            os.killpg(server, signal.SIGKILL)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def _fork(body: Callable[[], object]) -> int:
    """Run `body` in a child that dies with this process, whatever has become of its signals
    here.
    """
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    child = os.fork()
    if child == 0:
        try:
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() == parent:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                body()
        finally:
            os._exit(1)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return child


def _serve(listening: socket.socket, building: Building) -> NoReturn:
    """Be the server: answer one asker at a time, with nothing open but the socket, until killed."""
    os.setsid()
    os.nice(10)
    with suppress(OSError):
        linux.lower_session(os.getpid())
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # whoever reads our output does not wait for a compiler
        os.dup2(nothing, number)
    close_all_but(listening.fileno())
    answers: dict[tuple[str, ...], list[str]] = {}
    while True:
        connection, _ = listening.accept()
        with (
            connection,
            suppress(OSError, ValueError, RecursionError),
        ):  # who asked has gone, or talks nonsense
            connection.settimeout(PATIENCE_SECONDS)
            connection.sendall(json.dumps(_answer(connection, answers, building)).encode())


def _answer(
    connection: socket.socket, answers: dict[tuple[str, ...], list[str]], building: Building
) -> list[str]:
    """Return [folder, ""], or ["", why not]; the same where the same is asked again."""
    with connection.makefile("rb") as file:
        torch, cudnn = map(str, json.loads(file.readline(_QUESTION_BYTES)))
    if not (torch.startswith("/") and torch.isprintable()):
        raise ValueError(torch)
    asker = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    question = str(Path(f"/proc/{asker}/ns/mnt").readlink()), torch, cudnn
    if question not in answers:
        if len(answers) == MOST_TORCHES:
            return ["", f"stand-ins for more than {MOST_TORCHES} torches in one dry run"]
        try:
            with (
                _opened(f"/proc/{asker}/root", os.O_PATH) as root,
                _opened(f"/proc/{asker}/ns/user") as user,
            ):
                wanted = _read_there((root, user), Path(torch), Path(cudnn) if cudnn else None)
            with building.noted():
                answers[question] = [str(builder.make(wanted)), ""]
        except XmemError as error:
            answers[question] = ["", str(error)]
    return answers[question]


@contextmanager
def _opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_there(place: tuple[int, int], torch: Path, cudnn: Path | None) -> needs.Needs:
    """Read what a torch needs, as one at this place: its root folder and its user namespace."""
    receiving, sending = os.pipe()
    reader = _fork(lambda: _read(place, torch, cudnn, sending))
    os.close(sending)
    with os.fdopen(receiving, "rb") as file:
        text = file.read(_ANSWER_BYTES)
    os.kill(reader, signal.SIGKILL)
    os.waitpid(reader, 0)
    try:
        answer = json.loads(text)
        if "error" in answer:
            raise DeviceBuildError(str(answer["error"]))
        # another process than ours may have written it
        return _NEEDS.validate_python(answer["needs"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DeviceBuildError(f"torch in {torch}: its files could not be read") from error


def _read(place: tuple[int, int], torch: Path, cudnn: Path | None, sending: int) -> None:
    """Be the reader: go where the asker is, read what its torch needs, and send that, or why not,
    as JSON.
    """
    signal.alarm(READ_SECONDS)
    linux.lower_limit(resource.RLIMIT_AS, READ_BYTES)
    linux.lower_limit(resource.RLIMIT_CPU, READ_SECONDS)
    _enter(*place)
    answer: dict[str, Any]
    try:
        answer = {"needs": _NEEDS.dump_python(needs.read(torch.resolve(), cudnn), mode="json")}
    except DeviceBuildError as error:
        answer = {"error": str(error)}
    except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: a ring of symlinks
        answer = {"error": f"torch in {torch} cannot be read: {error}".removesuffix(": ")}
    with os.fdopen(sending, "wb") as file:
        file.write(json.dumps(answer).encode())


def _enter(root: int, user: int) -> None:
    """Make `root` this process's root folder: whoever has no privileges may in the user namespace
    of who asks.

    It has to be that one: a file system that is served there (an image by FUSE) is read from within
    alone.
    """
    if mounts.needs_user_namespace():
        linux.join(user)
    os.chdir(root)
    os.chroot(".")
