"""Which `enroot start` do srun's options of the pyxis plugin come to?

pyxis has Enroot unpack the image on the node, joins the container from within Slurm, and runs the task there with the
job's variables, without the image's entry point unless that is asked for. Here Enroot starts the file as it is, by its
entry point. Options of pyxis that stand in variables (PYXIS_CONTAINER_IMAGE) are not read.

Source: pyxis' args.c of 2025 (github.com/NVIDIA/pyxis, 0619349).
"""

import re
from collections.abc import Mapping, Sequence

from xmem_slurm.dryrun.containers.refusals import CannotEnterError
from xmem_slurm.slurm.options import NONE, REQUIRED, Option

_WITH_VALUE = ("image", "mounts", "workdir", "name", "save", "env")
_FLAGS = ("mount-home", "remap-root", "entrypoint", "writable", "readonly", "entrypoint-log")
OPTIONS = (
    *(Option(f"container-{name}", "", REQUIRED) for name in _WITH_VALUE),
    *(Option(f"{no}container-{name}", "", NONE) for name in _FLAGS for no in ("", "no-")),
)
_OF_IMAGES = re.compile(r"PATH|HOME|SHELL|PWD|LD_LIBRARY_PATH|PYTHONPATH|LD_PRELOAD|XMEM_.*|BASH_FUNC_.*|_|\w*[^\w].*")
"""Variables that an image sets itself, which then win, and those of the dry run, which go in anyway."""


def is_container(given: Mapping[str, str]) -> bool:
    """Whether a task with these options of srun runs in a container."""
    return bool(given.keys() & {"container-image", "container-name"})


def started(given: Mapping[str, str], command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the `enroot start` for a task with these options of srun.

    Raises:
        CannotEnterError: a registry alone has the image.
    """
    image = given.get("container-image") or f"pyxis_{given['container-name'].partition(':')[0]}"
    if "container-image" in given and not image.startswith((".", "/")):
        raise CannotEnterError(
            f"the image {image} is in a registry, and there is no network: `enroot import` it once, and name the file"
            " (--container-image=./FILE.sqsh)"
        )
    words = ["enroot", "start", "--rw"]
    words += ["--root"] if "no-container-remap-root" not in given else []
    for mount in filter(None, given.get("container-mounts", "").split(",")):
        source, _, rest = mount.partition(":")
        target, _, flags = rest.partition(":")
        options = ",".join(["x-create=auto", "rbind", *filter(None, flags.split("+"))])
        words += ["--mount", f"{source}:{target or source}:none:{options}"]
    wins = given.get("container-env", "").split(",")
    for name in environ:
        if name in wins or not _OF_IMAGES.fullmatch(name):
            words += ["--env", name]
    return [*words, image, *_in_folder(given.get("container-workdir"), command)]


def variables(given: Mapping[str, str]) -> dict[str, str]:
    """Return Enroot's settings for a task with these options."""
    found = {"ENROOT_LOGIN_SHELL": "no"}
    for option, value in {"container-mount-home": "yes", "no-container-mount-home": "no"}.items():
        if option in given:
            found["ENROOT_MOUNT_HOME"] = value
    return found


def _in_folder(folder: str | None, command: Sequence[str]) -> list[str]:
    """Return a command that runs in this folder of the container."""
    return [*command] if folder is None else ["sh", "-c", 'cd "$0" && exec "$@"', folder, *command]
