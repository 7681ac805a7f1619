"""The estimate as one JSON object, for programs. Schema version 1; sizes in bytes.

The models below are the schema; docs/estimate.schema.json is the same for others, kept equal by a
test. Within a schema version fields are added, never changed or taken away.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from xmem_slurm import __version__
from xmem_slurm.report import largest
from xmem_slurm.report.options import OptionOutlook, outlooks
from xmem_slurm.sizing import host_memory
from xmem_slurm.sizing.estimate import RankEstimate
from xmem_slurm.sizing.sizing import Advice, Sizing
from xmem_slurm.state import own_files
from xmem_slurm.trace import Category

SCHEMA_VERSION: Literal[1] = 1

_Bytes = Annotated[int, Field(ge=0)]


class JsonPart(BaseModel):
    """Made of a dict, or of the attributes of the same names that an object has."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class Group(JsonPart):
    """Blocks that were allocated when the most was, alike and asked for in one place.

    `line` of `file` is the innermost one outside of torch; of what the backward pass allocated,
    that of the forward operator, and `function` is the backward node. `module` is the name of the
    nn.Module that was being called, a `*` for the numbers in which theirs differ. Null is what is
    not known.
    """

    blocks: Annotated[int, Field(ge=1)]
    bytes_each: _Bytes
    category: Category
    phase: str
    module: str | None
    file: str | None
    line: int | None
    function: str | None


class Counted(JsonPart):
    """So many were seen, of how many; null where that is not known."""

    done: int | None
    of: int | None

    @model_validator(mode="before")
    @classmethod
    def _of_pair(cls, pair: Any) -> Any:
        return dict(zip(("done", "of"), pair, strict=True)) if isinstance(pair, tuple) else pair


class Phase(JsonPart):
    """An optimizer step, counted from 1, that was not like those before it, and how so."""

    step: int
    what: str


class Seen(JsonPart):
    """What of the script ran. `end`: it came to its own end.

    `batches` are those of the last loop over training data, those included that were only read to
    see their size; `evaluation` those of the last loop over data without training, null where there
    was none. `epochs` are loops over training data: those that were run whole, of all that were
    seen; the others were cut short.
    """

    end: bool
    batches: Counted | None
    evaluation: Counted | None
    epochs: Counted | None
    checkpoints: int
    phases: list[Phase]


class Rank(JsonPart):
    """One process of the job. `breakdown` is what was allocated when the most was, by category; it
    adds up to it.

    `fits_in_bytes` is the least that torch's allocator must be able to have for the process to run
    well; without a limit it reserves `peak_reserved_bytes`, fragments that the process can do
    without included. `bound_bytes` of it are there only for the case that libraries choose on the
    GPU what takes the most workspace. `host_bytes` is host memory that the process and the workers
    of its data loaders held, mapped files and CUDA's libraries not included. `largest` are the
    blocks that made up the most of it, largest first. `seen` is null for the profile engine.
    """

    rank: int
    peak_reserved_bytes: _Bytes
    peak_allocated_bytes: _Bytes
    fits_in_bytes: _Bytes
    bound_bytes: _Bytes = 0
    outside_allocator_bytes: _Bytes
    required_bytes: _Bytes
    host_bytes: _Bytes = 0
    breakdown: dict[Category, _Bytes]
    steps: Annotated[int, Field(ge=0)]
    growing: bool
    seen: Seen | None
    largest: list[Group]


class OnHost(JsonPart):
    """What the job takes of a node's host memory: as many processes as it has there, each of which
    holds as much as the largest that was run (`host_bytes`).

    `for_cuda_bytes` is what CUDA takes in them on top of that, at most; no dry run sees it.
    `requested_bytes` is what the job asks for, null where it leaves that to the site.
    """

    processes: Annotated[int, Field(ge=1)]
    held_bytes: _Bytes
    for_cuda_bytes: _Bytes
    requested_bytes: _Bytes | None


class Confidence(JsonPart):
    """How sure the estimate is; the reasons are why it is not surer."""

    level: Literal["high", "medium"]
    reasons: list[str]


class Promise(JsonPart):
    """With what probability `required_bytes` is enough, for runs like the `runs` measured, of
    `models` models.

    `probability` is null where nothing like this was measured and the margin is a prior. `held_out`
    is the share of a model's runs that a margin found on all other models covers.
    """

    probability: float | None
    runs: Annotated[int, Field(ge=0)]
    models: Annotated[int, Field(ge=0)]
    held_out: float | None


class Failure(JsonPart):
    """The first request that an option cannot serve, and what was allocated then."""

    rank: int
    requested_bytes: _Bytes
    allocated_bytes: _Bytes
    phase: str


class Option(JsonPart):
    """One GPU option, in order of preference.

    `fits` is null where it was not tried: an option before it fits, or no time was left.
    `headroom_bytes` is what is left of the memory of the GPU after what the job needs; never less
    than 0 where it fits.
    `short_steps` are the steps that would lack memory although they only repeat others, where they
    are too many for the option to be said to fit.
    """

    name: str
    capacity_bytes: _Bytes
    fits: bool | None
    headroom_bytes: int
    first_failure: Failure | None
    short_steps: Annotated[int, Field(ge=0)]


class AdvisedChange(JsonPart):
    """A change to the job that was tried in a dry run of its own, on the largest option that is too
    small without it.

    `required_bytes` and `fits` are null where it could not be tried; `why_not` then says why.
    """

    option: str
    change: str
    required_bytes: _Bytes | None
    fits: bool | None
    why_not: str | None


class Report(JsonPart):
    """What `xmem-slurm estimate --json` prints. `required_bytes` is for the rank that needs the
    most, margin included.

    `uses_up_to_bytes` is what the job takes of a GPU that has room for everything, without a
    margin. `choice` is null where no option is large enough, and `host_per_node` in what earlier
    versions wrote. `date` is when it was estimated, by `version` of this program, and `command` the
    words of the process that needs the most.
    """

    schema_version: Literal[1]
    version: str
    date: AwareDatetime | None
    command: list[str]
    engine: str
    torch_version: str
    gpu: str
    ranks: Annotated[list[Rank], Field(min_length=1)]
    required_bytes: _Bytes
    uses_up_to_bytes: _Bytes
    margin_bytes: _Bytes
    host_per_node: OnHost | None = None
    promise: Promise
    confidence: Confidence
    options: list[Option]
    choice: str | None
    advice: list[AdvisedChange]
    wall_seconds: Annotated[float, Field(ge=0)]


def estimate_object(sizing: Sizing) -> dict[str, Any]:
    """Return what `xmem-slurm estimate --json` prints."""
    estimate = sizing.estimate
    report = {
        "schema_version": SCHEMA_VERSION,
        "version": __version__,
        "date": None if sizing.made is None else datetime.fromtimestamp(int(sizing.made), UTC),
        "command": list(estimate.largest.trace.argv),
        "engine": estimate.engine,
        "torch_version": estimate.largest.trace.torch_version,
        "gpu": estimate.gpu_name,
        "ranks": [_rank(rank) for rank in estimate.ranks],
        "required_bytes": estimate.required_bytes,
        "uses_up_to_bytes": estimate.uses_up_to_bytes,
        "margin_bytes": estimate.largest.margin_bytes,
        "host_per_node": _on_host(sizing),
        "promise": estimate.largest.margin,
        "confidence": {"level": estimate.confidence, "reasons": list(estimate.reasons)},
        "options": [_option(option) for option in outlooks(sizing)],
        "choice": sizing.placement.choice,
        "advice": [_change(advice) for advice in sizing.advice],
        "wall_seconds": round(sizing.seconds, 3),
    }
    return Report.model_validate(report).model_dump(mode="json")


def schema() -> dict[str, Any]:
    """Return the object's JSON Schema (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Report.model_json_schema()}


def write(path: Path, sizing: Sizing) -> None:
    """Write the object to a file."""
    own_files.write_for_user(path, (json.dumps(estimate_object(sizing), indent=2) + "\n").encode())


def _rank(rank: RankEstimate) -> dict[str, Any]:
    """Return one process of the job, as programs get it."""
    return {
        "rank": rank.trace.rank,
        "peak_reserved_bytes": rank.peak_reserved_bytes,
        "peak_allocated_bytes": rank.replay.peak_allocated_bytes,
        "fits_in_bytes": rank.fits_in_bytes,
        "bound_bytes": rank.bound_bytes,
        "outside_allocator_bytes": rank.outside_allocator_bytes,
        "required_bytes": rank.required_bytes,
        "host_bytes": rank.trace.host_bytes,
        "breakdown": {category: rank.breakdown.get(category, 0) for category in Category},
        "steps": rank.trace.steps,
        "growing": rank.trace.growing,
        "seen": rank.trace.seen,
        "largest": [_group(group) for group in largest.at_peak(rank)[: largest.MOST_GROUPS]],
    }


def _on_host(sizing: Sizing) -> dict[str, Any]:
    memory = host_memory.of_job(sizing.estimate, sizing.host_requested)
    return {
        "processes": memory.processes,
        "held_bytes": memory.needed,
        "for_cuda_bytes": memory.for_cuda,
        "requested_bytes": memory.requested or None,
    }


def _group(group: largest.Group) -> dict[str, Any]:
    site = {name: value or None for name, value in group.site._asdict().items()}
    blocks = {"blocks": len(group.numbers), "bytes_each": group.bytes_each}
    return {**blocks, "category": group.category, "phase": group.phase, **site}


def _change(advice: Advice) -> dict[str, Any]:
    needed = None if advice.estimate is None else advice.estimate.required_bytes
    tried = {"required_bytes": needed, "fits": None if needed is None else advice.fits}
    return {
        "option": advice.option,
        "change": advice.change,
        **tried,
        "why_not": advice.why_not or None,
    }


def _option(option: OptionOutlook) -> dict[str, Any]:
    """Return one GPU option, as programs get it."""
    return {
        "name": option.name,
        "capacity_bytes": option.gpu.total_bytes,
        "fits": option.fits,
        "headroom_bytes": option.headroom_bytes,
        "first_failure": option.failure,
        "short_steps": option.short_steps,
    }
