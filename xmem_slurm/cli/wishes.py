"""How does a verb that runs jobs dry know what its user wants? By options, as xsbatch does, and by
what else says it.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from xmem_slurm.cli.arguments import tell
from xmem_slurm.dryrun import Engine
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Wishes


def own_option(name: str, *names: str, **more: Any) -> Any:
    """Return the option of a verb that is xsbatch's own `name`, under both its names; its help is
    that of the table.
    """
    option = settings.BY_NAME[name]
    more.setdefault("help", f"{option.help[:1].upper()}{option.help[1:]}.")
    return typer.Option(f"--{name.removeprefix('xmem-')}", f"--{name}", *names, **more)


EngineName = Annotated[Engine | None, own_option("xmem-engine")]
Ranks = Annotated[str | None, own_option("xmem-ranks")]
ArrayTasks = Annotated[str | None, own_option("xmem-array-tasks")]
Policy = Annotated[str | None, own_option("xmem-policy")]
Margin = Annotated[float | None, own_option("xmem-margin")]
Seconds = Annotated[float | None, own_option("xmem-budget")]
Verbose = Annotated[bool, own_option("xmem-verbose", "-v")]
Fresh = Annotated[bool, own_option("xmem-fresh", envvar="XMEM_FRESH")]
ReportFile = Annotated[Path | None, own_option("xmem-report")]
HtmlFile = Annotated[Path | None, own_option("xmem-html")]


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
