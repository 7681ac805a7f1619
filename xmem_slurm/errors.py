"""Every error that a user can meet.

XmemError                 anything of ours that a person is told in one line
├── UsageError            the command line or a file given to it is wrong (exit code 2)
├── SiteError             a site file or the GPU catalogue is wrong (exit code 2)
├── SlurmError            a Slurm command or client failed; carries what it said
├── DeviceBuildError      the stand-in CUDA libraries could not be built
├── SandboxError          this machine cannot throw away a dry run's writes
├── LabError              the throw-away Slurm cluster could not be started or stopped
├── SilentPlace           a file system that has to be read, such as a home, does not answer
├── Busy                  too many dry runs run already, and this one's turn did not come in time
├── Refused               the site wants no such job (sites that say so in their policy)
└── NoEstimate            the dry run gave nothing to estimate from (exit code 3)
    └── UnusedGpu         the job imports torch, and used no GPU memory

A message says what was wrong, where, and what to do, in one or two lines. `xsbatch` prints it on
stderr and still submits the job as written; the verbs of `xmem-slurm` print it and end with
`exit_code`.
"""

from collections.abc import Sequence
from typing import Any


class XmemError(Exception):
    """Base of the errors above. `exit_code` is the command's exit status when nothing catches
    it.
    """

    exit_code = 1


class UsageError(XmemError):
    """The command line, or a file that it names, is wrong."""

    exit_code = 2


class SiteError(XmemError):
    """A site file or the GPU catalogue is wrong; the message names file and key."""

    exit_code = 2


class SlurmError(XmemError):
    """A Slurm command failed; the message carries its own words."""


class DeviceBuildError(XmemError):
    """The stand-in CUDA libraries could not be built for a torch."""


class SandboxError(XmemError):
    """This machine gives no way to throw away what a dry run writes."""


class LabError(XmemError):
    """The throw-away Slurm cluster could not be started, stopped or used."""


class SilentPlace(XmemError):  # noqa: N818 - it reads as what it says
    """A file system that has to be read does not answer; nothing on it was touched."""


class Busy(XmemError):  # noqa: N818 - no error of anybody's
    """Other dry runs go first, and there is no more time to wait for them."""


class Refused(XmemError):  # noqa: N818 - no error of anybody's
    """The site's policy is that such a job is not submitted; the message says why, and how it is
    all the same.
    """


class NoEstimate(XmemError):  # noqa: N818 - it reads as what it says: no estimate
    """The dry run gave nothing to estimate from; the message says why.

    `files` is what the dry run read (each a `trace.File`), as far as it was seen; None where there
    was none. `on_any_gpu` is set where another kind of GPU would change nothing: the script stopped
    by itself. `fails` is set where it cannot run: it is not there or not right, imports what is not
    there, waits for input, or asks for a GPU beyond the job's, and would fail as a job, too. `busy`
    is set where this machine had no time for it: that is no fact about the job.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        files: Sequence[Any] | None = None,
        *,
        on_any_gpu: bool = False,
        fails: bool = False,
        busy: bool = False,
    ) -> None:
        super().__init__(message)
        self.files = files
        self.on_any_gpu = on_any_gpu
        self.fails = fails
        self.busy = busy


class UnusedGpu(NoEstimate):
    """The script ended as it should; torch was imported in it, and no GPU memory was used."""
