"""`xsbatch`: takes sbatch's command line, keeps its own options to itself, and hands the rest
on.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from xmem_slurm import __version__
from xmem_slurm.cluster import client
from xmem_slurm.errors import SlurmError, UsageError, XmemError
from xmem_slurm.report import columns
from xmem_slurm.slurm.command_line import split_command_line
from xmem_slurm.slurm.edit import without
from xmem_slurm.slurm.options import NONE, REQUIRED, Option
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files, silent
from xmem_slurm.submission import handover, settings
from xmem_slurm.submission.answer import Wishes
from xmem_slurm.submission.settings import BY_NAME, OWN_OPTIONS, OwnOption, OwnSetting, wrong_value
from xmem_slurm.submission.submit import submit, tell

SUMMARY = "sbatch that asks for the GPU that the job needs"

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
            handover.die_of_broken_pipe()
            if not command_line.has("autocomplete"):
                print(_VERSION if command_line.has("version") else _help(), end="", flush=True)  # noqa: T201
            wishes = wishes._replace(off=True, dry_run=False)
            if not command_line.has("autocomplete"):
                _end_without_cluster(job)
        if not wishes.off and not command_line.has("quiet"):
            tell(complaints)
        submit(job, wishes)
    except XmemError as error:
        tell([str(error)])
        raise SystemExit(error.exit_code) from None


def _end_without_cluster(job: Submission) -> None:
    """End here where sbatch could not say what its options are, as it reads the cluster's
    configuration first.
    """
    if "XMEM_ACTIVE" in job.environ:  # a site's own sbatch, which calls us
        return
    try:
        sbatch = client.find_sbatch(job.environ)
        client.run(
            [str(sbatch), *job.argv], client.TRIAL_SECONDS, {**job.environ, "XMEM_ACTIVE": "1"}
        )
    except SlurmError as error:
        if client.is_no_cluster(str(error)):
            if not job.command_line.has("version"):
                sys.stdout.write(
                    "sbatch's own options are in its manual, sbatch(1): there is no cluster here "
                    "to ask.\n"
                )
            raise SystemExit(0) from None


def _help() -> str:
    words = [
        f"--{option.name}" + (f"={option.value}" if option.value else "") for option in OWN_OPTIONS
    ]
    width = shutil.get_terminal_size().columns
    lines = [
        line
        for word, option in zip(words, OWN_OPTIONS, strict=True)
        for line in columns.entry(f"      {word}", option.help, 32, width)
    ]
    return "\n".join(
        [
            f"xsbatch: {SUMMARY}. Takes every sbatch option, and:",
            *lines,
            (
                "Each has a variable: XMEM_OFF=1, XMEM_BUDGET=30, and so on.\n"
                'In a script: "#XMEM off", "#XMEM budget=300".'
            ),
            "\n",
        ]
    )


def parse(
    argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[tuple[str, ...], Wishes, list[str]]:
    """Return sbatch's part of the command line, what is asked of xsbatch itself, and what is wrong
    in XMEM_* variables.

    A variable, set in a profile long ago, is no reason to refuse a job: a wrong one is as good as
    not set.

    Raises:
        UsageError: an --xmem option that does not exist, or a value that is none.
    """
    has_own = any(word.startswith("--x") for word in argv)
    typed = split_command_line(argv, _OPTIONS).occurrences if has_own else ()
    own_occurrences = [occurrence for occurrence in typed if occurrence.name.startswith("xmem-")]
    unknown = next(
        (occurrence for occurrence in own_occurrences if occurrence.option is None), None
    )
    if unknown is not None:
        raise UsageError(f"{unknown.typed}: no such option; {_nearest(unknown.name)}")
    own_settings, complaints = settings.of_environment(environ)
    for occurrence in own_occurrences:
        option = BY_NAME[occurrence.name]
        text = occurrence.value or ("" if option.value or occurrence.value is not None else "1")
        wrong = wrong_value(option, text) or _wrong_file(option, text)
        if option.value and occurrence.value is None:
            wrong = "a value is missing"
        if wrong is not None:
            value = "" if occurrence.value is None else f"={occurrence.value}"
            raise UsageError(f"--{occurrence.name}{value}: {wrong}")
        own_settings[occurrence.name.removeprefix("xmem-")] = OwnSetting(text, "the command line")
    with_value = {
        name: setting
        for name, setting in own_settings.items()
        if setting.value or not BY_NAME[f"xmem-{name}"].value
    }
    wishes = Wishes(**settings.values(with_value), given=tuple(sorted(own_settings)))
    return without(argv, own_occurrences), wishes, complaints


def _wrong_file(option: OwnOption, text: str) -> str | None:
    """Return why a typed file cannot be read or written.

    A variable's is seen when it is read or written, and costs no submission. Of one on a file
    system that does not answer it cannot be told: who submits comes upon that.
    """
    if option.file and text and silent.mount_on_the_way([Path(text)]) is not None:
        return None
    if option.file == "read" and text and not os.access(text, os.R_OK):
        return "there is no such file, or it is not yours to read"
    return own_files.unwritable(Path(text)) if option.file == "written" and text else None


def _nearest(name: str) -> str:
    import difflib  # noqa: PLC0415

    rests = [word.removeprefix("xmem-") for word in BY_NAME]
    near = difflib.get_close_matches(name.removeprefix("xmem-"), rests, n=1)
    if near:
        return f"did you mean --xmem-{near[0]}?"
    return f"there are {', '.join(f'--{word}' for word in BY_NAME)}"
