"""A job as it is written, and a way in which it could be trained."""

from dataclasses import dataclass
from functools import cached_property

from xmem_slurm.errors import UsageError
from xmem_slurm.planning.asking import asking
from xmem_slurm.planning.deepspeed_json import DeepSpeedJson
from xmem_slurm.planning.levers import BatchLever
from xmem_slurm.planning.methods import OFF, Method
from xmem_slurm.rewriting import launch
from xmem_slurm.rewriting.launch import Processes
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.trace import Trace, Training


@dataclass(frozen=True)
class Base:
    """The job as it is written, and what its dry run showed: `trace` is that of its largest rank.

    `vary` names what its batch is, where no trainer says so. `deepspeed` is DeepSpeed's file, where
    it has one.
    """

    job: Submission
    trace: Trace
    vary: BatchLever | None = None
    deepspeed: DeepSpeedJson | None = None

    @cached_property
    def training(self) -> Training:
        """How it trains; its batch is that which the lever was seen to make, where there is one."""
        training = self.trace.training
        batch = self.lever.batch_in(self.trace) if self.lever else 0
        training = training._replace(
            micro_batch=batch or training.micro_batch, accumulation=training.accumulation or 1
        )
        if self.ranks == 1 and training.method in ("", "ddp"):
            return training._replace(method="single")
        return training

    @property
    def lever(self) -> BatchLever | None:
        """What `vary` names, where the job's dry run showed that this is its batch."""
        return None if self.not_varied else self.vary

    @property
    def not_varied(self) -> str:
        """Why its batch stays as it is although `vary` names it; "" where it need not, or nothing
        is named.
        """
        return self.vary.not_seen(self.trace) if self.vary else ""

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
        return self.training.micro_batch * self.training.accumulation * self.data_ranks

    @property
    def data_ranks(self) -> int:
        """How many of its processes, or groups of tensor parallel ones, have samples of their
        own.
        """
        return max(1, self.ranks // max(1, self.training.tensor))

    @cached_property
    def program(self) -> str:
        """The file or module that Python ran, as it was named; "" where it had no name."""
        words = list(self.trace.argv)[1:]
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            words = words[1:]
        if words[:1] == ["-c"]:
            return ""
        named = words[1:] if words[:1] == ["-m"] else words
        return next(iter(named), "")

    def started_by(self, script: bytes) -> launch.Launch:
        """Return the command of its script, or of a copy with another request, that starts its
        processes.

        An srun that starts one process starts others of a trainer only if that asks Slurm for their
        numbers, as Lightning does: else torchrun takes its place, as that of plain Python.

        Raises:
            UsageError: it is not known.
        """
        command = launch.find(script, self.program)
        alone = command.kind == "srun" and self.ranks == 1 and self.training.by != "lightning"
        return command._replace(kind="python") if alone else command

    @property
    def can_be_launched(self) -> bool:
        """Whether another number of processes can be started: it is known what starts them, and
        they work together.
        """
        return not self.not_scaled and bool(self.training.by or self.training.method == "ddp")

    @cached_property
    def not_scaled(self) -> str:
        """Why no other number of processes can be started, or of GPUs be asked for; "" where both
        can.
        """
        per_node, script = self.ranks // self.nodes, self.job.script or b""
        larger = 1 + max(per_node, self.job.request.gpus_per_node or 0)
        try:
            asking(self.job, larger, self.nodes, self.tasks(larger, self.nodes), ())
            processes = Processes(self.nodes, per_node), Processes(self.nodes, larger)
            launch.changed(script, self.started_by(script), processes, variables={}, arguments={})
        except UsageError as error:
            return str(error)
        return ""

    def tasks(self, per_node: int, nodes: int) -> int | None:
        """Return Slurm's tasks on each node for so many processes there; None: as they are.

        srun starts a process in each, and other launchers start all of a node's in one.

        Raises:
            UsageError: it is not known what starts them.
        """
        if (per_node, nodes) == (self.ranks // self.nodes, self.nodes):
            return None
        return per_node if self.started_by(self.job.script or b"").kind == "srun" else 1

    @property
    def is_told_by_variables(self) -> bool:
        """Whether it is its environment that says how it shares the model."""
        script = self.job.script or b""
        return any(name in self.job.environ or name.encode() in script for name in OFF)

    @property
    def is_sharded(self) -> bool:
        """Whether it keeps but a part of the model on each GPU as it is written."""
        return self.training.method not in ("single", "ddp", "dp") or self.training.tensor > 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of training the job: so many GPUs of an option, a method, a batch of each process, what
    else is changed.

    `shards` says among how many processes one copy of the model is, and `tensor` each tensor of a
    layer. `micro_batch` is 0 where the job's own is not known. `bf16`: it computes in that, where
    the job does not. `lever` is what makes its batch, where the user named it.
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
    tensor: int = 1
    bf16: bool = False
    lever: BatchLever | None = None

    @property
    def data_ranks(self) -> int:
        """How many of its processes, or groups of tensor parallel ones, have samples of their
        own.
        """
        return self.gpus // self.tensor

    @property
    def batch(self) -> int:
        """The samples of one optimizer step; 0: not known."""
        return self.micro_batch * self.accumulation * self.data_ranks

    @property
    def per_node(self) -> int:
        """Its GPUs on each node."""
        return self.gpus // self.nodes

    def __str__(self) -> str:
        batch = f", {self.micro_batch} x {self.accumulation}" if self.micro_batch else ""
        are = {
            "bf16": self.bf16,
            "checkpointing": self.checkpointing,
            "expandable segments": self.expandable,
        }
        extras = "".join(f", {name}" for name, is_so in are.items() if is_so)
        tensor = f", tensors on {self.tensor}" if self.tensor > 1 else ""
        return f"{self.gpus} x {self.option}, {self.method.name}{tensor}{batch}{extras}"

    def is_seen(self, trace: Trace, base: Training) -> str:
        """Return what of it a dry run did not show; "" where all of it was."""
        training = trace.training
        method = training.method or base.method
        if trace.world_size == 1 and training.method == "ddp":
            method = "single"
        wrong = {
            "processes": trace.world_size == self.gpus,
            "method": self.method.is_seen(training._replace(method=method)) or not training.by,
            "micro batch": training.micro_batch in (0, self.micro_batch)
            and (self.lever is None or self.lever.batch_in(trace) == self.micro_batch),
            "accumulation": training.accumulation in (0, self.accumulation),
            "tensor parallelism": max(1, training.tensor) == self.tensor,
            "precision": not self.bf16 or training.precision == "bf16",
            "checkpointing": training.checkpointing == self.checkpointing,
        }
        return ", ".join(name for name, right in wrong.items() if not right)
