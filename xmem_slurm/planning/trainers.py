"""What can a job be told, and in which words? That is up to whose trainer runs; an own loop has
what the user names.

Names are those of accelerate 1.15, transformers 5.17, DeepSpeed 0.19, Lightning 2.6 (LightningCLI)
and torchtitan 0.2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.planning.methods import LIGHTNING, METHODS, OFF, Method, variables_of


@dataclass(frozen=True)
class Trainer:
    """A trainer that is told nothing of its method: as many processes of it as there are, and the
    batch that is named.

    `can_vary`: the batch of a process; `can_accumulate`: how many of them make a step.
    """

    base: Base

    @property
    def can_vary(self) -> bool:
        """Whether another batch of a process can be had."""
        return self.base.lever is not None

    @property
    def can_checkpoint(self) -> bool:
        """Whether it checkpoints activations where it is told to."""
        return False

    can_accumulate = False
    can_bf16 = False

    @property
    def tensors(self) -> Sequence[int]:
        """On how many GPUs each tensor of a layer may be: what torch calls tensor parallel."""
        return (self.base.training.tensor,)

    def can_be(self, method: Method, count: int) -> bool:
        """Whether it can be had to train on so many GPUs by a method."""
        training = self.base.training
        if count == 1:
            return method.name == "single"
        return method.is_seen(training) or (
            method.name == "ddp" and training.method == "single" and bool(training.by)
        )

    def _is_alone(self, method: Method) -> bool:
        """Whether a method makes sense on one GPU: as it is, or with the optimizer on the host,
        where that can be.
        """
        return method.name == "single" or (self._is_zero(method) and bool(method.offloaded))

    def _is_zero(self, method: Method) -> bool:
        return method.name.startswith("zero") and self.base.training.has_deepspeed

    def variables(self, candidate: Candidate) -> Mapping[str, str]:
        """Return the variables with which it trains that way."""
        name = self.base.lever.name if self.base.lever is not None else "-"
        if name.startswith("-") or self._has_batch(candidate):
            return {}
        return {name: str(candidate.micro_batch)}

    def arguments(self, candidate: Candidate) -> Mapping[str, str]:
        """Return the arguments with which it trains that way."""
        name = self.base.lever.name if self.base.lever is not None else ""
        if name.startswith("-") and not self._has_batch(candidate):
            return {name: str(candidate.micro_batch)}
        return {}

    def changes(self, candidate: Candidate) -> Sequence[str]:
        """Say what of the training itself is another by the method, and is not so by its own."""
        training = self.base.training
        if candidate.method.is_seen(training):
            return ()
        ways = [method for method in METHODS.values() if method.is_seen(training)]
        own_changes = [
            change for method in ways for change in method.changes_in(training.precision)
        ]
        precision = "bf16" if candidate.bf16 else training.precision
        return [
            change for change in candidate.method.changes_in(precision) if change not in own_changes
        ]

    def _has_batch(self, candidate: Candidate) -> bool:
        return candidate.micro_batch == self.base.training.micro_batch

    def _has_accumulation(self, candidate: Candidate) -> bool:
        return candidate.accumulation == self.base.training.accumulation

    def _is_so(self, candidate: Candidate) -> bool:
        """Whether it trains by that method as it is; of a hybrid that is not known."""
        return candidate.method.is_seen(self.base.training) and not candidate.method.is_hybrid


class Accelerate(Trainer):
    """accelerate's environment says how the model is shared, and how often an own loop accumulates.

    Where the job says by arguments or a file that it shards, or shards by its own code, it stays
    with that.
    """

    can_accumulate = True
    can_bf16 = True

    def can_be(self, method: Method, count: int) -> bool:
        """By variables, where the job has none of its own for it."""
        by_variables = (
            self.base.training.method in ("single", "ddp", "dp") or self.base.is_told_by_variables
        )
        if not by_variables:
            return super().can_be(method, count)
        if count == 1:
            return self._is_alone(method)
        return method.name == "ddp" or (
            bool(method.variables) and (self._is_zero(method) or method.is_fsdp)
        )

    def variables(self, candidate: Candidate) -> Mapping[str, str]:
        """Return accelerate's."""
        variables = dict(super().variables(candidate))
        if not self._is_so(candidate):
            script = self.base.job.script or b""
            environ = {
                **self.base.job.environ,
                **{name: "" for name in OFF if name.encode() in script},
            }
            variables |= variables_of(candidate.method, candidate.shards, candidate.gpus, environ)
        if candidate.bf16:
            variables["ACCELERATE_MIXED_PRECISION"] = "bf16"
        return {**variables, **self._accumulation(candidate)}

    def _accumulation(self, candidate: Candidate) -> Mapping[str, str]:
        times = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(candidate.accumulation)}
        return {} if self._has_accumulation(candidate) else times


class Transformers(Accelerate):
    """transformers' Trainer has its batches and checkpointing from the command line."""

    can_vary = True
    can_checkpoint = True

    def _accumulation(self, _candidate: Candidate) -> Mapping[str, str]:
        return {}

    def variables(self, candidate: Candidate) -> Mapping[str, str]:
        """Return accelerate's, of which the Trainer is made."""
        return {} if self.base.deepspeed is not None else super().variables(candidate)

    def arguments(self, candidate: Candidate) -> Mapping[str, str]:
        """Return those of TrainingArguments."""
        arguments = {}
        if not self._has_batch(candidate):
            arguments["--per_device_train_batch_size"] = str(candidate.micro_batch)
        if not self._has_accumulation(candidate):
            arguments["--gradient_accumulation_steps"] = str(candidate.accumulation)
        if candidate.checkpointing and not self.base.training.checkpointing:
            arguments["--gradient_checkpointing"] = "True"
        if candidate.bf16:
            arguments |= {"--bf16": "True"} | (
                {"--fp16": "False"} if self.base.training.precision == "fp16" else {}
            )
        return arguments


class DeepSpeedFile(Trainer):
    """DeepSpeed is told by its file (`deepspeed_json`): the stage, offloading, and batches where it
    makes them.
    """

    can_accumulate = True

    @property
    def can_vary(self) -> bool:
        """Whether another batch of a process can be had."""
        return super().can_vary or self.base.training.own_batches

    def can_be(self, method: Method, count: int) -> bool:
        """By any stage; on one GPU it makes a difference where something is offloaded."""
        return _by_file(self.base, method, count)


class TransformersByFile(Transformers):
    """transformers' Trainer with DeepSpeed's file."""

    def can_be(self, method: Method, count: int) -> bool:
        """By any stage; on one GPU it makes a difference where something is offloaded."""
        return _by_file(self.base, method, count)


def _by_file(base: Base, method: Method, count: int) -> bool:
    return method.name.startswith("zero") and (
        count > 1 or bool(method.offloaded) or method.is_seen(base.training)
    )


class LightningOptions(Trainer):
    """Lightning's Trainer, where LightningCLI has its arguments from the command line."""

    can_accumulate = True
    can_bf16 = True

    def can_be(self, method: Method, count: int) -> bool:
        """By the strategies that Lightning has a name for."""
        if count == 1:
            return self._is_alone(method)
        return method.name in ("ddp", "fsdp1", "fsdp1-offload") or (
            self._is_zero(method) and method.name in LIGHTNING
        )

    def arguments(self, candidate: Candidate) -> Mapping[str, str]:
        """Return those of its Trainer; it wants to know of all processes, whoever starts them."""
        arguments = dict(super().arguments(candidate))
        if not candidate.method.is_seen(self.base.training):
            arguments["--trainer.strategy"] = LIGHTNING[candidate.method.name]
        if (candidate.gpus, candidate.nodes) != (self.base.ranks, self.base.nodes):
            arguments["--trainer.devices"] = str(candidate.per_node)
            arguments["--trainer.num_nodes"] = str(candidate.nodes)
        if not self._has_accumulation(candidate):
            arguments["--trainer.accumulate_grad_batches"] = str(candidate.accumulation)
        if candidate.bf16:
            arguments["--trainer.precision"] = "bf16-mixed"
        return arguments


class TorchtitanOptions(Trainer):
    """torchtitan's command line goes before its file."""

    can_vary = True
    can_accumulate = True

    @property
    def can_checkpoint(self) -> bool:
        """Whether that is an option: since torchtitan 0.3 it is a class of the configuration."""
        return self.base.training.can_checkpoint

    def changes(self, _candidate: Candidate) -> Sequence[str]:
        """Its checkpoints are alike, and reductions are in mixed_precision_reduce, whatever the
        degrees.
        """
        return ()

    @property
    def tensors(self) -> Sequence[int]:
        """As many as it has, or 2, 4, 8: within a node, which has no more links of that speed."""
        return tuple(dict.fromkeys((self.base.training.tensor, 1, 2, 4, 8)))

    def can_be(self, method: Method, count: int) -> bool:
        """By degrees, of which the product is the number of GPUs."""
        return method.name in (("ddp", "fsdp2", "fsdp2-grad", "hsdp") if count > 1 else ("single",))

    def arguments(self, candidate: Candidate) -> Mapping[str, str]:
        """Return degrees, batches and checkpointing; as many accumulate as the batch of a step is
        larger.
        """
        base, arguments = self.base, dict[str, str]()
        copies = candidate.data_ranks // candidate.shards
        degrees = {
            "data_parallel_replicate_degree": (
                copies,
                base.data_ranks // max(1, base.training.shards),
            ),
            "data_parallel_shard_degree": (candidate.shards, base.training.shards),
            "tensor_parallel_degree": (candidate.tensor, base.training.tensor),
        }
        if any(new != current for new, current in degrees.values()):
            arguments |= {f"--parallelism.{name}": str(new) for name, (new, _) in degrees.items()}
        stays = {"fsdp2": False, "fsdp2-grad": True}.get(candidate.method.name)
        if stays is not None and stays != (base.training.method == "fsdp2-grad"):
            arguments["--parallelism.fsdp_reshard_after_forward"] = "never" if stays else "always"
        if not self._has_batch(candidate):
            arguments["--training.local_batch_size"] = str(candidate.micro_batch)
        if (candidate.accumulation, base.training.accumulation) != (1, 1):
            arguments["--training.global_batch_size"] = str(candidate.batch)
        if candidate.checkpointing and not base.training.checkpointing:
            arguments["--activation_checkpoint.mode"] = "full"
        return arguments


def trainer_of(base: Base) -> Trainer:
    """Return what a job can be told."""
    by, has_file = base.training.by, base.deepspeed is not None
    kinds = {
        "transformers": TransformersByFile if has_file else Transformers,
        "accelerate": Accelerate,
        "deepspeed": DeepSpeedFile if has_file else Trainer,
        "lightning": LightningOptions if base.training.has_options else Trainer,
        "torchtitan": TorchtitanOptions if base.training.method in METHODS else Trainer,
    }
    return kinds.get(by, Trainer)(base)
