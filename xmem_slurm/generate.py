"""Which batch script runs this command here? A template is filled in, run dry, and asks for the GPU that fits.

A script whose job cannot be run dry (several GPUs, a container that is not here) asks for the largest GPU that it can
get, and says so. The points of a sweep are sized one by one, and those that need the same GPU make one array.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from xmem_slurm import job_templates
from xmem_slurm.errors import NoEstimate, UsageError
from xmem_slurm.job_templates import Template
from xmem_slurm.placement import candidates
from xmem_slurm.report import terminal
from xmem_slurm.rewrite import rewrite
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing import Sizing, demand_of
from xmem_slurm.slurm.edit import Job
from xmem_slurm.slurm.request import Request

SCRIPT = "job.sh"
"""What a script that is only looked at is called."""

Size = Callable[[Job], Sizing]
"""Runs a job dry and places it; raises NoEstimate where that cannot be done."""


@dataclass(frozen=True)
class Target:
    """Where the job will be submitted: the site, the GPU of each of its options, and the environment."""

    site: Site
    gpus: Mapping[str, Gpu]
    environ: Mapping[str, str]

    def without_shares(self) -> "Target":
        """Return the same without options that are shares: those need variables that a script alone cannot carry."""
        whole = {name: option for name, option in self.site.option.items() if option.share is None}
        return Target(self.site.model_copy(update={"option": whole}), self.gpus, self.environ)


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
    commands: Sequence[Sequence[str]],
    target: Target,
    size: Size,
) -> list[Generated]:
    """Return the scripts that run `commands`: one, or in a sweep one for each GPU option that is needed.

    Raises:
        UsageError: the template has a mistake, a template without an array is given several commands, or no nodes of
            the site can run the job.
    """
    if len(commands) > 1 and not template.array:
        raise UsageError(f"template {template.name} runs one command; --grid and --csv are for arrays (sweep)")
    needs: dict[str, _Need] = {}
    groups: dict[str, list[Sequence[str]]] = {}
    for command in commands:
        draft = _job(job_templates.render(template, settings, [command]), target)
        need = _need(draft, target, size)
        groups.setdefault(need.option, []).append(command)
        # The point that needs the most speaks for its group.
        needs[need.option] = max(needs.get(need.option, need), need, key=attrgetter("required_bytes"))
    return [_generated(template, settings, group, needs[name], target) for name, group in groups.items()]


def _job(text: str, target: Target) -> Job:
    return Job((SCRIPT,), target.environ, text.encode())


def _need(draft: Job, target: Target, size: Size) -> _Need:
    request = draft.request()
    try:
        if not _is_single(request):
            raise NoEstimate("only a job of one process on one GPU can be estimated yet")
        sized = size(draft)
    except NoEstimate as error:
        largest = _largest(request, target)
        told = " ".join(str(error).split())  # it becomes a comment of the script: one line
        reason = f"not estimated: {told}; {largest} is the largest GPU that this job can get"
        return _Need(largest, 0, reason, [reason])
    lines, required = terminal.estimate_lines(sized.estimate), sized.estimate.required_bytes
    if sized.placement.choice is None:
        largest = _largest(request, target)
        reason = f"no GPU that this job can get is large enough; {largest} is the largest"
        return _Need(largest, required, reason, [*lines, reason])
    return _Need(sized.placement.choice, required, terminal.reason(sized), [*lines, terminal.reason(sized)])


def _is_single(request: Request) -> bool:
    return request.gpus_total == 1 and request.ntasks == 1 and (request.nodes or 1) == 1


def _largest(request: Request, target: Target) -> str:
    """Return the largest GPU option that as many nodes have as the job wants."""
    wanted = request.nodes or 1
    names = [
        name
        for name in candidates(demand_of(request, target.site), target.site, target.gpus)
        if sum(node_count(group.names) for group in target.site.nodes if name in group.gpus) >= wanted
    ]
    if not names:
        raise UsageError(
            f"site {target.site.name} has no {wanted} nodes of one kind with {request.gpus_per_node} GPUs each"
            " that this job can get"
        )
    return max(names, key=lambda name: target.gpus[name].total_bytes)


def node_count(host_list: str) -> int:
    """Return how many nodes a Slurm host list stands for: 4 for `l[1-2,07],m3`."""
    count = 0
    for item in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", host_list):
        ranges = [bracket.split(",") for bracket in re.findall(r"\[([^\]]*)\]", item)]
        count += math.prod(sum(_span(text) for text in each) for each in ranges)
    return count


def _span(text: str) -> int:
    first, _, last = text.partition("-")
    return int(last or first) - int(first) + 1


def _generated(
    template: Template,
    settings: Mapping[str, int | str],
    commands: Sequence[Sequence[str]],
    need: _Need,
    target: Target,
) -> Generated:
    text = job_templates.render(template, settings, commands)
    ready, _ = rewrite(_job(text, target), target.site.option[need.option], need.reason)
    assert ready.script is not None
    return Generated(ready.script.decode(), need.option, need.lines)
