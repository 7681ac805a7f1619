"""Change a job's request to the GPU option chosen for it, where and as it was written, and nothing else."""

from collections.abc import Sequence
from typing import NamedTuple

import jinja2

from xmem_slurm import __version__, resources, sharing
from xmem_slurm.errors import UsageError
from xmem_slurm.sharing import Grant
from xmem_slurm.site.schema import Option
from xmem_slurm.slurm import script as scripts
from xmem_slurm.slurm.body import gpu_steps
from xmem_slurm.slurm.constraint import conjoin
from xmem_slurm.slurm.edit import Edit, Job, apply, type_edits
from xmem_slurm.slurm.request import Request


class Change(NamedTuple):
    """One option that was changed; `old` is None where it was not set before, `new` where it was taken away."""

    name: str
    old: str | None
    new: str | None
    where: str
    component: int = 0

    def __str__(self) -> str:
        """Write it as a person would type it."""
        before, after = (f"--{self.name}={v}" if v is not None else f"no --{self.name}" for v in (self.old, self.new))
        return f"{before} -> {after}"


def rewrite(
    job: Job, option: Option, reason: str, granted: Grant | None = None, components: Sequence[int] = (0,)
) -> tuple[Job, Sequence[Change]]:
    """Return the job with these components asking for `option`, and what was changed; the same job if they do already.

    A GPU option with a GRES type is asked for by its type, one without by its node feature, AND-ed to the user's own; a
    share by what was `granted` of it.

    Raises:
        UsageError: the request cannot be changed without changing something else; the message says what.
    """
    request = job.request()
    edits = [
        edit._replace(component=index)
        for index in components
        for edit in _edits(job, request.alone(index), option, granted)
    ]
    if not edits:
        return job, []
    edited = apply(edits, *job)
    if granted is not None:
        edited = edited._replace(environ={**edited.environ, **granted.variables})
    changes = _changes(job, edited, edits)
    if edited.script is not None and edited.script != job.script:
        record = f"xmem-slurm {__version__}: {'; '.join(map(str, changes))}: {reason}"
        edited = edited._replace(script=_render(_without_own_lines(edited.script), record))
    return edited, changes


def _edits(job: Job, request: Request, option: Option, granted: Grant | None) -> Sequence[Edit]:
    """Say what to set in the component that asks for `request`.

    Slurm refuses a job step whose GPU request has no type in a job whose request has one. So where a step of the
    script asks for GPUs itself, the type is left off and the option asked for by its feature.
    """
    steps = gpu_steps(job.script.decode(errors="surrogateescape")) if job.script is not None else ()
    if granted is not None and not steps:
        more = _constraint_edits(request.constraint, option) if option.constraint is not None else []
        return [*sharing.edits(request, granted), *more]
    if option.type is not None and not steps:
        more = _constraint_edits(request.constraint, option) if option.both else []
        return [*type_edits(request, option.type), *more]
    if not steps and request.gpu_types:
        raise UsageError(f"a GPU of type {request.gpu_types[0]} is asked for, and the chosen one has no type to ask by")
    if steps and (granted is not None or option.constraint is None or request.gpu_types):
        told = f"line {steps[0].line} of the script: {steps[0].command} --{steps[0].option}={steps[0].value}"
        raise UsageError(
            f"{told} asks for a GPU itself, and would not fit a changed request; leave it to the job's own"
        )
    return _constraint_edits(request.constraint, option)


def _constraint_edits(existing: str | None, option: Option) -> list[Edit]:
    assert option.constraint is not None
    expression = conjoin(existing, option.constraint)
    if expression is None:
        raise UsageError(f"--constraint={existing} cannot be AND-ed with {option.constraint} in Slurm's syntax")
    return [] if expression == existing else [Edit("constraint", expression)]


def _changes(before: Job, after: Job, edits: Sequence[Edit]) -> list[Change]:
    old, new = before.request().components, after.request().components
    found = []
    for edit in edits:
        was, now = (part[edit.component].settings.get(edit.name) for part in (old, new))
        setting = now or was
        assert setting is not None
        value = now.value or "" if now is not None else None
        old_value = was.value if was is not None else None
        found.append(Change(edit.name, old_value, value, setting.where, edit.component))
    return found


def _without_own_lines(script: bytes) -> bytes:
    """Take the #XMEM lines out: they are for us, and have been heeded."""
    return scripts.without_own_lines(scripts.parse(script)).data


def _render(script: bytes, record: str) -> bytes:
    """Put the edited script through its template; bytes that are not UTF-8 come out as they went in."""
    end = max(component.insert_at for component in scripts.parse(script).components)
    environment = jinja2.Environment(  # noqa: S701 - a shell script, not HTML
        loader=jinja2.FileSystemLoader(resources.tree("templates")), undefined=jinja2.StrictUndefined
    )
    head, body = (part.decode(errors="surrogateescape") for part in (script[:end], script[end:]))
    rendered = environment.get_template("batch.sh.j2").render(head=head, record=record, body=body)
    return rendered.encode(errors="surrogateescape")
