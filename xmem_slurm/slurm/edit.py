"""How is an option of a job changed where it was set, in its own spelling, and nowhere else?

An edit goes to the place that decides: a rewritten #SBATCH line would lose to SBATCH_GRES. What was
set nowhere is added to the script's #SBATCH lines, or to the command line where the script has no
room for one. After its edits `apply` reads the result back: every option must have the value that
it should have, in every component, or it refuses.
"""

from collections.abc import Sequence
from typing import NamedTuple

from xmem_slurm.errors import UsageError
from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.gres import with_type
from xmem_slurm.slurm.options import Occurrence
from xmem_slurm.slurm.request import GPU_OPTIONS, Request, Source
from xmem_slurm.slurm.script import Directive, Script
from xmem_slurm.slurm.submission import Submission

_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "csh", "tcsh", "fish")
_HASH_COMMENTS = (*_SHELLS, "python", "perl", "ruby", "julia", "Rscript")
"""Interpreters for which an #SBATCH line is a comment; a version may follow (`python3.12`)."""


class EditError(UsageError):
    """The change cannot be made without changing something else; the message says which option and
    why.
    """


class Edit(NamedTuple):
    """One option to set; `value` is "" for a flag, and None takes the option away. `component`
    counts from 0.
    """

    name: str
    value: str | None
    component: int = 0


def apply(edits: Sequence[Edit], before: Submission, *, in_script: bool = True) -> Submission:
    """Return what is submitted with the edits made.

    Without `in_script` the script stays as it is: what it says is overruled on the command line.

    Raises:
        EditError: an edit would also change something else, as one variable serves all components
            of a job; or the script has #PBS or #BSUB lines, which come after the #SBATCH lines and
            are not understood here.
        ScriptError: sbatch refuses the script's #SBATCH lines, or a value cannot be written on one.
    """
    job = before
    wanted = [
        {name: setting.value for name, setting in part.settings.items()}
        for part in before.request.components
    ]
    for edit in edits:
        if edit.component >= len(wanted):
            raise EditError(f"--{edit.name}: the job has no component {edit.component}")
        if edit.value is None:
            job = _remove(job, edit)
            wanted[edit.component].pop(edit.name, None)
        else:
            job = _set(job, edit, edit.value, in_script=in_script)
            wanted[edit.component][edit.name] = edit.value or None
    got = [
        {name: setting.value for name, setting in part.settings.items()}
        for part in job.request.components
    ]
    if job.script != before.script and not in_script:
        raise EditError("this cannot be said on the command line")
    if got != wanted:
        names = ", ".join(f"--{edit.name}" for edit in edits)
        raise EditError(
            f"{names} cannot be changed in one place without changing another component of the job"
        )
    return job


def type_edits(request: Request, gpu_type: str | None) -> list[Edit]:
    """Return the edits that give every GPU request of every component this type, each in its own
    spelling.

    All of them get it: Slurm refuses a job that asks for GPUs with a type in one option and without
    in another.

    Raises:
        GresError: one option asks for several types at once.
    """
    edits: list[Edit] = []
    for index, component in enumerate(request.components):
        for name in GPU_OPTIONS:
            value = component.value(name)
            if value and any(gpu.setting.name == name for gpu in component.gpus):
                changed = with_type(name, value, gpu_type)
                if changed != value:
                    edits.append(Edit(name, changed, index))
    return edits


def _set(job: Submission, edit: Edit, value: str, *, in_script: bool) -> Submission:
    """Set an option in the place that decides about it, or add it where none does.

    Raises:
        EditError: the script has foreign lines that may decide, or the place has no value to
            change.
    """
    setting = job.request.components[edit.component].settings.get(edit.name)
    foreign = job.request.foreign
    if foreign is not None and (setting is None or setting.source is Source.SCRIPT):
        raise EditError(
            f"--{edit.name}: the script has #{foreign} lines, which may say something else"
        )
    if setting is None or (
        isinstance(setting.place, Directive) and setting.place.component != edit.component
    ):
        # what another component's lines say is carried over
        return _add(job, edit, value, in_script=in_script)
    if setting.value == (value or None):
        return job
    place = setting.place
    if isinstance(place, str):
        return job.but(environ={**job.environ, place: value})
    if isinstance(place, Directive):
        if not in_script:
            return _add(job, edit, value, in_script=in_script)
        script = job.parsed_script
        assert script is not None
        return job.with_script(scripts.with_value(script, place, value))
    return job.but(argv=_with_value(job.argv, place, value))


def _add(job: Submission, edit: Edit, value: str, *, in_script: bool) -> Submission:
    script = job.parsed_script if in_script else None
    if (
        script is not None
        and edit.component < len(script.components)
        and _has_room(script, edit.component)
    ):
        return job.with_script(
            scripts.with_option(script, edit.component, edit.name, value or None)
        )
    starts = job.command_line.starts
    at = starts[min(edit.component, len(starts) - 1)]
    word = f"--{edit.name}={value}" if value else f"--{edit.name}"
    return job.but(argv=(*job.argv[:at], word, *job.argv[at:]))


def _has_room(script: Script, component: int) -> bool:
    """Whether an #SBATCH line can be added without changing what the script does."""
    if script.components[component].has_lines:
        return True
    return script.interpreter.rstrip("0123456789.") in _HASH_COMMENTS


def _remove(job: Submission, edit: Edit) -> Submission:
    """Take the option away wherever it is set: what a stronger place hid would come to light."""
    while True:
        setting = job.request.components[edit.component].settings.get(edit.name)
        if setting is None:
            return job
        place = setting.place
        if setting.source is Source.ENVIRONMENT:
            job = job.but(
                environ={name: value for name, value in job.environ.items() if name != place}
            )
        elif isinstance(place, Directive):
            script = job.parsed_script
            assert script is not None
            job = job.with_script(scripts.without(script, place))
        else:
            assert isinstance(place, Occurrence)
            job = job.but(argv=without(job.argv, [place]))


def without(argv: Sequence[str], occurrences: Sequence[Occurrence]) -> tuple[str, ...]:
    """Return the command line without these options (of `split_command_line` for the same
    `argv`).
    """
    words: list[str | None] = list(argv)
    for occurrence in sorted(occurrences, key=lambda o: (o.at, o.start), reverse=True):
        word = words[occurrence.at]
        assert word is not None
        if occurrence.start == 0:
            words[occurrence.at] = None
        else:
            ends_here = occurrence.value is not None and occurrence.value_at == occurrence.at
            letters = word[: occurrence.start] + ("" if ends_here else word[occurrence.start + 1 :])
            words[occurrence.at] = None if letters == "-" else letters
        if occurrence.value is not None and occurrence.value_at != occurrence.at:
            words[occurrence.value_at] = None
    return tuple(word for word in words if word is not None)


def _with_value(argv: Sequence[str], occurrence: Occurrence, value: str) -> tuple[str, ...]:
    if occurrence.value is None:
        raise EditError(
            f"{occurrence.typed} has no value on the command line that could be changed"
        )
    words = list(argv)
    words[occurrence.value_at] = words[occurrence.value_at][: occurrence.value_start] + value
    return tuple(words)
