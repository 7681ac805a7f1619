"""Change a job's request to the GPU option chosen for it, where and as it was written, and nothing
else.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from xmem_slurm import __version__, resources
from xmem_slurm.errors import UsageError
from xmem_slurm.rewriting import dialect, job_steps, sharing
from xmem_slurm.rewriting.sharing import Grant
from xmem_slurm.site.schema import Dialect, GpuOption
from xmem_slurm.slurm.body import Step
from xmem_slurm.slurm.edit import Edit, EditError, apply
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.script import Script
from xmem_slurm.slurm.submission import Submission

_ANY = Dialect()


class Change(NamedTuple):
    """One option that was changed; `old` is None where it was not set before, `new` where it was
    taken away.
    """

    name: str
    old: str | None
    new: str | None
    where: str
    component: int = 0
    command: str = ""
    """`srun ` for an option of the job's own steps."""

    def __str__(self) -> str:
        """Write it as a person would type it."""
        before, after = (
            f"--{self.name}={v}" if v is not None else f"no --{self.name}"
            for v in (self.old, self.new)
        )
        return f"{self.command}{before} -> {after}"


def rewrite(
    job: Submission,
    option: GpuOption,
    reason: str,
    granted: Grant | None = None,
    components: Sequence[int] = (0,),
    *,
    spelled: Dialect = _ANY,
    templates: Path | None = None,
    in_script: bool = True,
    written: Submission | None = None,
) -> tuple[Submission, Sequence[Change]]:
    """Return the job with these components asking for `option`, and what was changed; the same job
    if they do already.

    How it is asked for is up to the site's dialect; of a share, what was `granted` of it.
    `templates` is the site's own folder of templates. Without `in_script` what the script says is
    overruled on the command line, and it stays as it is, where that can be: the job's own steps are
    changed in the script alone. `written` is the job as its user has it, where more than this was
    changed in it: the comment in the script says all.

    Raises:
        UsageError: the request cannot be changed without changing something else; the message says
            what.
    """

    def changed(*, typed: bool) -> tuple[Sequence[Edit], Submission]:
        requests = ((index, job.request.alone(index)) for index in components)
        entry = granted.entry if granted is not None else None
        edits = [
            edit._replace(component=index)
            for index, request in requests
            for edit in dialect.edits(request, option, spelled, entry, typed=typed)
            # It would be the next component's, too (Option.carried).
            if edit.name != "mem" or not job.request.other_components
        ]
        if not in_script:
            with suppress(EditError):
                return edits, apply(edits, job, in_script=False)
        return edits, apply(edits, job)

    if granted is not None:
        for index in components:
            sharing.check_exported(job.request.components[index], granted.variables)
    edits, edited = changed(typed=True)
    step = job_steps.in_the_way(job, edited, components, shared=granted is not None)
    if step is not None:
        _check_untyped_will_do(
            [job.request.components[index] for index in components], option, granted, step
        )
        edits, edited = changed(typed=False)
    if not edits and granted is None:
        return job, []
    changes = _changes(job, edited, edits)
    if step is None:
        edited, steps = job_steps.retyped(edited, components)
        changes += [Change(s.option, s.old, s.new, _lines(s.lines), command="srun ") for s in steps]
    if granted is not None:
        edited = edited.but(environ={**edited.environ, **granted.variables})
    if edited.script != job.script:
        edited = _with_record(edited, _since(written, edited, changes), reason, templates)
    return edited, changes


def with_more_memory(job: Submission, edit: Edit, *, in_script: bool) -> tuple[Submission, Change]:
    """Return an ordinary job that asks for so much host memory, and that change; no comment says so
    yet (`recorded`).

    Raises:
        EditError: it cannot be changed without changing something else.
    """
    edited = None
    if not in_script:
        with suppress(EditError):
            edited = apply([edit], job, in_script=False)
    edited = edited or apply([edit], job)
    return edited, _changes(job, edited, [edit])[0]


def recorded(
    edited: Submission, written: Submission, reason: str, templates: Path | None
) -> Submission:
    """Return a job of one component with a comment in its script that says what of it was changed,
    if it was.
    """
    if edited.script == written.script:
        return edited
    return _with_record(edited, _since(written, edited), reason, templates)


def _with_record(
    edited: Submission, changes: Sequence[Change], reason: str, templates: Path | None
) -> Submission:
    script = edited.parsed_script
    if script is None:
        return edited
    listed = "; ".join(map(str, changes))  # none where its commands alone were changed
    record = ": ".join(filter(None, [f"xmem-slurm {__version__}", listed, reason]))
    return edited.but(script=_render(script, record, templates))


def _check_untyped_will_do(
    requests: Sequence[Request], option: GpuOption, granted: Grant | None, step: Step
) -> None:
    """Make sure that the option can be asked for by its feature, without the type that a step would
    not fit.
    """
    typed = any(request.gpu_types for request in requests)
    if granted is not None or option.constraint is None or typed:
        raise UsageError(
            f"line {step.line} of {step.file}: {step.text} asks for a GPU itself, and would not "
            "fit a changed request;"
            " leave it to the job's own"
        )


def _lines(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]} of the script"
    return f"{len(numbers)} lines of the script, the first of them {numbers[0]}"


def _differing(before: Submission, after: Submission) -> list[Edit]:
    """Return the options of a job of one component that are others now."""
    old, new = before.request, after.request
    names = dict.fromkeys((*old.settings, *new.settings))
    return [Edit(name, new.value(name)) for name in names if old.value(name) != new.value(name)]


def _since(
    written: Submission | None, edited: Submission, latest: Sequence[Change] = ()
) -> Sequence[Change]:
    """Return all that was changed in a job since its user wrote it: the `latest` alone, or more."""
    if written is None:
        return latest
    in_steps = (change for change in latest if change.command)
    return [*_changes(written, edited, _differing(written, edited)), *in_steps]


def _changes(before: Submission, after: Submission, edits: Sequence[Edit]) -> list[Change]:
    old, new = before.request.components, after.request.components
    changes = []
    for edit in edits:
        old_setting, new_setting = (
            part[edit.component].settings.get(edit.name) for part in (old, new)
        )
        setting = new_setting or old_setting
        assert setting is not None
        value = new_setting.value or "" if new_setting is not None else None
        old_value = old_setting.value if old_setting is not None else None
        changes.append(Change(edit.name, old_value, value, setting.where, edit.component))
    return changes


def _render(script: Script, record: str, templates: Path | None) -> bytes:
    """Put the edited script through its template; bytes that are not UTF-8 come out as they went
    in.
    """
    end = max(component.insert_at for component in script.components)
    head, body = (
        part.decode(errors="surrogateescape") for part in (script.data[:end], script.data[end:])
    )
    values = {"head": head, "record": record, "body": body}
    rendered = resources.render(
        resources.template_places(site_folder=templates), "batch.sh.j2", values
    )
    return rendered.encode(errors="surrogateescape")
