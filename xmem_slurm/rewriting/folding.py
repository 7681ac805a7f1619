"""Put all that a submission asks for into its script, so that plain `sbatch SCRIPT` gives the same
job.

Options of the command line and of SBATCH_* variables become #SBATCH lines, in place of those that
they overruled. The job's name, which Slurm takes from the script's file name, becomes one, too.
`--wrap` becomes the script that sbatch would make of it. What no script can carry stays on the
command line to type: the script's arguments, options that are about the call and not the job, and
plugins' options; a variable that would overrule the script has to be unset there. Variables of
options that are newer than 22.05 stay variables: an older sbatch overlooks those, and refuses the
option.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.edit import Edit, apply
from xmem_slurm.slurm.options import SBATCH, Occurrence
from xmem_slurm.slurm.request import Request, Source
from xmem_slurm.slurm.submission import Submission

FILE = "SCRIPT"
"""What the script is called on the command line to type."""

OF_THE_CALL = ("parsable", "test-only", "wait")
"""Options that say how sbatch ends and what it prints."""
ADDED_UP = ("mail-type",)
"""Options of which not the last one counts, but all together."""


MOST_LINES = 20_000
"""Of a longer script no difference is shown: to find one takes long."""


class Folded(NamedTuple):
    """A script, and the words to type to submit it: `sbatch SCRIPT` where everything is in it.

    `reason` says why the options could not be put into the script; then they are all in `words`.
    """

    script: bytes
    words: Sequence[str]
    reason: str | None = None


def fold(job: Submission, environ: Mapping[str, str]) -> Folded:
    """Return the script for a job that is submitted from the environment `environ`; the job's own
    may be changed.

    The job has a script or `--wrap`.
    """
    script = _script(job)
    changed = {name: value for name, value in job.environ.items() if environ.get(name) != value}
    try:
        folded = _folded(
            job, script, {n: v for n, v in changed.items() if not n.startswith("SBATCH_")}
        )
        unset = [word for name in _overruling(folded, environ) for word in ("-u", name)]
        return Folded(
            folded.script or b"", [*(["env", *unset] if unset else []), "sbatch", *folded.argv]
        )
    except UsageError as error:
        variables = [f"{name}={value}" for name, value in changed.items()]
        return Folded(script, [*variables, "sbatch", *_unfolded(job)], str(error))


def differences(before: Submission, after: Submission, folded: Folded) -> list[str]:
    """Return a unified diff of what the job asks for, as written and changed, and one of its script
    as folded.
    """
    import difflib  # noqa: PLC0415 - only where nothing is submitted

    old, new = (
        [
            _typed(name, value)
            for part in job.request.components
            for name, value in _settings(part).items()
        ]
        for job in (before, after)
    )
    lines = list(
        difflib.unified_diff(old, new, "options as written", "options as changed", n=0, lineterm="")
    )
    old, new = (
        text.decode(errors="surrogateescape").splitlines()
        for text in (_script(before), folded.script)
    )
    if max(len(old), len(new)) <= MOST_LINES:
        name = before.command_line.script or ("-" if before.command_line.wrap is None else "--wrap")
        lines += difflib.unified_diff(old, new, name, FILE, lineterm="")
    return lines


def _script(job: Submission) -> bytes:
    return job.script if job.script is not None else wrapped(job.command_line.wrap or "")


def wrapped(command: str) -> bytes:
    """Return the script that sbatch makes of `--wrap`, as seen in 22.05.

    In a script #SBATCH lines count, in `--wrap` they do not: a command that does nothing goes
    before them.
    """
    head = b"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"
    text = command.encode(errors="surrogateescape") + b"\n"
    counts = any(part.has_lines for part in scripts.parse(head + text).components)
    return head + (b":\n" if counts else b"") + text


def export(request: Request, variables: Mapping[str, str]) -> str:
    """Return the `--export` that also gives the job these variables.

    Raises:
        UsageError: it cannot.
    """
    if any("," in value for value in variables.values()):
        raise UsageError(f"{', '.join(variables)}: --export cannot give a job a value with a comma")
    return ",".join(
        [
            request.value("export") or "ALL",
            *(f"{name}={value}" for name, value in variables.items()),
        ]
    )


def _folded(job: Submission, script: bytes, variables: Mapping[str, str]) -> Submission:
    """Return the job with its options in its script; on its command line is what cannot be there.

    Raises:
        UsageError: something cannot be put into this script.
    """
    line = job.command_line
    kept = [o for o in line.first_pass if o.name in OF_THE_CALL or o.name not in SBATCH.by_name]
    words = dict.fromkeys(o.typed if o.value is None else _joined(o.typed, o.value) for o in kept)
    components = job.request.components
    base = job.but(argv=(*words, FILE, *line.script_arguments), environ={}, script=script)
    base = _with_components(base, len(components))
    wanted = [
        _added_up(
            _settings(part), _settings(old), line.components[min(index, len(line.components) - 1)]
        )
        for index, (part, old) in enumerate(zip(components, base.request.components, strict=True))
    ]
    if variables:
        wanted = [settings | {"export": export(job.request, variables)} for settings in wanted]
    edits = [
        edit
        for index, (new, part) in enumerate(zip(wanted, base.request.components, strict=True))
        for edit in _edits(index, _settings(part), new)
    ]
    folded = apply(edits, base)
    if (
        folded.argv != base.argv
        or [_settings(part) for part in folded.request.components] != wanted
    ):
        raise UsageError("#SBATCH lines of this script cannot say the same")
    return folded


def _joined(typed: str, value: str) -> str:
    return f"{typed}={value}" if typed.startswith("--") else typed + value


def _typed(name: str, value: str) -> str:
    return f"--{name}={value}" if value else f"--{name}"


def _settings(request: Request) -> dict[str, str]:
    """Return what is asked for, "" for a flag, with the name that the job will have."""
    settings = {
        name: setting.value or ""
        for name, setting in request.settings.items()
        if setting.source is Source.SCRIPT
        or not (
            name in OF_THE_CALL
            or (setting.source is Source.ENVIRONMENT and SBATCH.by_name[name].since)
        )
    }
    return settings | {"job-name": request.job_name or "sbatch"}


def _added_up(
    settings: Mapping[str, str], of_script: Mapping[str, str], typed: Sequence[Occurrence]
) -> dict[str, str]:
    """Return the settings with the values of script and command line together where those count
    together.
    """
    added_up = dict(settings)
    for name in ADDED_UP:
        values = [of_script.get(name), *(o.value for o in typed if o.name == name)]
        if name in added_up:
            added_up[name] = ",".join(value for value in values if value)
    return added_up


def _edits(component: int, old: Mapping[str, str], new: Mapping[str, str]) -> list[Edit]:
    edits: list[Edit] = []
    for name in {**old, **new}:
        old_value, new_value = old.get(name), new.get(name)
        if old_value != new_value:
            # A flag has no value that could be another one.
            if old_value is not None and (not old_value or not new_value):
                edits.append(Edit(name, None, component))
            if new_value is not None:
                edits.append(Edit(name, new_value, component))
    return edits


def _with_components(job: Submission, count: int) -> Submission:
    """Return the job with so many components in its script."""
    script = job.parsed_script
    assert script is not None
    at = script.components[-1].insert_at
    added_lines = b"#SBATCH hetjob\n" * (count - len(script.components))
    return job.but(script=script.data[:at] + added_lines + script.data[at:])


def _overruling(folded: Submission, environ: Mapping[str, str]) -> list[str]:
    """Return the variables that would have it otherwise than the script."""
    plain = folded.request.components
    variables = (
        variable
        for option in SBATCH.options
        for variable in option.variables
        if variable in environ
    )
    return [
        name
        for name in variables
        if [
            _settings(part) for part in folded.but(environ={name: environ[name]}).request.components
        ]
        != [_settings(part) for part in plain]
    ]


def _unfolded(job: Submission) -> list[str]:
    """Return the job's command line with its script under another name."""
    line = job.command_line
    if line.wrap is not None:
        return list(job.argv)
    at = line.script_index if line.script_index is not None else len(job.argv)
    request = job.request
    named = request.value("job-name") is not None or request.foreign is not None
    return [
        *([] if named else [f"--job-name={request.job_name or 'sbatch'}"]),
        *job.argv[:at],
        FILE,
        *line.script_arguments,
    ]
