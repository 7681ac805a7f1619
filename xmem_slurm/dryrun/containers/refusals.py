"""Why can a dry run not go into this container here, and what would help? Each a line; the first
one that holds.
"""

import errno
import os
import platform
import stat
from pathlib import Path

from xmem_slurm.dryrun.containers import command_line, images
from xmem_slurm.dryrun.containers.runtimes import Runtime
from xmem_slurm.sandbox import linux

FUSE = "/dev/fuse"


class CannotEnterError(Exception):
    """Why a dry run cannot go inside, and what would help: one line."""


def check_registry(name: str, runtime: Runtime, start: command_line.Start) -> None:
    """See that the image need not be fetched.

    Raises:
        CannotEnterError: it would have to be.
    """
    if command_line.from_registry(runtime, start.image):
        remedy = runtime.remedy.format(name=name)
        raise CannotEnterError(f"the image is in a registry, and there is no network: {remedy}")


def check(program: str, start: command_line.Start) -> None:
    """See that the container can be started here.

    Raises:
        CannotEnterError: it cannot.
    """
    image = Path(start.image)
    if Path(program).stat().st_mode & stat.S_ISUID:
        raise CannotEnterError(
            f"{program} is setuid, and a dry run gains no privileges; one without setuid can"
        )
    if os.getuid() == 0:
        raise CannotEnterError(
            "root gives up in a dry run what containers need: submit as an ordinary user"
        )
    check_namespaces()
    if image.is_file() and not os.access(FUSE, os.R_OK | os.W_OK):
        raise CannotEnterError(
            f"an image file needs {FUSE}, which this user cannot open here: an administrator would "
            "allow it"
            " (mode 0666), or the image can be unpacked to a folder"
        )
    machine = images.machine(image)
    if machine not in (None, platform.machine()):
        raise CannotEnterError(
            f"the image is for {machine}, and this machine is {platform.machine()}"
        )


def check_namespaces() -> None:
    """See that user namespaces can be made here, by making one.

    Raises:
        CannotEnterError: they cannot.
    """
    child = os.fork()
    if child == 0:
        try:
            linux.unshare(linux.CLONE_NEWUSER)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code in (errno.ENOSPC, errno.EUSERS):
        raise CannotEnterError(
            "user namespaces are nested too deep here, or there are too many: submit from outside "
            "of containers, or an"
            " administrator would raise user.max_user_namespaces"
        )
    if code == errno.EPERM:
        raise CannotEnterError(
            "the batch script itself does not name the runtime, so that the dry run has no user "
            "namespaces: name it"
            " there, if only in a comment"
        )
    if code:
        raise CannotEnterError(f"user namespaces are refused ({os.strerror(code)})")
