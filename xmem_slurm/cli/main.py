"""`xmem-slurm VERB`: everything except submitting. A verb is imported when it is run: nobody waits
for the others.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from xmem_slurm import __version__
from xmem_slurm.cli.arguments import AS_TYPED, tell
from xmem_slurm.errors import XmemError
from xmem_slurm.state import signals


class _Place(NamedTuple):
    """Where a verb is, as MODULE:NAME in this room, a function or verbs of its own; `help` is its
    first sentence.
    """

    place: str
    help: str
    as_typed: bool = False
    hidden: bool = False


VERBS: Mapping[str, _Place] = {
    "estimate": _Place(
        "estimate:estimate",
        "Estimate the GPU memory of a job script, a .py file or a command; no Slurm needed, "
        "nothing is submitted.",
        as_typed=True,
    ),
    "plan": _Place(
        "plan:plan",
        "Say how a job could be trained on this site's GPUs: ways that fit, each seen in a dry "
        "run.",
        as_typed=True,
    ),
    "explain": _Place(
        "explain:explain",
        "Show the last estimate again, in full and in any form; or what a job really used.",
    ),
    "compare": _Place(
        "compare:compare",
        "Compare two estimates: need, peak, categories, lines and modules, and where each fits.",
    ),
    "trust": _Place(
        "outcomes:trust",
        "Say how good the estimates of your recorded jobs were: how many fitted, and how close "
        "the estimates came.",
    ),
    "learn": _Place(
        "outcomes:learn",
        "Derive margins from what your recorded jobs really used; your next estimates use them.",
    ),
    "waste": _Place(
        "outcomes:waste",
        "Add up the GPU hours of your jobs: as requested, as allocated, and as would have been "
        "enough.",
    ),
    "generate": _Place(
        "generate:generate",
        "Write a batch script for a command on stdout, asking for the GPU that fits; nothing is "
        "submitted.",
        as_typed=True,
    ),
    "config": _Place(
        "config:config",
        "Show which settings apply, and where each is set: your file, a script, the environment.",
    ),
    "gpus": _Place(
        "gpus:gpus",
        "List the GPUs of the catalogue, and which of them the site has, and under what name.",
    ),
    "completion": _Place(
        "completion:completion",
        "Print the shell completion of xmem-slurm or xsbatch; an installed wheel already has it in "
        "share/.",
    ),
    "filter": _Place(
        "filter:filter_submission",
        "Answer Slurm's cli_filter hook: what to change in the job that this sbatch is submitting.",
        hidden=True,
    ),
    "lab": _Place(
        "lab:app", "A real throw-away Slurm cluster on this machine, its nodes as in a site file."
    ),
    "device": _Place("device:app", "The stand-in CUDA libraries that a dry run uses."),
    "site": _Place("site:app", "Site files: what this cluster offers."),
}


class _LazyVerb(TyperCommand):
    """A verb of the table: of itself it knows its name and what help says of it; `whole` is the
    verb.
    """

    def __init__(self, name: str, place: _Place) -> None:
        super().__init__(name, help=place.help, short_help=place.help, hidden=place.hidden)
        self.place = place

    def whole(self) -> Any:
        """Import the verb, and return it as typer has it."""
        module, _, name = self.place.place.partition(":")
        loaded: typer.Typer | Callable[..., None] = getattr(
            import_module(f"xmem_slurm.cli.{module}"), name
        )
        if not isinstance(loaded, typer.Typer):
            function, loaded = loaded, typer.Typer(add_completion=False, rich_markup_mode=None)
            loaded.command(
                hidden=self.hidden, context_settings=AS_TYPED if self.place.as_typed else None
            )(function)
        command = typer.main.get_command(loaded)
        command.name = self.name
        for inner in getattr(command, "commands", {}).values():  # else click cuts it off
            inner.short_help = inner.help.partition("\n\n")[0].replace("\n", " ")
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the verb's arguments; what is made of them runs the verb itself."""
        return self.whole().make_context(*args, **kwargs)


class _LazyVerbs(TyperGroup):
    """xmem-slurm with its verbs, none of them imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(
            **{
                **settings,
                "commands": {name: _LazyVerb(name, place) for name, place in VERBS.items()},
            }
        )


app = typer.Typer(
    cls=_LazyVerbs,
    help="Right-size the GPU request of Slurm jobs; `xsbatch` is the drop-in for sbatch.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    rich_markup_mode=None,  # rich cuts options and addresses off at 80 columns
    pretty_exceptions_enable=False,
    add_completion=False,
)

_Misused: Any = typer.BadParameter.__mro__[2]
"""Click's ClickException, of the copy that typer has: what a command line can have wrong."""
_NoArguments: Any = import_module(_Misused.__module__).NoArgsIsHelpError
"""What that raises where there is no argument: its message is the help."""


@app.callback(invoke_without_command=True)
def _top(
    version: Annotated[
        bool, typer.Option("--version", "-V", "-v", help="Show the version.")
    ] = False,
) -> None:
    if version:
        typer.echo(f"xmem-slurm {__version__}")
        raise typer.Exit


def whole() -> Any:
    """Return xmem-slurm with all of its verbs, imported, as its man page and its completions are
    made of it.
    """
    command: Any = typer.main.get_command(app)
    command.commands = {name: verb.whole() for name, verb in command.commands.items()}
    return command


def main() -> NoReturn:
    """Run the command line; an error is one message on stderr and its exit code, ours and typer's
    alike.
    """
    try:
        with signals.clearing_up():
            code = app(prog_name="xmem-slurm", standalone_mode=False)  # also as `python -m`
    except (XmemError, _Misused) as error:
        if isinstance(error, _NoArguments):
            typer.echo(error.format_message())
            raise SystemExit(error.exit_code) from None
        words = _words(error)
        if words:
            tell(words)
        raise SystemExit(error.exit_code) from None
    raise SystemExit(code if isinstance(code, int) else 0)


def _words(error: Any) -> str:
    """Return what was wrong, as ours say it; of what typer found also where more is said. Nothing:
    help was shown.
    """
    if isinstance(error, XmemError):
        return str(error)
    # What typer checks by pydantic has that one's mark before it.
    message = error.format_message().rstrip(".").replace("Value error, ", "")
    if not message or message.endswith("?"):
        return f"{message[:1].lower()}{message[1:]}"
    context = getattr(error, "ctx", None)
    named = ["xmem-slurm", *(word for word in sys.argv[1:2] if word in VERBS)]
    verb = context.command_path if context is not None else " ".join(named)
    return f"{message[:1].lower()}{message[1:]}; `{verb} --help` says more"
