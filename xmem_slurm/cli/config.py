"""`xmem-slurm config`: which settings hold, and where each is from."""

import os
from pathlib import Path
from typing import Annotated

import typer

from xmem_slurm.cli.arguments import tell
from xmem_slurm.errors import UsageError
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Wishes

_UNSET = {"budget": "60", "engine": "auto", "ranks": "automatic", "array-tasks": "automatic"}
"""What these are where they are not set; the budget is that of a sizing (`dryrun.budget`)."""
_BY_THE_SITE = ("policy", "record", "raise-mem")
"""What the site file says of where they are not set."""


def config(
    script: Annotated[str | None, typer.Argument(help="A job script, for its #XMEM lines.")] = None,
) -> None:
    """Show which settings apply, and where each is set: your file, a script, the environment."""
    try:
        text = None if script is None else Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"{script}: cannot be read: {error.strerror}") from error
    job = Submission(() if script is None else (script,), dict(os.environ), text)
    own_settings, complaints = settings.effective(job)
    for complaint in complaints:
        tell(complaint)
    names = [option.name.removeprefix("xmem-") for option in settings.OWN_OPTIONS]
    shown = [
        *settings.ANYWHERE,
        *(name for name in names if name in own_settings and name not in settings.ANYWHERE),
    ]
    rows = [(name, *_shown(name, own_settings.get(name))) for name in shown]
    width = max(12, *(len(value) for _, value, _ in rows))
    typer.echo("\n".join(f"{name:12} {value:{width}} {where}" for name, value, where in rows))
    typer.echo(f"your file is {settings.user_file()}", err=True)


def _shown(name: str, own: settings.OwnSetting | None) -> tuple[str, str]:
    """Say what applies, and where it is set."""
    if own is None:
        return _default(name)
    value = settings.values({name: own})[name.replace("-", "_")]
    return ("on" if value else "off") if isinstance(value, bool) else own.value, own.where


def _default(name: str) -> tuple[str, str]:
    """Say what applies where nobody set anything, and whose it is."""
    match getattr(Wishes(), name.replace("-", "_")):
        case bool() as is_on:
            return "on" if is_on else "off", "default"
        case float() | int() as number:
            return f"{number:g}", "default"
        case _ if name in _BY_THE_SITE:
            return "the site's", "not set here"
        case word:
            return word or _UNSET.get(name, "-"), "default"
