"""Which ways of training are there for a job on a site's GPUs?"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xmem_slurm.errors import UsageError
from xmem_slurm.planning.asking import asking
from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.planning.methods import Method
from xmem_slurm.planning.trainers import Trainer, trainer_of
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.sizing.demand import demand_of
from xmem_slurm.sizing.placement import candidates as options_for


@dataclass(frozen=True, slots=True)
class Space:
    """What is looked at: the site and the GPU of each of its options, numbers of GPUs, methods.

    `on` names the options in question, empty: all. With `same_batch` the samples of an optimizer
    step stay as many; with `bf16` a job may compute in that which does not.
    """

    site: Site
    gpus: Mapping[str, Gpu]
    counts: Sequence[int]
    methods: Sequence[Method]
    same_batch: bool = True
    on: Sequence[str] = ()
    bf16: bool = False

    @property
    def options(self) -> Sequence[str]:
        """The options in question: shares of a GPU are none."""
        return [
            name
            for name, option in self.site.option.items()
            if name in (self.on or self.gpus) and option.share is None
        ]

    def all_of(self, base: Base) -> Iterator[Candidate]:
        """Yield every way that could be tried, with the largest batch of each; `smaller` has the
        others.
        """
        training, trainer = base.training, trainer_of(base)
        checkpointings = dict.fromkeys(
            (training.checkpointing, training.checkpointing or trainer.can_checkpoint)
        )
        halves = [False]
        if self.bf16 and trainer.can_bf16 and training.precision != "bf16":
            halves.append(True)
        counts = self.counts
        if not base.can_be_launched:
            counts = [count for count in counts if count == base.ranks]
        for count, tensor in itertools.product(counts, trainer.tensors):
            if count % tensor:
                continue
            micro, accumulation = next(self._batches(base, count // tensor), (0, 0))
            if not accumulation:
                continue
            for option, nodes in self._places(base, count):
                if count // nodes % tensor:
                    continue
                for method, shards in self._ways(trainer, count, tensor, nodes):
                    for checkpointing, half in itertools.product(checkpointings, halves):
                        yield Candidate(
                            *(
                                option,
                                count,
                                nodes,
                                method,
                                shards,
                                micro,
                                accumulation,
                                checkpointing,
                            ),
                            tensor=tensor,
                            bf16=half,
                            lever=base.lever,
                        )

    def of_another_batch(self, base: Base) -> Sequence[int]:
        """Return the numbers of GPUs that are left out as an optimizer step would have more
        samples, or fewer.
        """
        counts = self.counts if base.can_be_launched and base.batch else ()
        tensors = trainer_of(base).tensors

        def has_batch(count: int) -> bool:
            return any(
                any(True for _ in self._batches(base, count // n))
                for n in tensors
                if count % n == 0
            )

        return [count for count in counts if not has_batch(count)]

    def smaller(self, base: Base, candidate: Candidate) -> Candidate | None:
        """Return the same way with the next smaller batch of each process; None: there is none."""
        for micro, accumulation in self._batches(base, candidate.data_ranks):
            if micro < candidate.micro_batch:
                return replace(candidate, micro_batch=micro, accumulation=accumulation)
        return None

    def _batches(self, base: Base, ranks: int) -> Iterator[tuple[int, int]]:
        """Yield (micro batch, accumulation), the largest first; the job's own alone where that
        cannot be changed.
        """
        as_written = base.training.micro_batch, base.training.accumulation
        trainer = trainer_of(base)
        can_vary, can_accumulate = trainer.can_vary, trainer.can_accumulate
        per_rank, remainder = divmod(base.batch, ranks)
        if not base.batch or not (can_vary or can_accumulate):
            yield from [as_written] if ranks == base.data_ranks or not self.same_batch else []
        elif not self.same_batch:
            powers = (1 << power for power in range(12, -1, -1))
            micros = powers if can_vary else [as_written[0]]
            yield from ((micro, as_written[1]) for micro in micros)
        elif not remainder:
            divisors = (micro for micro in range(per_rank, 0, -1) if per_rank % micro == 0)
            pairs = ((micro, per_rank // micro) for micro in divisors)
            yield from (
                (micro, times)
                for micro, times in pairs
                if (can_vary or micro == as_written[0])
                and (can_accumulate or times == as_written[1])
            )

    def _places(self, base: Base, count: int) -> Iterator[tuple[str, int]]:
        """Yield the options that have so many GPUs for the job, and on how many nodes: as few as
        do.

        Of these, on which it can be told to be; `Base.not_scaled` says why on others it cannot.
        """
        for option in self.options:
            per_node = max((group.gpus.get(option, 0) for group in self.site.nodes), default=0)
            nodes = -(-count // per_node) if per_node else 0
            if not nodes or count % nodes:
                continue
            try:
                tasks = base.tasks(count // nodes, nodes)
                request = asking(
                    base.job, count // nodes, nodes, tasks, self.site.dialect.options
                ).request
            except UsageError:
                continue
            if option in options_for(demand_of(request, self.site), self.site, self.gpus):
                yield option, nodes

    def _ways(
        self, trainer: Trainer, count: int, tensor: int, nodes: int
    ) -> Iterator[tuple[Method, int]]:
        """Yield the methods that the job can be told to use, and among how many processes a copy of
        the model is.
        """
        parts = count // tensor
        for method in self.methods:
            # DDP wants all ranks alike
            if not trainer.can_be(method, parts) or (tensor > 1 and method.name == "ddp"):
                continue
            if not method.is_hybrid:
                yield method, parts if method.shards else 1
            elif nodes > 1 and parts > nodes:
                yield method, parts // nodes
