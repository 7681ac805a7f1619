"""A file system that never answers: a FUSE mount of which every request is read, and none replied
to but the first.

So does a mount whose server is gone. It is mounted in a namespace of its own: only who is brought
there sees it. Whoever touches it waits in the kernel, and no signal ends that, as the request is
with the server already (fuse(4), fs/fuse/dev.c: request_wait_answer). When the server here ends,
all get an error."""

import ctypes
import os
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HEADER = struct.Struct("IIQQIIII")
_INIT_REPLY = struct.Struct("IiQ IIII HH II HH 8I")
_VERSION = (7, 31)
_CLONE_NEWNS = 0x20000
_PRIVATE = 1 << 18 | 1 << 14  # MS_PRIVATE | MS_REC


@contextmanager
def hung(folder: Path) -> Iterator[list[str]]:
    """Let nothing below this folder answer; only root can.

    Yields the words with which a command is started that sees it, in the folder above.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    ready, told = os.pipe()
    server = os.fork()
    if server == 0:
        try:
            libc.unshare(_CLONE_NEWNS)
            libc.mount(b"none", b"/", None, _PRIVATE, None)
            device = os.open("/dev/fuse", os.O_RDWR)
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
            if libc.mount(b"hung", os.fsencode(folder), b"fuse", 0, options.encode()) == 0:
                _serve(device, told)
        finally:
            os._exit(1)
    os.close(told)
    try:
        assert os.read(ready, 1), "no FUSE here"
        yield ["nsenter", f"--mount=/proc/{server}/ns/mnt", "env", f"--chdir={folder.parent}"]
    finally:
        os.close(ready)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


def _serve(device: int, told: int) -> None:
    request = os.read(device, 1 << 17)
    unique = _HEADER.unpack_from(request)[2]
    reply = (_INIT_REPLY.size, 0, unique, *_VERSION, 0, 0, 0, 0, 1 << 16, 1, 0, 0, *[0] * 8)
    os.write(device, _INIT_REPLY.pack(*reply))
    os.write(told, b"!")
    while True:
        os.read(device, 1 << 17)
