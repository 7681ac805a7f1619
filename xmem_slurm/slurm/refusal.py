"""Will sbatch refuse this job at once, whatever is in the queue?

Then there is nothing to estimate: sbatch says what is wrong, and in its own words. Unknown options
are not judged here, as a newer release or a plugin of the site may know them.
"""

from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.options import REQUIRED, Occurrence
from xmem_slurm.slurm.request import Request, Source
from xmem_slurm.slurm.submission import Submission


def refusal(job: Submission) -> str | None:
    """Return why sbatch refuses the job, or None if it does not, as far as can be told here."""
    command_line = job.command_line
    if command_line.wrap is not None and command_line.script is not None:
        return "a script beside --wrap"
    missing = _without_value(command_line.occurrences)
    if missing is not None:
        return f"{missing} on the command line has no value"
    if command_line.wrap is None:
        try:
            parsed = job.parsed_script
        except scripts.ScriptError as error:
            return str(error)
        reason = parsed and (parsed.refusal or _bad_line(parsed))
        if reason:
            return reason
    components = job.request.components
    if len(components) > 1 and components[0].value("array") is not None:
        return "Slurm has no arrays of heterogeneous jobs"
    return next(
        (reason for reason in map(_memory_conflict, components) if reason is not None), None
    )


def _without_value(occurrences: tuple[Occurrence, ...]) -> str | None:
    for occurrence in occurrences:
        if (
            occurrence.option is not None
            and occurrence.option.arity == REQUIRED
            and occurrence.value is None
        ):
            return occurrence.typed
    return None


def _bad_line(script: scripts.Script) -> str | None:
    for component in script.components:
        missing = _without_value(tuple(directive.occurrence for directive in component.directives))
        if missing is not None:
            return f"{missing} in the script has no value"
        if component.stray is not None and not script.unknown:
            return (
                f"line {component.stray.line} of the script: {component.stray.text!r} belongs "
                "to no option"
            )
    return None


def _memory_conflict(request: Request) -> str | None:
    names = [setting.name for setting in request.memory]
    if len(names) < 2:
        return None
    where = "options"
    if all(setting.source is Source.ENVIRONMENT for setting in request.memory):
        where = "variables"
    return (
        f"{' and '.join(f'--{name}' for name in names)} exclude each other, and the {where} for "
        "both are set"
    )
