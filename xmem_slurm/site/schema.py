"""What a site file and the GPU catalogue may say, and nothing else: every unknown key is an error that names it.

The GPU catalogue (`site-config/gpus.toml`) holds facts about GPU models, true anywhere. A site file holds facts about
one cluster: which GPU options its users may ask for, how a request for each is spelled, and on which nodes they are.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Bytes = Annotated[int, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Gpu(_Strict):
    """One GPU model, or one MIG profile of a model, as CUDA shows it to a job.

    `total_bytes` is cudaDeviceProp.totalGlobalMem (what torch can share out, context included), not the figure on the
    box. `context_bytes` is what a process holds outside torch's allocator: the CUDA context and loaded kernels.
    Each figure has its source beside it; `context_measured` is false where it is an upper bound, not a measurement.
    """

    description: str
    capability: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    multiprocessors: Annotated[int, Field(gt=0)]
    total_bytes: Bytes
    total_source: str
    context_bytes: Bytes
    context_source: str
    context_measured: bool = False
    mig_of: Name | None = None
    mig_profile: str | None = None

    @model_validator(mode="after")
    def _mig_is_whole(self) -> "Gpu":
        if (self.mig_of is None) != (self.mig_profile is None):
            raise ValueError("mig_of and mig_profile go together")
        return self


class Catalogue(_Strict):
    """`gpus.toml`: every GPU model known, by name."""

    schema_version: Literal[1]
    gpu: dict[Name, Gpu]

    @model_validator(mode="after")
    def _mig_parents_exist(self) -> "Catalogue":
        for name, gpu in self.gpu.items():
            if gpu.mig_of is not None and gpu.mig_of not in self.gpu:
                raise ValueError(f"gpu.{name}: mig_of names {gpu.mig_of!r}, which is not in the catalogue")
        return self


class Option(_Strict):
    """One thing a job can ask for: a GPU type of this site.

    `gpu` names the catalogue's entry; `type` is the GRES type of the site (`a100_40` in `--gres=gpu:a100_40:1`), absent
    where the site has untyped GPUs and selects them by feature. `constraint` is AND-ed to the user's own.
    `cost` ranks the options that fit: the cheapest is taken, then the smallest.
    """

    gpu: Name
    type: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    constraint: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:%-]+$")] | None = None
    cost: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _can_be_asked_for(self) -> "Option":
        if self.type is None and self.constraint is None:
            raise ValueError("an option needs a GRES type, a constraint, or both: else it cannot be asked for")
        return self


class Nodes(_Strict):
    """A group of equal nodes: `names` is a Slurm host list; `gpus` maps an option's name to how many a node has."""

    names: str
    cpus: Annotated[int, Field(gt=0)]
    memory_mib: Annotated[int, Field(gt=0)]
    features: tuple[str, ...] = ()
    gpus: dict[Name, Annotated[int, Field(gt=0)]] = {}
    partitions: Annotated[tuple[Name, ...], Field(min_length=1)]


class Partition(_Strict):
    """A partition: `default` marks the one a job gets when it names none."""

    default: bool = False
    max_time: str = "UNLIMITED"


class Policy(_Strict):
    """What may be changed. `keep_type` pins a GPU type that the user typed; `rewrite = false` only advises."""

    rewrite: bool = True
    keep_type: bool = False


class Site(_Strict):
    """A site file, whole."""

    schema_version: Literal[1]
    name: Name
    policy: Policy = Policy()
    option: Annotated[dict[Name, Option], Field(min_length=1)]
    nodes: Annotated[tuple[Nodes, ...], Field(min_length=1)]
    partition: Annotated[dict[Name, Partition], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_resolve(self) -> "Site":
        for group in self.nodes:
            for option in group.gpus:
                if option not in self.option:
                    raise ValueError(f"nodes {group.names}: gpus names {option!r}, which is not an option")
            for partition in group.partitions:
                if partition not in self.partition:
                    raise ValueError(f"nodes {group.names}: partition {partition!r} is not defined")
        if sum(p.default for p in self.partition.values()) > 1:
            raise ValueError("more than one partition has default = true")
        return self
