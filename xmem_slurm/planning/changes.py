"""What makes a job one of its candidates? Its request, the launching command, variables and
arguments.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xmem_slurm.planning.asking import asking
from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.planning.methods import EXPANDABLE
from xmem_slurm.planning.trainers import trainer_of
from xmem_slurm.rewriting import launch
from xmem_slurm.rewriting.launch import Processes
from xmem_slurm.site.schema import Site
from xmem_slurm.slurm.submission import Submission

_ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""The name that every torch reads; one that a job has under the newer PYTORCH_ALLOC_CONF goes
before it there."""


def changed(base: Base, candidate: Candidate, site: Site) -> Submission:
    """Return the job as it trains that way, asking for as many GPUs, of whichever kind.

    Raises:
        UsageError: it cannot be told to.
    """
    tasks = base.tasks(candidate.per_node, candidate.nodes)
    job = asking(base.job, candidate.per_node, candidate.nodes, tasks, site.dialect.options)
    variables, arguments = variables_for(base, candidate), arguments_for(base, candidate)
    before = Processes(base.nodes, base.ranks // base.nodes)
    after = Processes(candidate.nodes, candidate.per_node)
    other_gpus = not base.not_scaled and base.job.request.gpus_per_node != candidate.per_node
    if variables or arguments or before != after or other_gpus:
        assert job.script is not None
        command = base.started_by(job.script)
        script = launch.changed(
            *(job.script, command, (before, after)),
            variables=variables,
            arguments=arguments,
            other_gpus=other_gpus,
        )
        job = job.but(script=script)
    return job


def variables_for(base: Base, candidate: Candidate) -> dict[str, str]:
    """Return the variables with which it trains that way."""
    variables = dict(trainer_of(base).variables(candidate))
    if candidate.expandable:
        allocator_settings = base.job.environ.get(_ALLOCATOR, "")
        variables[_ALLOCATOR] = ",".join(filter(None, [allocator_settings, EXPANDABLE]))
    return variables


def arguments_for(base: Base, candidate: Candidate) -> Mapping[str, str]:
    """Return the arguments with which it trains that way."""
    arguments = dict(trainer_of(base).arguments(candidate))
    if base.deepspeed is not None:
        for path in files_for(base, candidate):
            arguments[base.deepspeed.option] = str(path)
    return arguments


def files_for(base: Base, candidate: Candidate) -> Mapping[Path, bytes]:
    """Return the files that have to be there for it to train that way."""
    config = deepspeed_config(base, candidate)
    if base.deepspeed is None or config == base.deepspeed.config:
        return {}
    return dict([base.deepspeed.copy(config)])


def deepspeed_config(base: Base, candidate: Candidate) -> Mapping[str, Any]:
    """Return what DeepSpeed's file says of a way, the user's own where it says nothing else; {}
    without such a file.
    """
    if base.deepspeed is None:
        return {}
    micro_batch = candidate.micro_batch or base.training.micro_batch
    changed = base.deepspeed.changed(
        candidate.method, micro_batch, candidate.accumulation, candidate.gpus
    )
    return base.deepspeed.in_bf16(changed) if candidate.bf16 else changed


def what_changes(base: Base, candidate: Candidate) -> list[str]:
    """Say what of the training itself is another that way."""
    changes = list(trainer_of(base).changes(candidate))
    if candidate.data_ranks != base.data_ranks:
        changes.append("which samples are in which batch: as many processes draw them")
    if candidate.tensor != base.training.tensor:
        changes.append("sums within a layer are made of parts: they round otherwise")
    if candidate.bf16:
        precision = {"fp16": "fp16 and its loss scaling"}.get(base.training.precision, "fp32")
        changes.append(
            f"layers compute in bf16 in place of {precision}: that rounds otherwise, and may train "
            "otherwise"
        )
    if base.batch and candidate.batch != base.batch:
        changes.append(f"the samples of an optimizer step: {candidate.batch} for {base.batch}")
    return changes
