"""Which `enroot start` do options of the pyxis plugin come to, srun's for a task and sbatch's for
the batch script?

pyxis has Enroot unpack the image on the node, joins the container from within Slurm, and runs the
task there with the job's variables, without the image's entry point unless that is asked for. Here
Enroot starts the file as it is, by its entry point. With sbatch's options it is the batch script
that runs so (pyxis_slurmstepd.c, SLURM_BATCH_SCRIPT). What is not given may stand in PYXIS_*
variables (since pyxis 0.21).

Source: pyxis' args.c of 2025 (github.com/NVIDIA/pyxis, 0619349).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xmem_slurm.slurm.options import NONE, REQUIRED, Option

if TYPE_CHECKING:
    from xmem_slurm.slurm.submission import Submission

_WITH_VALUE = ("image", "mounts", "workdir", "name", "save", "env", "unshare")
_FLAGS = ("mount-home", "remap-root", "entrypoint", "writable", "readonly", "entrypoint-log")
OPTIONS = (
    *(Option(f"container-{name}", "", REQUIRED) for name in _WITH_VALUE),
    *(Option(f"{no}container-{name}", "", NONE) for name in _FLAGS for no in ("", "no-")),
)
_SAID = {
    **dict.fromkeys(("1", "true", "yes", "y"), ""),
    **dict.fromkeys(("0", "false", "no", "n"), "no-"),
}
"""What a variable says of a flag (config.c, parse_bool), and how the option for that begins."""
_OF_IMAGES = re.compile(
    r"PATH|HOME|SHELL|PWD|LD_LIBRARY_PATH|PYTHONPATH|LD_PRELOAD|XMEM_.*|PYXIS_.*|BASH_FUNC_.*|_|\w*[^\w].*"
)
"""Variables that an image sets itself, which then win, those of the dry run, which go in anyway,
and pyxis' own, which would ask for a container in the container."""


def of_batch_script(job: Submission) -> dict[str, str]:
    """Return the options with which a submission has its batch script run in a container; none
    where it does not.

    Raises:
        ScriptError: sbatch refuses the script's #SBATCH lines.
    """
    if b"container-" not in (job.script or b"") and not any(
        "container-" in word for word in job.argv
    ):
        return container_options({}, job.environ)  # the script is not read once more
    plugin_names = {plugin.name for plugin in job.plugins}
    read = job.but(
        plugins=(*job.plugins, *(option for option in OPTIONS if option.name not in plugin_names))
    )
    of_script = read.parsed_script.components[0].directives if read.parsed_script else ()
    occurrences = [
        *(directive.occurrence for directive in of_script),
        *read.command_line.components[0],
    ]
    ours = {option.name for option in OPTIONS}
    return container_options(
        {
            occurrence.name: occurrence.value or ""
            for occurrence in occurrences
            if occurrence.name in ours
        },
        job.environ,
    )


def container_options(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a container, those in variables among them; none where no container is
    asked for.
    """
    merged = dict(options)
    for option in OPTIONS:
        value = environ.get("PYXIS_" + option.name.upper().replace("-", "_"))
        if value is None or {option.name, f"no-{option.name}"} & options.keys():
            continue
        if option.arity == REQUIRED:
            merged[option.name] = value
        elif value in _SAID:
            merged[_SAID[value] + option.name] = ""
    return merged if is_container(merged) else {}


def is_container(options: Mapping[str, str]) -> bool:
    """Whether a task with these options runs in a container."""
    return bool(options.keys() & {"container-image", "container-name"})


def started(
    options: Mapping[str, str], command: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
    """Return the `enroot start` for a task with these options."""
    image = options.get("container-image") or f"pyxis_{options['container-name'].partition(':')[0]}"
    if "container-image" in options and not image.startswith((".", "/")):
        image = f"docker://{image.removeprefix('docker://')}"
    words = ["enroot", "start", "--rw"]
    words += ["--root"] if "no-container-remap-root" not in options else []
    for mount in filter(None, options.get("container-mounts", "").split(",")):
        source, _, target_and_flags = mount.partition(":")
        target, _, flags = target_and_flags.partition(":")
        mount_options = ",".join(["x-create=auto", "rbind", *filter(None, flags.split("+"))])
        words += ["--mount", f"{source}:{target or source}:none:{mount_options}"]
    wins = options.get("container-env", "").split(",")
    for name in environ:
        if name in wins or not _OF_IMAGES.fullmatch(name):
            words += ["--env", name]
    return [*words, image, *_in_folder(options.get("container-workdir"), command)]


def variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return Enroot's settings for a task with these options; none where it runs in no
    container.
    """
    if not is_container(options):
        return {}
    settings = {"ENROOT_LOGIN_SHELL": "no"}
    for option, value in {"container-mount-home": "yes", "no-container-mount-home": "no"}.items():
        if option in options:
            settings["ENROOT_MOUNT_HOME"] = value
    return settings


def _in_folder(folder: str | None, command: Sequence[str]) -> list[str]:
    """Return a command that runs in this folder of the container."""
    return [*command] if folder is None else ["sh", "-c", 'cd "$0" && exec "$@"', folder, *command]
