"""How does a verb that runs jobs dry know what its user wants? By options, as xsbatch does, and by
what else says it.
"""

from typing import Annotated, Any

import typer

from xmem_slurm.cli.arguments import tell
from xmem_slurm.dryrun import Engine
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Wishes

EngineName = Annotated[
    Engine | None,
    typer.Option(
        "--engine",
        "--xmem-engine",
        help="device: stand-in CUDA libraries; profile: real steps on the CPU.",
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option(
        "--ranks",
        "--xmem-ranks",
        help="Ranks to run in addition to rank 0: all, last, or a list (0,3).",
    ),
]
ArrayTasks = Annotated[
    str | None,
    typer.Option(
        "--array-tasks",
        "--xmem-array-tasks",
        help="Array tasks to run, instead of those chosen automatically: 1,5.",
    ),
]
Policy = Annotated[
    str | None,
    typer.Option(
        "--policy",
        "--xmem-policy",
        help="Which of the GPUs that fit: cost, memory (the smallest), or start (the earliest).",
    ),
]
Margin = Annotated[
    float | None,
    typer.Option(
        "--margin",
        "--xmem-margin",
        help="Percent of each GPU's memory to leave free, in addition to the margin.",
    ),
]


def wishes_of(job: Submission, **typed: Any) -> Wishes:
    """Return what holds for a job: the options that were `typed` (None: it was not), then
    variables, script and file.

    What makes no sense in one of the others is told, and is as if it were not set.

    Raises:
        UsageError: an option makes no sense.
    """
    chosen = {name: value for name, value in typed.items() if value is not None}
    for name, value in chosen.items():
        word = name.replace("_", "-")
        wrong = None
        if value is not True:
            wrong = settings.wrong_value(settings.BY_NAME[f"xmem-{word}"], str(value))
        if wrong is not None:
            raise UsageError(f"--{word} {value}: {wrong}")
    own_settings, complaints = settings.effective(job)
    for line in complaints:
        tell(line)
    anywhere = {
        name: setting for name, setting in own_settings.items() if name in settings.ANYWHERE
    }
    return Wishes()._replace(**{**settings.values(anywhere), **chosen})
