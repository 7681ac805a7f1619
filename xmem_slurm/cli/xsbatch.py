"""`xsbatch`: takes sbatch's command line, keeps its own options to itself, and hands the rest on."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from xmem_slurm import __version__
from xmem_slurm.cluster import client
from xmem_slurm.dryrun import ENGINES
from xmem_slurm.errors import SlurmError, UsageError, XmemError
from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.edit import without
from xmem_slurm.slurm.options import NONE, REQUIRED, Option
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files
from xmem_slurm.submission.answer import Wishes
from xmem_slurm.submission.submit import submit, tell

_ORDERS = ("cost", "memory", "start")
"""What --xmem-policy takes; a site file's `policy.order` is one of these, too (`site.schema.Order`)."""

RANKS = "all|last|[0-9]+(,[0-9]+)*"
"""What --xmem-ranks takes (`xmem_slurm.dryrun.order`)."""
TASKS = r"\d+(,\d+)*"


class OwnOption(NamedTuple):
    """An option of xsbatch itself: `value` is what its value is called, or "" for a flag. XMEM_… sets it, too.

    `takes` are the words that are taken as a value, or the least and the most of a number; () takes anything, or what
    is of a `form`, an expression that a value must match. A typed file must be one that can be read, or written.
    """

    name: str
    value: str
    help: str
    takes: tuple[str, ...] | tuple[int, int] = ()
    form: str = ""
    file: Literal["", "read", "written"] = ""

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return self.name.upper().replace("-", "_")


OWN_OPTIONS = (
    OwnOption("xmem-dry-run", "", "print the script that would be submitted; submit nothing"),
    OwnOption("xmem-off", "", "submit as written, without a look at it"),
    OwnOption("xmem-keep-type", "", "do not change a GPU type that the request names"),
    OwnOption("xmem-fresh", "", "run dry even if nothing has changed since the last time"),
    OwnOption("xmem-verbose", "", "say what the memory is for, and why it is how sure"),
    OwnOption(
        "xmem-policy",
        "|".join(_ORDERS),
        "which GPU that fits: of the least cost, of the least memory, or the first to start",
        _ORDERS,
    ),
    OwnOption("xmem-budget", "seconds", "CPU seconds that the dry runs may take (60)", (1, 3600)),
    OwnOption(
        "xmem-engine", "name", "how it is run dry: device (stand-ins), profile (real steps on the CPU), auto", ENGINES
    ),
    OwnOption("xmem-ranks", "list", "ranks that are run beside the first: all, last, or numbers (0,3)", form=RANKS),
    OwnOption(
        "xmem-array-tasks", "list", "array tasks that are run, in place of the first and the last: 7 or 1,5", form=TASKS
    ),
    OwnOption(
        "xmem-site",
        "file",
        "the site file; else /etc/xmem-slurm/site.toml, ~/.config/xmem-slurm/site.toml",
        file="read",
    ),
    OwnOption(
        "xmem-report",
        "file",
        "write a report: .html, .pickle (torch's snapshot), .trace.json (Perfetto), else JSON",
        file="written",
    ),
    OwnOption("xmem-html", "file", "write charts and tables, one HTML file", file="written"),
)
SUMMARY = "sbatch that asks for the GPU that the job needs"

_BY_NAME = {option.name: option for option in OWN_OPTIONS}
_OPTIONS = [Option(option.name, "", REQUIRED if option.value else NONE) for option in OWN_OPTIONS]

_VERSION = f"xsbatch {__version__}\n"

_ANSWERED_AT_ONCE = ("autocomplete", "help", "usage", "version")
"""sbatch answers these without a look at a script."""


def main() -> NoReturn:
    """Run xsbatch on this process's command line and environment; ends as sbatch."""
    environ = dict(os.environ)
    try:
        argv, wishes, complaints = parse(sys.argv[1:], environ)
        job = Submission(argv, environ, None)
        command_line = job.command_line
        if any(command_line.has(name) for name in _ANSWERED_AT_ONCE):
            if not command_line.has("autocomplete"):
                print(_VERSION if command_line.has("version") else _help(), end="", flush=True)  # noqa: T201
            wishes = wishes._replace(off=True, dry_run=False)
            if not command_line.has("autocomplete"):
                _end_without_cluster(job)
        if not wishes.off and not command_line.has("quiet"):
            tell(complaints)
        submit(job, wishes)
    except XmemError as error:
        if sys.stderr is not None:
            print(f"xsbatch: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(error.exit_code) from None


def _end_without_cluster(job: Submission) -> None:
    """End here where sbatch could not say what its options are, as it reads the cluster's configuration first."""
    if "XMEM_ACTIVE" in job.environ:  # a site's own sbatch, which calls us
        return
    try:
        sbatch = client.find_sbatch(job.environ)
        client.run([str(sbatch), *job.argv], client.TRIAL_SECONDS, {**job.environ, "XMEM_ACTIVE": "1"})
    except SlurmError as error:
        if client.is_no_cluster(str(error)):
            print("sbatch's own options are in its manual, sbatch(1): there is no cluster here to ask.")  # noqa: T201
            raise SystemExit(0) from None


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


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[tuple[str, ...], Wishes, list[str]]:
    """Return sbatch's part of the command line, what is asked of xsbatch itself, and what is wrong in XMEM_* variables.

    A variable, set in a profile long ago, is no reason to refuse a job: a wrong one is as good as not set.

    Raises:
        UsageError: an --xmem option that does not exist, or a value that is none.
    """
    typed = split_command_line(argv, _OPTIONS).occurrences if any(word.startswith("--x") for word in argv) else ()
    own = [each for each in typed if each.name.startswith("xmem-")]
    unknown = next((each for each in own if each.option is None), None)
    if unknown is not None:
        raise UsageError(f"{unknown.typed}: no such option; {_nearest(unknown.name)}")
    values, complaints = dict[str, str](), list[str]()
    for option in OWN_OPTIONS:
        text = environ.get(option.variable, "")
        wrong = _wrong(option, text)
        if wrong is None:
            values[option.name] = text
        else:
            complaints.append(f"{option.variable}={text}: {wrong}; it is as if it were not set")
    for each in own:
        option = _BY_NAME[each.name]
        values[each.name] = each.value or ("" if option.value else "1" if each.value is None else "")
        wrong = "a value is missing" if option.value and each.value is None else _wrong(option, values[each.name])
        wrong = wrong or _wrong_file(option, values[each.name])
        if wrong is not None:
            raise UsageError(f"--{each.name}{'' if each.value is None else f'={each.value}'}: {wrong}")
    wanted: dict[str, Any] = {}
    for option in OWN_OPTIONS:
        text = values.get(option.name, "")
        name = option.name.removeprefix("xmem-").replace("-", "_")
        wanted[name] = (text or None) if option.value else text not in ("", "0", "no")
    wanted["budget"] = float(wanted["budget"] or Wishes().budget)
    return without(argv, own), Wishes(**wanted), complaints


def _wrong_file(option: OwnOption, text: str) -> str | None:
    """Return why a typed file cannot be read or written; a variable's is seen when it is, and costs no submission."""
    if option.file == "read" and text and not os.access(text, os.R_OK):
        return "there is no such file, or it is not yours to read"
    return own_files.unwritable(Path(text)) if option.file == "written" and text else None


def _nearest(name: str) -> str:
    import difflib  # noqa: PLC0415

    rests = [each.removeprefix("xmem-") for each in _BY_NAME]
    near = difflib.get_close_matches(name.removeprefix("xmem-"), rests, n=1)
    return f"did you mean --xmem-{near[0]}?" if near else f"there are {', '.join(f'--{each}' for each in _BY_NAME)}"


def _wrong(option: OwnOption, text: str) -> str | None:
    """Return what is wrong with a value, or None; an empty one stands for the default."""
    if option.form and text and not re.fullmatch(option.form, text):
        return f"not of the form {option.form}"
    if not text or not option.takes or text in option.takes:
        return None
    if isinstance(option.takes[0], str):
        return f"not one of {', '.join(map(str, option.takes))}"
    least, most = option.takes
    try:
        fits = float(least) <= float(text) <= float(most)
    except ValueError:
        fits = False
    return None if fits else f"not a number of {option.value} from {least} to {most}"
