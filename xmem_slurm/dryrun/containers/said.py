"""What does it mean, and what helps, that a runtime says last of an image that lacks something?

Of each runtime the words with which it ends; Podman's are those of crun, which it passes on.
Sources: the strings of ch-run and crun, and enroot's and Apptainer's in their issues (NVIDIA/enroot
177, apptainer/apptainer 2003). Whatever is not known here is told as it was said.
"""

import re

_NO_PROGRAM = re.compile(
    r"""(?x)
    can't\ execve\(2\):\ (?P<charliecloud>.+?):\ No\ such\ file\ or\ directory
    | executable\ file\ `(?P<crun>.+?)`\ not\ found\ in\ \$PATH
    | "(?P<apptainer>.+?)":\ executable\ file\ not\ found\ in\ \$PATH  # runc's words, too
    | enroot-switchroot:\ failed\ to\ execute:\ (?P<enroot>.+?):\ No\ such\ file\ or\ directory
    | /\.singularity\.d/actions/\w+:\ \d+:\ exec:\ (?P<singularity>.+?):\ not\ found
    """
)
_NO_PLACE = re.compile(r"can't bind: destination not found: (\S+)")
"""Charliecloud mounts the user's own /etc/passwd, and what a job binds, on what is in the image."""


def in_our_words(last_words: str, container: str) -> str | None:
    """Return why a job cannot run in a container, by what was said last; None where that is not
    known. `container` is its runtime and its image.
    """
    lacking, remedy = "", ""
    if (program := _NO_PROGRAM.search(last_words)) is not None:
        lacking = f"no program {next(filter(None, program.groups()))}"
        remedy = "name one of the image's own by its path, or use an image that has it"
    elif (place := _NO_PLACE.search(last_words)) is not None:
        lacking = f"no {place[1]} to mount this machine's on"
        remedy = "make an empty one in the image (or leave that bind out)"
    if not container or not lacking:
        return None
    return (
        f"the script runs a container ({container}) whose image has {lacking}: the job would fail, "
        f"too; {remedy}"
    )
