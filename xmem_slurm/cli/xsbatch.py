"""`xsbatch`: takes sbatch's command line, keeps its own options to itself, and hands the rest on."""

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from xmem_slurm import __version__, handover
from xmem_slurm.errors import UsageError, XmemError
from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.edit import without
from xmem_slurm.slurm.options import NONE, REQUIRED, Option
from xmem_slurm.submit import ENGINES, Wishes, submit


class OwnOption(NamedTuple):
    """An option of xsbatch itself: `value` is what its value is called, or "" for a flag. XMEM_… sets it, too."""

    name: str
    value: str
    help: str

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return self.name.upper().replace("-", "_")


OWN_OPTIONS = (
    OwnOption("xmem-dry-run", "", "print the script that would be submitted; submit nothing"),
    OwnOption("xmem-off", "", "submit as written, without a look at it"),
    OwnOption("xmem-keep-type", "", "do not change a GPU type that the request names"),
    OwnOption("xmem-fresh", "", "run dry even if nothing has changed since the last time"),
    OwnOption("xmem-policy", "order", "which GPU that fits: the least cost, the least memory, or the first to start"),
    OwnOption("xmem-budget", "seconds", "what the dry runs may take (60)"),
    OwnOption("xmem-engine", "name", "how it is run dry: device (stand-ins), profile (real steps on the CPU), auto"),
    OwnOption("xmem-site", "file", "the site file; else /etc/xmem-slurm/site.toml, ~/.config/xmem-slurm/site.toml"),
    OwnOption(
        "xmem-report", "file", "write a report: .html, .pickle (torch's snapshot), .trace.json (Perfetto), else JSON"
    ),
)
_ORDERS = ("cost", "memory", "start")
"""What --xmem-policy takes; a site file's `policy.order` is one of these, too (`site.schema.Order`)."""

SUMMARY = "sbatch that asks for the GPU that the job needs"

_FLAGS = tuple(option.name for option in OWN_OPTIONS if not option.value)
_VALUES = tuple(option.name for option in OWN_OPTIONS if option.value)
_OPTIONS = [Option(option.name, "", REQUIRED if option.value else NONE) for option in OWN_OPTIONS]

_VERSION = f"xsbatch {__version__}\n"

_ANSWERED_AT_ONCE = ("autocomplete", "help", "usage", "version")
"""sbatch answers these without a look at a script."""


def main() -> NoReturn:
    """Run xsbatch on this process's command line and environment; ends as sbatch."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # with nothing to clear away yet, it ends us as it ends sbatch
    environ = handover.environment()
    try:
        argv, wishes = parse(sys.argv[1:], environ)
        command_line = split_command_line(argv)
        if any(command_line.has(name) for name in _ANSWERED_AT_ONCE):
            if not command_line.has("autocomplete"):
                print(_VERSION if command_line.has("version") else _help(), end="", flush=True)  # noqa: T201
            wishes = wishes._replace(off=True, dry_run=False)
        submit(argv, environ, wishes)
    except XmemError as error:
        if sys.stderr is not None:
            print(f"xsbatch: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(error.exit_code) from None


def _help() -> str:
    words = [f"--{option.name}" + (f"={option.value}" if option.value else "") for option in OWN_OPTIONS]
    lines = [f"      {word:22}  {option.help}" for word, option in zip(words, OWN_OPTIONS, strict=True)]
    return "\n".join(
        [
            f"xsbatch: {SUMMARY}. Takes every sbatch option, and:",
            *lines,
            'Each has a variable: XMEM_OFF=1, XMEM_BUDGET=30, and so on. In a script: "#XMEM off", "#XMEM keep-type".',
            "\n",
        ]
    )


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[tuple[str, ...], Wishes]:
    """Return sbatch's part of the command line, and what is asked of xsbatch itself.

    Raises:
        UsageError: an --xmem option that does not exist, or a value that is none.
    """
    command_line = split_command_line(argv, _OPTIONS)
    own = [each for each in command_line.occurrences if each.name.startswith("xmem-")]
    unknown = next((each.typed for each in own if each.option is None), None)
    if unknown is not None:
        raise UsageError(f"{unknown}: no such option; there are {', '.join('--' + name for name in _FLAGS + _VALUES)}")
    given = {option.name: environ.get(option.variable) for option in OWN_OPTIONS}
    given |= {each.name: each.value if each.value is not None else "1" for each in own}
    flags = {name: given[name] not in (None, "", "0", "no") for name in _FLAGS}
    wishes = Wishes(
        off=flags["xmem-off"],
        dry_run=flags["xmem-dry-run"],
        keep_type=flags["xmem-keep-type"],
        budget_seconds=_seconds(given["xmem-budget"]),
        site=given["xmem-site"],
        report=given["xmem-report"],
        fresh=flags["xmem-fresh"],
        policy=_one_of(given["xmem-policy"], _ORDERS),
        engine=_engine(given["xmem-engine"]),
    )
    return without(argv, own), wishes


def _engine(text: str | None) -> str | None:
    if text and text not in ENGINES:
        raise UsageError(f"--xmem-engine={text}: no such engine; there are {', '.join(ENGINES)}")
    return text or None


def _one_of(text: str | None, words: Sequence[str]) -> str | None:
    if text and text not in words:
        raise UsageError(f"--xmem-policy={text}: not one of {', '.join(words)}")
    return text or None


def _seconds(text: str | None) -> float:
    try:
        seconds = float(text) if text else 60.0
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise UsageError(f"--xmem-budget={text}: not a number of seconds from 1 to 3600")
    return seconds
