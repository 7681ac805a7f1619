"""How is an image laid out with places in it to mount our folders on, for a runtime that makes
none?

In namespaces of the shim's own, and of the runtime that it becomes: the image below, a tmpfs above.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from xmem_slurm.dryrun.containers.refusals import FUSE, CannotEnterError
from xmem_slurm.dryrun.shims.workers import find
from xmem_slurm.sandbox import linux

_MOUNT_SECONDS = 20.0


def own_namespaces(*, as_root: bool = False) -> None:
    """Be in a user and a mount namespace of our own, as who we were, or as root there. Raises
    OSError.
    """
    user, group = os.getuid(), os.getgid()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS)
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"{0 if as_root else user} {user} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"{0 if as_root else group} {group} 1", encoding="utf-8")


def laid_over(image: Path, place: Path, folders: Sequence[str], environ: Mapping[str, str]) -> Path:
    """Lay an image out on `place` with a throw-away layer over it, in which the folders are there
    to mount on.

    In namespaces of our own; `environ` is for a program that serves it.

    Raises:
        CannotEnterError: it cannot be.
    """
    try:
        if not image.exists():
            raise CannotEnterError(f"there is no image {image} on this machine")
        image = image.resolve(strict=True)
        linux.mount("tmpfs", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
        lower, upper, work, root = (place / name for name in ("lower", "upper", "work", "root"))
        for path in (lower, upper, work, root):
            path.mkdir()
        if image.is_file():
            _mount_file(image, lower, environ)
        else:
            lower = image
        for folder in folders:
            (upper / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
        working_folder = Path.cwd()
        os.chdir(lower)  # as the new root of a dry run does: no path to quote in the options
        linux.mount(
            "overlay", root, "overlay", 0, f"lowerdir=.,upperdir={upper},workdir={work},userxattr"
        )
        os.chdir(working_folder)
    except OSError as error:
        raise CannotEnterError(
            f"the image cannot be laid out for it: {error.strerror or error}"
        ) from error
    return root


def _mount_file(image: Path, target: Path, environ: Mapping[str, str]) -> None:
    """Mount a squashfs, which squashfuse serves from now on.

    Raises:
        CannotEnterError: there is no squashfuse, or it cannot read the image.
    """
    program = find("squashfuse_ll") or find("squashfuse")
    if program is None:
        raise CannotEnterError(
            "an image file needs squashfuse, which is not installed here; a folder does not"
        )
    fuse = os.open(FUSE, os.O_RDWR)
    options = f"fd={fuse},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    linux.mount(
        image,
        target,
        "fuse.squashfuse",
        linux.MS_NOSUID | linux.MS_NODEV | linux.MS_RDONLY,
        options,
    )
    command = [program, "-f", str(image), f"/dev/fd/{fuse}"]
    serving = subprocess.Popen(command, pass_fds=[fuse], env=environ, cwd="/")
    os.close(fuse)
    end = time.monotonic() + _MOUNT_SECONDS
    while serving.poll() is None and time.monotonic() < end:
        if os.access(target / "bin", os.F_OK):
            return
        time.sleep(0.01)
    raise CannotEnterError("squashfuse cannot read the image")
