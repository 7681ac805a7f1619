"""Does a job run containers, and image files among them? By what its script, its arguments and its
variables name.

What the sandbox allows hangs on that alone (`sandbox.run`): namespaces of the job's own, and
/dev/fuse.
"""

import re
from collections.abc import Iterator

from xmem_slurm.dryrun.containers.runtimes import ROOT_ONLY, RUNTIMES, WRAPPERS
from xmem_slurm.dryrun.job import Job

_NAMES = "|".join((*RUNTIMES, *WRAPPERS, *ROOT_ONLY))
_RUNTIME = re.compile(
    rf"(?<![\w.-])({_NAMES})(?![\w.-])|--container[-=\s]|PYXIS_CONTAINER_".encode()
)
_BY_PATH = re.compile(rf"(?<![\w.$}}~-])(/[\w./-]*)/(?:{'|'.join(RUNTIMES)})(?![\w.-])".encode())
_IMAGE_FILE = re.compile(r"\.(sif|simg|img|sqsh|sqfs|squashfs)\b|(?<![\w.-])podman-hpc(?![\w.-])")
"""podman-hpc keeps its images as squashfs files."""


def runs_containers(job: Job) -> bool:
    """Whether it is a container, or the batch script names a runtime."""
    return bool(job.container) or _RUNTIME.search(job.script) is not None


def folders(job: Job) -> list[str]:
    """Return the folders from which the batch script starts a runtime by its path."""
    return [folder.decode() for folder in _BY_PATH.findall(job.script)]


def has_image_files(job: Job) -> bool:
    """Whether it runs containers, and an image file is named: there, behind it, or in a
    variable.
    """
    return runs_containers(job) and any(map(_IMAGE_FILE.search, _texts(job)))


def _texts(job: Job) -> Iterator[str]:
    yield job.script.decode(errors="replace")
    yield from job.arguments
    yield from job.container.values()
    yield from job.environ.values()
