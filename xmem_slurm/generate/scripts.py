"""Which batch script runs this command here? A template is filled in, run dry, and asks for the GPU
that fits.

A script whose job cannot be run dry (a container, data that are not here, a machine without a
sandbox) asks for the largest GPU that it can get, and says so; there is none for a command that
cannot start anywhere. The points of a sweep that need the same GPU make one array.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from xmem_slurm.errors import NoEstimate, UsageError, XmemError
from xmem_slurm.generate import templates
from xmem_slurm.generate.templates import Template
from xmem_slurm.report import terminal
from xmem_slurm.rewriting.rewrite import rewrite
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing.demand import demand_of
from xmem_slurm.sizing.placement import candidates
from xmem_slurm.sizing.sizing import Sizing
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.submission import Submission

SCRIPT = "job.sh"
"""What a script that is only looked at is called."""

Size = Callable[[Sequence[Submission]], Sequence[Sizing | XmemError]]
"""Runs jobs dry and places each, or says why that cannot be done."""


@dataclass(frozen=True)
class Target:
    """Where the job will be submitted: the site, the GPU of each of its options, and the
    environment.
    """

    site: Site
    gpus: Mapping[str, Gpu]
    environ: Mapping[str, str]


@dataclass(frozen=True)
class Generated:
    """A script that asks for the GPU option `option`, and what is told about it."""

    script: str
    option: str
    lines: Sequence[str]


@dataclass(frozen=True)
class _Need:
    option: str
    required_bytes: int
    reason: str
    lines: Sequence[str]


def generate(
    template: Template,
    settings: Mapping[str, int | str],
    points: Sequence[tuple[str, Sequence[str]]],
    target: Target,
    size: Size,
) -> list[Generated]:
    """Return the scripts that run the commands of `points`, which have names: in a sweep one for
    each GPU option.

    Raises:
        UsageError: the template has a mistake, a template without an array is given several
            commands, no nodes of the site can run the job, or a command cannot start.
    """
    if len(points) > 1 and not template.array:
        raise UsageError(
            f"template {template.name} runs one command; --grid and --csv are for arrays (sweep)"
        )
    groups: dict[str, list[tuple[Sequence[str], _Need]]] = {}
    drafts = [draft(template, settings, command, target.environ) for _, command in points]
    for (label, command), job, sized in zip(points, drafts, size(drafts), strict=True):
        need = _need(job, target, sized)
        need = replace(need, lines=[f"{label}: {line}" if label else line for line in need.lines])
        groups.setdefault(need.option, []).append((command, need))
    return [_generated(template, settings, group, target) for group in groups.values()]


def draft(
    template: Template,
    settings: Mapping[str, int | str],
    command: Sequence[str],
    environ: Mapping[str, str],
) -> Submission:
    """Return the job of one command, which asks for no kind of GPU yet."""
    return _job(templates.render(template, settings, [command]), environ)


def _job(text: str, environ: Mapping[str, str]) -> Submission:
    return Submission((SCRIPT,), environ, text.encode())


def _need(job: Submission, target: Target, sized: Sizing | XmemError) -> _Need:
    """Return the option that a script asks for, and why; the largest there is where no need is
    known or none fits.

    Raises:
        UsageError: its command cannot start, or no nodes of the site can run it.
    """
    request = job.request
    if isinstance(sized, NoEstimate) and sized.fails:
        raise UsageError(
            f"no script was made, as the command is likely to fail on any GPU: {sized}"
        )
    if isinstance(sized, XmemError):
        largest = _largest(request, target)
        line = " ".join(str(sized).split())  # it becomes a comment of the script: one line
        reason = f"not estimated: {line}; {largest} is the largest GPU that this job can get"
        return _Need(largest, 0, reason, [reason])
    lines, required = terminal.estimate_lines(sized.estimate), sized.estimate.required_bytes
    if sized.placement.choice is None:
        largest = _largest(request, target)
        reason = f"no GPU that this job can get is large enough; {largest} is the largest"
        return _Need(largest, required, reason, [*lines, reason])
    return _Need(
        sized.placement.choice, required, terminal.reason(sized), [*lines, terminal.reason(sized)]
    )


def _largest(request: Request, target: Target) -> str:
    names = candidates(demand_of(request, target.site), target.site, target.gpus)
    if not names:
        raise UsageError(
            f"site {target.site.name} has no {request.nodes or 1} nodes of one kind with "
            f"{request.gpus_per_node} GPUs"
            " each that this job can get"
        )
    return max(names, key=lambda name: target.gpus[name].total_bytes)


def _generated(
    template: Template,
    settings: Mapping[str, int | str],
    group: Sequence[tuple[Sequence[str], _Need]],
    target: Target,
) -> Generated:
    """Return the script of the commands that need the same; the one that needs the most speaks for
    them.
    """
    needs = [need for _, need in group]
    need = max(needs, key=attrgetter("required_bytes"))
    failed: list[str] = []
    for other_need in needs:
        if other_need is not need and not other_need.required_bytes:
            failed += other_need.lines
    text = templates.render(template, settings, [command for command, _ in group])
    site = target.site
    ready, _ = rewrite(
        _job(text, target.environ),
        site.option[need.option],
        need.reason,
        spelled=site.dialect,
        templates=site.templates,
    )
    assert ready.script is not None
    return Generated(ready.script.decode(), need.option, [*need.lines, *failed])
