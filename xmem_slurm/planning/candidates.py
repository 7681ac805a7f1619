"""Which ways of training are there for a job on a site's GPUs?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.errors import UsageError
from xmem_slurm.planning.deepspeed_json import DeepSpeedJson
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.methods import OFF, Method
from xmem_slurm.rewriting import launch
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing.demand import demand_of
from xmem_slurm.sizing.placement import candidates as options_for
from xmem_slurm.slurm import gres
from xmem_slurm.slurm.edit import Edit, apply
from xmem_slurm.slurm.request import GPU_OPTIONS
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import Trace, Training

BY_VARIABLES = ("transformers", "accelerate")
"""Whose trainers read from the environment how the model is shared."""


@dataclass(frozen=True)
class Base:
    """The job as it is written, and what its dry run showed: `trace` is that of its largest rank.

    `vary` names what its batch is, where no trainer says so. `deepspeed` is DeepSpeed's file, where it has one.
    """

    job: Submission
    trace: Trace
    vary: BatchLever | None = None
    deepspeed: DeepSpeedJson | None = None

    @cached_property
    def training(self) -> Training:
        """How it trains; where its own loop says nothing of its batch, that is what `vary` names."""
        seen = self.trace.training
        batch = self.vary.number(from_submission(self.job)) if self.vary else 0
        seen = seen._replace(micro_batch=batch or seen.micro_batch, accumulation=seen.accumulation or 1)
        return seen._replace(method="single" if self.ranks == 1 and seen.method in ("", "ddp") else seen.method)

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return self.trace.world_size

    @property
    def nodes(self) -> int:
        """On how many nodes they are."""
        return max(1, self.job.request.nodes or 1) if self.ranks > 1 else 1

    @property
    def batch(self) -> int:
        """The samples of one optimizer step, of all processes; 0: not known."""
        return self.training.micro_batch * self.training.accumulation * self.ranks

    @cached_property
    def program(self) -> str:
        """The file or module that Python ran, as it was named; "" where it had no name."""
        words = list(self.trace.argv)[1:]
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            words = words[1:]
        named = words[1:] if words[:1] == ["-m"] else [] if words[:1] == ["-c"] else words
        return next(iter(named), "")

    @property
    def can_be_launched(self) -> bool:
        """Whether another number of processes can be started: it is known what starts them, and they work together."""
        return not self.not_launched and bool(self.training.by or self.training.method == "ddp")

    @cached_property
    def not_launched(self) -> str:
        """Why what starts it cannot be changed; "" where it can."""
        try:
            launch.find(self.job.script or b"", self.program)
        except UsageError as error:
            return str(error)
        return ""

    @property
    def is_told_by_variables(self) -> bool:
        """Whether it is its environment that says how it shares the model."""
        script = self.job.script or b""
        return any(name in self.job.environ or name.encode() in script for name in OFF)

    @property
    def is_sharded(self) -> bool:
        """Whether it keeps but a part of the model on each GPU as it is written."""
        return self.training.method not in ("single", "ddp", "dp")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of training the job: so many GPUs of an option, a method, a batch of each process, what else is changed.

    `shards` says on how many GPUs one copy of the model is. `micro_batch` is 0 where the job's own is not known.
    """

    option: str
    gpus: int
    nodes: int
    method: Method
    shards: int
    micro_batch: int
    accumulation: int
    checkpointing: bool
    expandable: bool = False

    @property
    def per_node(self) -> int:
        """Its GPUs on each node."""
        return self.gpus // self.nodes

    def __str__(self) -> str:
        batch = f", {self.micro_batch} x {self.accumulation}" if self.micro_batch else ""
        more = f"{', checkpointing' if self.checkpointing else ''}{', expandable segments' if self.expandable else ''}"
        return f"{self.gpus} x {self.option}, {self.method.name}{batch}{more}"

    def is_seen(self, trace: Trace, base: Training) -> str:
        """Return what of it a dry run did not show; "" where all of it was."""
        seen = trace.training
        method = "single" if trace.world_size == 1 and seen.method == "ddp" else seen.method or base.method
        wrong = {
            "processes": trace.world_size == self.gpus,
            "method": self.method.is_seen(seen._replace(method=method)) or not seen.by,
            "micro batch": seen.micro_batch in (0, self.micro_batch),
            "accumulation": seen.accumulation in (0, self.accumulation),
            "checkpointing": seen.checkpointing == self.checkpointing,
        }
        return ", ".join(name for name, right in wrong.items() if not right)


@dataclass(frozen=True, slots=True)
class Space:
    """What is looked at: the site and the GPU of each of its options, numbers of GPUs, methods.

    `on` names the options in question, empty: all. With `same_batch` the samples of an optimizer step stay as many.
    """

    site: Site
    gpus: Mapping[str, Gpu]
    counts: Sequence[int]
    methods: Sequence[Method]
    same_batch: bool = True
    on: Sequence[str] = ()

    @property
    def options(self) -> Sequence[str]:
        """The options in question: shares of a GPU are none."""
        return [n for n, each in self.site.option.items() if n in (self.on or self.gpus) and each.share is None]

    def all_of(self, base: Base) -> Iterator[Candidate]:
        """Yield every way that could be tried, with the largest batch of each; `smaller` has the others."""
        training = base.training
        checkpointings = (True,) if training.by == "transformers" else ()
        for count in self.counts if base.can_be_launched else [each for each in self.counts if each == base.ranks]:
            micro, accumulation = next(self._batches(base, count), (0, 0))
            if not accumulation:
                continue
            for option, nodes in self._places(base, count):
                for method, shards in self._ways(base, count, nodes):
                    for checkpointing in dict.fromkeys((training.checkpointing, *checkpointings)):
                        yield Candidate(option, count, nodes, method, shards, micro, accumulation, checkpointing)

    def smaller(self, base: Base, candidate: Candidate) -> Candidate | None:
        """Return the same way with the next smaller batch of each process; None: there is none."""
        for micro, accumulation in self._batches(base, candidate.gpus):
            if micro < candidate.micro_batch:
                return replace(candidate, micro_batch=micro, accumulation=accumulation)
        return None

    def _batches(self, base: Base, ranks: int) -> Iterator[tuple[int, int]]:
        """Yield (micro batch, accumulation), the largest first; the job's own alone where its batch cannot be changed.

        A trainer of transformers can be told both, one of accelerate the second, and `vary` names the first. The file
        of DeepSpeed has the second, and the first where DeepSpeed makes the batches.
        """
        own, by = (base.training.micro_batch, base.training.accumulation), base.training.by
        can_vary = bool(base.vary) or by == "transformers" or (base.deepspeed is not None and base.training.own_batches)
        can_accumulate = by in BY_VARIABLES or base.deepspeed is not None
        each, rest = divmod(base.batch, ranks)
        if not base.batch or not (can_vary or can_accumulate):
            yield from [own] if ranks == base.ranks or not self.same_batch else []
        elif not self.same_batch:
            yield from ((1 << power, own[1]) for power in range(12, -1, -1)) if can_vary else [own]
        elif not rest:
            micros = (micro for micro in range(each, 0, -1) if each % micro == 0)
            pairs = ((micro, each // micro) for micro in micros)
            yield from (
                (micro, times)
                for micro, times in pairs
                if (can_vary or micro == own[0]) and (can_accumulate or times == own[1])
            )

    def _places(self, base: Base, count: int) -> Iterator[tuple[str, int]]:
        """Yield the options that have so many GPUs for the job, and on how many nodes: as few as do."""
        for option in self.options:
            most = max((group.gpus.get(option, 0) for group in self.site.nodes), default=0)
            nodes = -(-count // most) if most else 0
            if not nodes or count % nodes:
                continue
            request = asking(base.job, count // nodes, nodes, self.site).request
            if option in options_for(demand_of(request, self.site), self.site, self.gpus):
                yield option, nodes

    def _ways(self, base: Base, count: int, nodes: int) -> Iterator[tuple[Method, int]]:
        """Yield the methods that the job can be told to use, and on how many GPUs each has one copy of the model.

        Where it says by arguments or a file that it shards, or shards by its own code, it stays with that.
        """
        own, by = base.training.method, base.training.by
        told = by in BY_VARIABLES and (own in ("single", "ddp", "dp") or base.is_told_by_variables)
        told &= base.deepspeed is None
        for method in self.methods:
            if base.deepspeed is not None:
                if method.name.startswith("zero") and (count > 1 or method.offloaded or method.is_seen(base.training)):
                    yield method, count
            elif method.name == "single" or count == 1:
                if count == 1 and (
                    method.name == "single" or (method.name.startswith("zero") and method.offloaded and told)
                ):
                    yield method, 1
            elif method.is_hybrid:
                if told and nodes > 1 and count > nodes:
                    yield method, count // nodes
            elif told or (method.base == own or (method.name == "ddp" and own == "single" and by)):
                yield method, count if method.shards else 1


def asking(job: Submission, per_node: int, nodes: int, site: Site) -> Submission:
    """Return the job asking for so many GPUs on each of so many nodes, of whichever kind.

    Raises:
        UsageError: that cannot be said without changing something else.
    """
    request, edits = job.request, list[Edit]()
    if (request.gpus_per_node, request.nodes or 1) == (per_node, nodes):
        return job
    spelled = [name for name in GPU_OPTIONS if any(gpu.setting.name == name for gpu in request.gpus)]
    for name in spelled:
        edits.append(Edit(name, gres.without(name, request.value(name) or "", ["gpu"])))
    if {"gres"} & set(site.dialect.options) and "gpus-per-node" not in site.dialect.options:
        rest = (
            gres.without("gres", request.value("gres") or "", ["gpu"]) if "gres" in spelled else request.value("gres")
        )
        edits = [each for each in edits if each.name != "gres"]
        edits.append(Edit("gres", gres.with_entry(rest, f"gpu:{per_node}")))
    else:
        edits.append(Edit("gpus-per-node", str(per_node)))
    if (request.nodes or 1) != nodes or request.value("nodes") is not None:
        edits.append(Edit("nodes", str(nodes)))
    return apply([edit for edit in edits if edit.value != request.value(edit.name)], job)
