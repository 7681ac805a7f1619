"""What a site file and the GPU catalogue may say, and nothing else: every unknown key is an error
that names it.

The GPU catalogue (`site-config/gpus.toml`) holds facts about GPU models, true anywhere. A site file
holds facts about one cluster: which GPU options its users may ask for, how a request for each is
spelled, and on which nodes they are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from xmem_slurm.site import coverage, places

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Bytes = Annotated[int, Field(gt=0)]
Mib = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
Precision = Literal["bf16", "fp16", "tf32", "fp32", "fp64", "fp8"]
Time = Annotated[
    str, Field(pattern=r"^(UNLIMITED|INFINITE|\d+|\d+:\d+(:\d+)?|\d+-\d+(:\d+){0,2})$")
]
GpuSpelling = Literal[
    "gres", "gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket", "tres-per-task"
]
Command = Literal["sbatch", "srun", "salloc"]
Order = Literal["cost", "memory", "start"]
Stance = Literal["leave", "advise", "refuse"]


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("must be an absolute path")
    return path


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Speed(_Strict):
    """What a GPU model can do at most, by its data sheet; links are those of one GPU, in one
    direction.

    `tflops` are dense, by precision ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8"); 1 GB is 10^9
    bytes.
    """

    tflops: dict[Precision, Positive]
    memory_gb_per_second: Positive
    nvlink_gb_per_second: Annotated[float, Field(ge=0)] = 0.0
    pcie_gb_per_second: Positive
    source: str

    @model_validator(mode="after")
    def _fp32_is_there(self) -> "Speed":
        if "fp32" not in self.tflops:
            raise ValueError("tflops: fp32 is missing, which stands for what a GPU lacks")
        return self

    def times_slower(self, than: "Speed") -> float:
        """Return how many times slower than another it is at the most: at arithmetic in 16 bits or
        at reading its memory. What a job takes of each is its own.
        """
        return max(
            than.half_precision_tflops / self.half_precision_tflops,
            than.memory_gb_per_second / self.memory_gb_per_second,
        )

    @property
    def half_precision_tflops(self) -> float:
        """What training in mixed precision can have: of bf16 and fp16 the faster."""
        return max(self.tflops.get(each, self.tflops["fp32"]) for each in ("bf16", "fp16"))

    def of_part(self, multiprocessors: float, memory: float) -> "Speed":
        """Return that of a MIG instance with these shares of the GPU; instances have no NVLink."""
        tflops = {precision: peak * multiprocessors for precision, peak in self.tflops.items()}
        bandwidth = self.memory_gb_per_second * memory
        return self.model_copy(
            update={
                "tflops": tflops,
                "memory_gb_per_second": bandwidth,
                "nvlink_gb_per_second": 0.0,
            }
        )


NCCL_RANKS = 2
"""With how many processes, one a GPU, a site measures `nccl_bytes`; more take more on some
topologies."""


class Gpu(_Strict):
    """One GPU model, or one MIG profile of a model, as CUDA shows it to a job, under the name
    `cuda_name`.

    `total_bytes` is cudaDeviceProp.totalGlobalMem (what torch can share out, context included), not
    the figure on the box. `context_bytes` is what a process holds outside torch's allocator: the
    CUDA context and loaded kernels; `nccl_bytes` what NCCL's communicators take beside it, None
    where nobody measured it. Each figure has its source beside it; `context_measured` is false
    where it is an upper bound, not a measurement. `speed` is for ranking ways of training, None
    where nobody looked it up.
    """

    description: str
    cuda_name: str
    capability: Annotated[str, Field(pattern=r"^\d+\.\d$")]
    multiprocessors: Annotated[int, Field(gt=0)]
    total_bytes: Bytes
    total_source: str
    context_bytes: Bytes
    context_source: str
    context_measured: bool = False
    nccl_bytes: Bytes | None = None
    mig_of: Name | None = None
    mig_profile: str | None = None
    speed: Speed | None = None

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
                raise ValueError(
                    f"gpu.{name}: mig_of names {gpu.mig_of!r}, which is not in the catalogue"
                )
        return self


class Share(_Strict):
    """A part of a GPU: Slurm hands out `per_gpu` units of each, and several jobs run on one GPU at
    once.

    `of` names the option of the whole GPU; a unit stands for an equal part of that GPU's memory.
    Slurm fences nothing: a job's share holds as far as its own torch obeys the limit that it is
    given (`sharing`). No job gets fewer than `least` units: of MPS they are percent of the GPU's
    threads, too.
    """

    kind: Literal["shard", "mps"]
    of: Name
    per_gpu: Annotated[int, Field(gt=1)]
    least: Annotated[int, Field(ge=1)] = 1


class Measured(_Strict):
    """What `site calibrate` measured of an option's GPU here, in place of the catalogue's figures;
    see `Gpu`.
    """

    context_bytes: Bytes
    nccl_bytes: Bytes | None = None
    source: str


class GpuOption(_Strict):
    """One thing a job can ask for: a GPU type of this site, a MIG profile as Slurm's type, or a
    share of a GPU.

    `gpu` names the catalogue's entry; `type` is the GRES type of the site (`a100_40` in
    `--gres=gpu:a100_40:1`), absent where the site has untyped GPUs and selects them by feature.
    `constraint` is AND-ed to the user's own. Beside a type it is used where a type would not do
    (`rewrite`), or always with `both`, which options of one type need. `gres` is a further entry of
    --gres that this site wants beside the GPU: `VramPerGpu:24G`. `cost` is that of one GPU, or of
    one unit of a share. `measured` goes before the catalogue's figures, for the whole GPU and its
    shares; `host_memory_mib` goes before the dialect's.
    """

    gpu: Name
    type: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    constraint: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:%-]+$")] | None = None
    both: bool = False
    gres: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*:\d+[KMGTP]?$")] | None = None
    cost: Annotated[float, Field(gt=0)]
    measured: Measured | None = None
    host_memory_mib: Mib | None = None
    share: Share | None = None


class Dialect(_Strict):
    """How this site wants a request to be spelled; a user's own spelling stays where it is one of
    these.

    `options` are sbatch's options in which GPUs may be asked for here; the first is written where
    the user's is not among them. `select` says by what a kind of GPU is asked for: its GRES `type`,
    or its `constraint` alone. Host memory is asked for where the user did not: `host_memory_mib`
    for each GPU, in `host_memory_option`.
    """

    options: Annotated[tuple[GpuSpelling, ...], Field(min_length=1)] = get_args(GpuSpelling)
    select: Literal["type", "constraint"] = "type"
    host_memory_option: Literal["mem", "mem-per-cpu", "mem-per-gpu"] = "mem-per-gpu"
    host_memory_mib: Mib | None = None


class Links(_Strict):
    """What GPUs of a node are joined by, in one direction, in 10^9 bytes/s, where that is not as
    the catalogue has it.

    NVLink, of which 0 is none, and PCIe are those of one GPU; the network is that of all adapters
    of a node together.
    """

    nvlink_gb_per_second: Annotated[float, Field(ge=0)] | None = None
    pcie_gb_per_second: Positive | None = None
    network_gb_per_second: Positive | None = None


class Nodes(_Strict):
    """A group of equal nodes: `names` is a Slurm host list; `gpus` maps an option's name to how
    many a node has.

    For a share that is the number of its GPUs that are shared; they count among those of the whole
    option, too. `links` are for `xmem-slurm plan`, which ranks ways of training by them.
    """

    names: str
    cpus: Annotated[int, Field(gt=0)]
    memory_mib: Mib
    features: tuple[str, ...] = ()
    gpus: dict[Name, Annotated[int, Field(gt=0)]] = {}
    links: Links = Links()
    partitions: Annotated[tuple[Name, ...], Field(min_length=1)]


class Partition(_Strict):
    """A partition: `default` marks the one a job gets when it names none; `sharing` lets its jobs
    have shares.
    """

    default: bool = False
    max_time: Time = "UNLIMITED"
    sharing: bool = False


class Filter(_Strict):
    """Whose jobs the site-wide filter looks at (`coverage`), and what it may do.

    A name in `not_…` goes before one in the others. `commands` are Slurm's that it looks at; srun
    and salloc only where they make an allocation for a command. Empty `users`, `accounts` and
    `partitions` mean all. With `opt_in` only jobs with XMEM_ON=1, a line `#XMEM on` or the word
    `xmem:on` in --comment are looked at; the same with "off" always opts out. After `seconds` the
    job goes as it was written.
    """

    mode: Literal["off", "advise", "rewrite"] = "advise"
    seconds: Annotated[float, Field(ge=1, le=600)] = places.FILTER_SECONDS
    commands: tuple[Command, ...] = coverage.COMMANDS
    opt_in: bool = False
    users: tuple[str, ...] = ()
    not_users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    not_accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    not_partitions: tuple[str, ...] = ()


class JobSubmit(_Strict):
    """What slurmctld's own hook does with a job that names an option of `reason_for` and gives no
    reason for it.

    A comment is a reason, and so is xmem-slurm's record in the script. `refuse` turns such a job
    away.
    """

    mode: Literal["off", "advise", "refuse"] = "off"
    reason_for: tuple[Name, ...] = ()


class DryRuns(_Strict):
    """Where dry runs happen, and the most that those of one job may take, whatever its user allows.

    `here` is where xsbatch is called; with `srun` they are steps on nodes without a GPU
    (`dryrun/cpu_node`), in this `partition`, `qos` and `account`, else the user's own. A step that
    has not begun after `wait_seconds` is given up. `seconds` are counted as a budget is
    (`sandbox/progress`), `wall_seconds` are those of a clock. Those of a sweep are tasks of an
    array job (`dryrun/array_job`), of which `at_once` run at a time. Of one user `per_user` run at
    once, and on one machine `per_machine`, by default one for every four cores. A submission waits
    for its turn for `queue_seconds`, in the filter for no longer than that has (`admission`).
    """

    where: Literal["here", "srun"] = "here"
    partition: Name | None = None
    qos: Name | None = None
    account: Name | None = None
    wait_seconds: Annotated[float, Field(ge=1, le=600)] = 20.0
    at_once: Annotated[int, Field(gt=0)] = 8
    seconds: Annotated[float, Field(ge=1)] | None = None
    wall_seconds: Annotated[float, Field(ge=1)] | None = None
    cpus: Annotated[int, Field(gt=0)] | None = None
    memory_mib: Mib | None = None
    per_user: Annotated[int, Field(gt=0)] = places.PER_USER
    per_machine: Annotated[int, Field(gt=0)] | None = None
    queue_seconds: Annotated[float, Field(ge=0, le=3600)] = places.QUEUE_SECONDS

    @model_validator(mode="after")
    def _place_has_a_use(self) -> "DryRuns":
        if self.where == "here" and (self.partition or self.qos or self.account):
            raise ValueError('partition, qos and account are for where = "srun"')
        return self


class Audit(_Strict):
    """Where a line is written for each decision (`audit`): a folder of a login node in which users
    make files.
    """

    folder: Annotated[Path, AfterValidator(_absolute)] | None = None


class Outcomes(_Strict):
    """What is recorded of what jobs really use (`outcomes`), and what is learned from it.

    With `record` it is so for every job of xsbatch's, of this share of users; whoever says
    XMEM_RECORD=0 is left out. `spool` is a sticky folder that all nodes see, for the site's own
    eyes; without it the records are the users' own. `margins` is the file that `xmem-slurm site
    learn` writes. The share `as_written` of the jobs that would be changed are not: a sample of
    what jobs use that no earlier margin has picked.
    """

    record: bool = False
    share_of_users: Annotated[float, Field(ge=0, le=1)] = 1.0
    spool: Annotated[Path, AfterValidator(_absolute)] | None = None
    margins: Annotated[Path, AfterValidator(_absolute)] | None = None
    as_written: Annotated[float, Field(ge=0, le=0.5)] = 0.0


class Policy(_Strict):
    """What may be changed. `keep_type` pins a GPU type that the user typed; `rewrite = false` only
    advises. With `raise_mem` a request for host memory becomes larger where the job was seen to
    hold more.

    `order` ranks the options that fit: by `cost`; by the GPU memory that is asked for, so that the
    least is wasted; or by the `start` that Slurm expects. `spare` is the part of each GPU's memory
    to be left free beside the estimate's own margin. `least_bytes` and `most_bytes` are the
    smallest and the largest GPU that a job is ever sent to.

    `unasked` is for jobs that ask for no GPU and would use one, `unused` for those that ask for one
    and use none: they are left alone, their owner is told, or they are not submitted. Only torch's
    use in a dry run is seen. `cannot_run` is for jobs that their dry run shows to fail before they
    use a GPU, or to run out of the memory of the one that they are to have: they are submitted as
    they were written, and their owner is told, or they are not.
    """

    rewrite: bool = True
    keep_type: bool = False
    raise_mem: bool = False
    order: Order = "cost"
    spare: Annotated[float, Field(ge=0, lt=1)] = 0.0
    least_bytes: Annotated[int, Field(ge=0)] = 0
    most_bytes: Bytes | None = None
    unasked: Stance = "leave"
    unused: Stance = "leave"
    cannot_run: Literal["submit", "refuse"] = "submit"


class Site(_Strict):
    """A site file, whole. What its parts say of each other is looked at by `consistency`.

    `templates` is a folder of the site's own templates (`resources`), beside the file where it is
    relative.
    """

    schema_version: Literal[1]
    name: Name
    templates: Path | None = None
    policy: Policy = Policy()
    dry_run: DryRuns = DryRuns()
    dialect: Dialect = Dialect()
    filter: Filter = Filter()
    audit: Audit = Audit()
    outcomes: Outcomes = Outcomes()
    job_submit: JobSubmit = JobSubmit()
    option: Annotated[dict[Name, GpuOption], Field(min_length=1)]
    nodes: Annotated[tuple[Nodes, ...], Field(min_length=1)]
    partition: Annotated[dict[Name, Partition], Field(min_length=1)]

    def ordered_by(self, order: str | None) -> "Site":
        """Return the same site with this order of the options that fit; None leaves it as it is."""
        policy = Policy.model_validate(
            {**self.policy.model_dump(), "order": order or self.policy.order}
        )
        return self.model_copy(update={"policy": policy})

    def sparing(self, percent: float) -> "Site":
        """Return the same site with at least so much of each GPU's memory left free."""
        policy = self.policy.model_copy(update={"spare": max(self.policy.spare, percent / 100)})
        return self.model_copy(update={"policy": policy})

    def without_shares(self) -> "Site":
        """Return the same site without options that are shares of a GPU."""
        whole = {name: option for name, option in self.option.items() if option.share is None}
        return self.model_copy(update={"option": whole})

    def partitions_of(self, named: Sequence[str]) -> tuple[str, ...]:
        """Return the partitions that a job may run in: those it names, else the default one, if
        there is one.
        """
        return tuple(named) or tuple(
            name for name, partition in self.partition.items() if partition.default
        )
