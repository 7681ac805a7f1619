"""Which of xsbatch's own options are set, and where? In the user's file, an #XMEM line, the
environment, on the line.

The later of these counts. The file and the script are read for a job that asks for a GPU alone: the
others do not wait.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from xmem_slurm.dryrun import ENGINES
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files
from xmem_slurm.submission.answer import Wishes

_ORDERS = ("cost", "memory", "start")
"""What --xmem-policy takes; a site file's `policy.order` is one of these, too
(`site.schema.Order`)."""

RANKS = "all|last|[0-9]+(,[0-9]+)*"
"""What --xmem-ranks takes (`xmem_slurm.dryrun.order`)."""
NO = ("", "0", "no", "false")
"""What a variable of ours says, in any case, where it is as good as not set."""
TASKS = r"\d+(,\d+)*"


class OwnOption(NamedTuple):
    """An option of xsbatch itself: `value` is what its value is called, or "" for a flag. XMEM_…
    sets it, too.

    `takes` are the words that are taken as a value, or the least and the most of a number; () takes
    anything, or what is of a `form`, an expression that a value must match. A typed file must be
    one that can be read, or written.

    `reach` is who heeds it: xsbatch alone, as an option and a variable; a job wherever it is sized,
    so the user's file and an #XMEM line can set it, too; or also the filter behind plain sbatch.
    """

    name: str
    value: str
    help: str
    takes: tuple[str, ...] | tuple[int, int] = ()
    form: str = ""
    file: Literal["", "read", "written"] = ""
    reach: Literal["xsbatch", "job", "filter"] = "xsbatch"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return self.name.upper().replace("-", "_")


OWN_OPTIONS = (
    OwnOption("xmem-dry-run", "", "print the script that would be submitted; submit nothing"),
    OwnOption("xmem-off", "", "submit the job as written, without an estimate"),
    OwnOption(
        "xmem-keep-type", "", "do not change a GPU type that the request names", reach="filter"
    ),
    OwnOption(
        "xmem-raise-mem",
        "",
        "raise --mem if the job was seen to hold more host memory than it requests",
        reach="filter",
    ),
    OwnOption(
        "xmem-plan",
        "",
        "train it the best way that fits this site's GPUs; says what that changes",
    ),
    OwnOption("xmem-hold", "", "submit the job held if it could not be sized", reach="job"),
    OwnOption(
        "xmem-strict",
        "",
        "do not submit a job that would fail on every node, or will run out of GPU memory",
        reach="filter",
    ),
    OwnOption(
        "xmem-fresh", "", "do the dry run again even if nothing has changed since the last one"
    ),
    OwnOption(
        "xmem-record",
        "",
        "record what the job really uses of its GPUs, in your state folder",
        reach="job",
    ),
    OwnOption(
        "xmem-summary",
        "",
        "record it, and end the job's output with what was estimated and used",
        reach="job",
    ),
    OwnOption(
        "xmem-retry",
        "times",
        "if it runs out of GPU memory, try larger GPUs: a new job each time (0)",
        (0, 5),
        reach="job",
    ),
    OwnOption(
        "xmem-verbose",
        "",
        "show what the memory is used for, and how sure the estimate is",
        reach="job",
    ),
    OwnOption(
        "xmem-policy",
        "|".join(_ORDERS),
        "which of the GPUs that fit: the cheapest, the smallest, or the first to be free",
        _ORDERS,
        reach="filter",
    ),
    OwnOption(
        "xmem-budget",
        "seconds",
        "CPU seconds that the dry runs may take (60)",
        (1, 3600),
        reach="filter",
    ),
    OwnOption(
        "xmem-margin",
        "percent",
        "percent of each GPU's memory to leave free, in addition to the margin (0)",
        (0, 90),
        reach="filter",
    ),
    OwnOption(
        "xmem-engine",
        "name",
        "how to do the dry run: device (stand-in CUDA), profile (real steps on the CPU), auto",
        ENGINES,
        reach="filter",
    ),
    OwnOption(
        "xmem-ranks",
        "list",
        "ranks to run in addition to rank 0: all, last, or a list (0,3)",
        form=RANKS,
        reach="filter",
    ),
    OwnOption(
        "xmem-array-tasks",
        "list",
        "array tasks to run, instead of those chosen automatically: 7 or 1,5",
        form=TASKS,
        reach="filter",
    ),
    OwnOption(
        "xmem-site",
        "file",
        "site file; default: /etc/xmem-slurm/site.toml, ~/.config/xmem-slurm/site.toml",
        file="read",
    ),
    OwnOption(
        "xmem-report",
        "file",
        "write a report: .html, .pickle (torch's snapshot), .trace.json (Perfetto), or JSON",
        file="written",
    ),
    OwnOption("xmem-html", "file", "write charts and tables to one HTML file", file="written"),
)
BY_NAME = {option.name: option for option in OWN_OPTIONS}
ANYWHERE = tuple(
    option.name.removeprefix("xmem-") for option in OWN_OPTIONS if option.reach != "xsbatch"
)
"""What the user's file and an #XMEM line can set, too..."""
BEHIND_SBATCH = tuple(
    option.name.removeprefix("xmem-") for option in OWN_OPTIONS if option.reach == "filter"
)
"""...and what of that the site-wide filter heeds; the others are of what only xsbatch does."""


class OwnSetting(NamedTuple):
    """A value of one of these, as it was written, and where that was."""

    value: str
    where: str


def user_file() -> Path:
    """Return where the user's settings are; there need be none."""
    return own_files.config_file("settings.toml")


def of_environment(environ: Mapping[str, str]) -> tuple[dict[str, OwnSetting], list[str]]:
    """Return what variables set, by the option's name without "xmem-", and a line for each that
    makes no sense.
    """
    named = {option.name: environ.get(option.variable, "") for option in OWN_OPTIONS}
    return _sensible(
        (name, OwnSetting(text, BY_NAME[name].variable)) for name, text in named.items() if text
    )


def of_job(job: Submission) -> tuple[dict[str, OwnSetting], list[str]]:
    """Return what the user's file and the script's #XMEM lines set, the script before the file; and
    what is wrong.
    """
    settings, complaints = _of_file(user_file())
    script = job.parsed_script
    lines = (
        (word, line.line)
        for line in (script.own_lines if script is not None else ())
        for word in line.words
    )
    pairs = [
        (word.partition("="), f"line {number} of the script")
        for word, number in lines
        if is_setting(word)
    ]
    own_settings, wrong = _sensible(
        (f"xmem-{name}", OwnSetting(text or "1", where)) for (name, _, text), where in pairs
    )
    return settings | own_settings, complaints + wrong


def is_setting(word: str) -> bool:
    """Whether a word of an #XMEM line sets one of these."""
    name, equals, _ = word.partition("=")
    return name in ANYWHERE and (bool(equals) or not BY_NAME[f"xmem-{name}"].value)


def settled(wishes: Wishes, job: Submission) -> tuple[Wishes, list[str]]:
    """Add to what a command line and its environment say what the job's script and the user's file
    do; and complaints.

    Nothing is read for a job that asks for no GPU, and for one that sbatch will refuse.
    """
    if wishes.off or (job.script is None and job.command_line.wrap is None):
        return wishes, []
    if refusal(job) is not None or not job.request.asks_for_gpu:
        return wishes, []
    own_settings, complaints = of_job(job)
    unstated = {name: setting for name, setting in own_settings.items() if name not in wishes.given}
    return wishes._replace(**values(unstated)), complaints


def effective(job: Submission) -> tuple[dict[str, OwnSetting], list[str]]:
    """Return what holds for a job where no option says otherwise; and complaints."""
    lower, complaints = of_job(job)
    own_settings, wrong = of_environment(job.environ)
    return lower | own_settings, complaints + wrong


def values(settings: Mapping[str, OwnSetting]) -> dict[str, Any]:
    """Return the fields of `Wishes` that these are."""
    return {
        name.replace("-", "_"): _value(f"xmem-{name}", setting.value)
        for name, setting in settings.items()
    }


def is_no(text: str) -> bool:
    """Whether a flag's variable, or its word, says that it is not meant."""
    return text.lower() in NO


def _value(name: str, text: str) -> Any:
    if not BY_NAME[name].value:
        return not is_no(text)
    return float(text) if name in ("xmem-budget", "xmem-margin", "xmem-retry") else text


def _of_file(path: Path) -> tuple[dict[str, OwnSetting], list[str]]:
    """Return what the user's file sets, and what is wrong in it; it need not be there."""
    try:
        content = path.read_bytes()
        import tomllib  # noqa: PLC0415 - only where there is a file

        table = tomllib.loads(content.decode())
    except FileNotFoundError:
        return {}, []
    except (OSError, ValueError) as error:
        return {}, [f"{path}: cannot be read: {error}; it is ignored"]
    unknown = [
        f"{path}: {name}: no such setting; there are {', '.join(ANYWHERE)}"
        for name in table.keys() - {*ANYWHERE}
    ]
    texts = {
        name: str(int(value) if isinstance(value, bool) else value) for name, value in table.items()
    }
    own_settings, wrong = _sensible(
        (f"xmem-{name}", OwnSetting(texts[name], str(path))) for name in ANYWHERE if name in texts
    )
    return own_settings, unknown + wrong


def _sensible(
    settings: Iterator[tuple[str, OwnSetting]],
) -> tuple[dict[str, OwnSetting], list[str]]:
    own_settings, complaints = dict[str, OwnSetting](), list[str]()
    for name, setting in settings:
        wrong = wrong_value(BY_NAME[name], setting.value)
        short_name = name.removeprefix("xmem-")
        if wrong is None:
            own_settings[short_name] = setting
        elif setting.where == BY_NAME[name].variable:
            complaints.append(f"{setting.where}={setting.value}: {wrong}; it is ignored")
        else:
            complaints.append(
                f"{setting.where}: {short_name}={setting.value}: {wrong}; it is ignored"
            )
    return own_settings, complaints


def wrong_value(option: OwnOption, text: str) -> str | None:
    """Return what is wrong with a value, or None; an empty one stands for the default."""
    if option.form and text and not re.fullmatch(option.form, text):
        return f"not of the form {option.form}"
    if not text or not option.takes or text in option.takes:
        return None
    if isinstance(option.takes[0], str):
        return f"not one of {', '.join(map(str, option.takes))}"
    lowest, highest = option.takes
    try:
        fits = float(lowest) <= float(text) <= float(highest)
    except ValueError:
        fits = False
    return None if fits else f"not a number of {option.value} from {lowest} to {highest}"
