"""Which steps of a job would not fit its changed request, and how are its own `srun` lines changed
with it?

Slurm refuses a step that asks for another type of GPU than its job has, or for one where its job
has none. What a job's script or `--wrap` says as plain text can be changed; a script that it
sources or runs is not ours to change.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.slurm import body, script_files
from xmem_slurm.slurm.body import Step
from xmem_slurm.slurm.submission import Submission

_ASKS_FOR_ITSELF = re.compile(
    rb"\bscontrol\b[^\n|;]*\bshow\b[^\n|;]*\bjob|\bsqueue\b[^\n|;]*(%\.?\d*o\b|Command)",
    re.IGNORECASE,
)
"""Slurm's commands that print `Command=`, also as the words of another language's list."""


class Retyped(NamedTuple):
    """One value of one option of srun that became another one, on each of these lines of the
    script.
    """

    option: str
    old: str
    new: str
    lines: Sequence[int]


def text(job: Submission) -> bytes:
    """Return what the job runs: its script, or the command of `--wrap`."""
    if job.script is not None:
        return job.script
    return (job.command_line.wrap or "").encode(errors="surrogateescape")


def is_for_a_shell(job: Submission) -> bool:
    """Whether a shell runs it."""
    script = job.parsed_script
    return script is None or script.interpreter in body.SHELLS


def looks_up_itself(job: Submission) -> bool:
    """Whether the job asks Slurm for the path of its own script, as far as its text tells, and that
    of what it runs.
    """
    return any(
        _ASKS_FOR_ITSELF.search(script) for script in (text(job), *_scripts_run(job).values())
    )


def own_steps(job: Submission) -> Sequence[Step]:
    """Return the steps that the job's script or `--wrap` has itself."""
    return body.gpu_steps(text(job), is_shell=is_for_a_shell(job))


def in_the_way(
    before: Submission, after: Submission, components: Collection[int], *, shared: bool
) -> Step | None:
    """Return the first step that would not fit the changed request of these components, and cannot
    be made to.

    `shared`: they ask for a share of a GPU now, and no step that asks for a GPU fits.
    """
    types, old = _types(after, components), before.request.components
    for step in [*own_steps(before), *_others_steps(before)]:
        indices = [index for index in step.components if index in components]
        lost = any(types[index] is None and old[index].gpu_types for index in indices)
        if indices and (shared or lost or not step.can_have(types)):
            return step
    return None


def retyped(job: Submission, components: Collection[int]) -> tuple[Submission, Sequence[Retyped]]:
    """Let the job's own steps ask for the types that these components ask for; none of them is
    `in_the_way`.
    """
    types = _types(job, components)
    steps = [step for step in own_steps(job) if types[step.components[0]] is not None]
    lines: dict[tuple[str, str, str], list[int]] = {}
    for step in steps:
        new = step.with_type(types[step.components[0]] or "")
        if new != step.value:
            lines.setdefault((step.option, step.value, new), []).append(step.line)
    if not lines:
        return job, []
    changed = body.with_types(text(job), steps, types)
    ready = job.but(script=changed) if job.script is not None else _with_wrap(job, changed)
    return ready, [Retyped(*words, numbers) for words, numbers in lines.items()]


def _types(job: Submission, components: Collection[int]) -> Sequence[str | None]:
    """Return for each component the type of GPU that it asks for; None for those that are not
    meant.
    """
    requests = enumerate(job.request.components)
    return [
        next(iter(request.gpu_types), None) if index in components else None
        for index, request in requests
    ]


def _others_steps(job: Submission) -> Sequence[Step]:
    """Return the steps of the scripts that the job's script sources or runs."""
    steps = (
        (path, step)
        for path, script in _scripts_run(job).items()
        for step in body.gpu_steps(script)
    )
    return [step._replace(file=str(path), start=None) for path, step in steps]


def _scripts_run(job: Submission) -> Mapping[Path, bytes]:
    """Return the shell scripts that the job's script sources or runs, as far as that can be
    told.
    """
    if not is_for_a_shell(job):
        return {}
    return script_files.scripts_run(
        text(job), Path(job.request.chdir or ".").absolute(), job.environ
    )


def _with_wrap(job: Submission, command: bytes) -> Submission:
    wrap = next(
        occurrence
        for occurrence in reversed(job.command_line.first_pass)
        if occurrence.name == "wrap"
    )
    word = job.argv[wrap.value_at][: wrap.value_start] + command.decode(errors="surrogateescape")
    return job.but(argv=(*job.argv[: wrap.value_at], word, *job.argv[wrap.value_at + 1 :]))
