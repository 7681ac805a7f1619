"""Which ways are there to share a model among GPUs, what of it does each keep on one, and what
makes it so?

The levers are variables and arguments that the libraries read themselves: accelerate's environment
(its `launch` sets the same variables; accelerate/utils/dataclasses.py, 1.15) and the arguments of
transformers' TrainingArguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from xmem_slurm.trace import Training

_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
_FSDP = "ACCELERATE_USE_FSDP"
_SIZES = "ACCELERATE_USE_PARALLELISM_CONFIG"
_FORMAT = "checkpoints are sharded, and made whole by"
_OF_DEEPSPEED = "checkpoints are in DeepSpeed's format: the optimizer's state is sharded"
_GATHERED = "checkpoints are gathered from all processes as they are saved"
_ON_CPU = "the optimizer steps on the CPU"
_REDUCED = "gradients are reduced in {0}"
_ZERO_MIXED = (
    "parameters are in {0}, with master weights and the optimizer's state in fp32",
    _REDUCED,
)
"""DeepSpeed casts the model itself (`_configure_distributed_model` of runtime/engine.py, 0.19)."""
_FSDP_MIXED = (
    "layers compute with parameters in {0}; their shards and the optimizer's state are in fp32",
    _REDUCED,
)
"""By accelerate's `fsdp2_prepare_model` (utils/fsdp_utils.py, 1.15), Lightning's plugin (2.6)."""


@dataclass(frozen=True, slots=True)
class Method:
    """A way of training on several GPUs.

    `shards` names what each GPU keeps only its part of ("parameters", "gradients", "optimizer").
    What is `offloaded` is on the host between uses: of that nothing need stay on a GPU. `changes`
    says what of the training itself is another, and `mixed` what is besides in mixed precision,
    whose name is in place of {0}.
    """

    name: str
    variables: Mapping[str, str]
    shards: frozenset[str] = frozenset()
    offloaded: frozenset[str] = frozenset()
    changes: tuple[str, ...] = ()
    is_hybrid: bool = False
    mixed: tuple[str, ...] = ()

    @property
    def is_fsdp(self) -> bool:
        """Whether it is one of PyTorch's FSDP."""
        return self.shards == _ALL and not self.name.startswith("zero")

    @property
    def is_run_whole(self) -> bool:
        """Whether a dry run makes all of its calls: DeepSpeed's hooks take gradients away bucket by
        bucket, so that none can stand for another (probe/_xmem/repeat/recorded.py).
        """
        return self.name.startswith("zero") and "gradients" in self.shards

    def changes_in(self, precision: str) -> tuple[str, ...]:
        """Return what of the training itself is another, where it trains in that precision."""
        mixed = self.mixed if precision in ("bf16", "fp16") else ()
        return (*self.changes, *(change.format(precision) for change in mixed))

    @property
    def base(self) -> str:
        """The name that the probe has for it (`Training.method`), which says of offloading
        apart.
        """
        return self.name.removesuffix("-offload")

    def is_seen(self, training: Training) -> bool:
        """Whether a dry run was trained so."""
        return (training.method, training.offloaded) == (self.base, bool(self.offloaded))


_ALL = frozenset({"parameters", "gradients", "optimizer"})


def _zero(stage: int, shards: set[str], *, offload: bool = False) -> Method:
    """Return a stage of DeepSpeed's ZeRO; offloaded, the optimizer's state and step are on the
    host.
    """
    variables = {_DEEPSPEED: "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage)}
    changes = [f"{_FORMAT} zero_to_fp32.py" if "parameters" in shards else _OF_DEEPSPEED]
    if offload:
        variables["ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"] = "cpu"
        changes.append(_ON_CPU)
    name = f"zero{stage}{'-offload' if offload else ''}"
    away = frozenset({"optimizer"}) if offload else frozenset[str]()
    return Method(name, variables, frozenset(shards), away, tuple(changes), mixed=_ZERO_MIXED)


def _fsdp(
    name: str, *, reshard: bool = True, offload: bool = False, is_hybrid: bool = False
) -> Method:
    """Return a form of PyTorch's FSDP2."""
    variables = {
        _FSDP: "true",
        "FSDP_VERSION": "2",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
        "FSDP_RESHARD_AFTER_FORWARD": "true" if reshard else "false",
    }
    if offload:
        variables["FSDP_OFFLOAD_PARAMS"] = "true"
    if is_hybrid:
        variables[_SIZES] = "true"
    changes = (f"{_FORMAT} `accelerate merge-weights`", *([_ON_CPU] if offload else []))
    away = _ALL if offload else frozenset[str]()
    return Method(name, variables, _ALL, away, changes, is_hybrid, _FSDP_MIXED)


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("single", {}),
        Method("ddp", {}),
        _zero(1, {"optimizer"}),
        _zero(2, {"optimizer", "gradients"}),
        _fsdp("fsdp2-grad", reshard=False),
        _fsdp("fsdp2"),
        _zero(3, set(_ALL)),
        _fsdp("hsdp", is_hybrid=True),
        _zero(2, {"optimizer", "gradients"}, offload=True),
        _zero(3, set(_ALL), offload=True),
        _fsdp("fsdp2-offload", offload=True),
        Method("fsdp1", {}, _ALL, changes=(_GATHERED,), mixed=_FSDP_MIXED),
        Method("fsdp1-offload", {}, _ALL, _ALL, (_GATHERED, _ON_CPU), mixed=_FSDP_MIXED),
    )
}
"""By the name that --allow and --forbid take; what comes earlier changes less, and is first where
all is equal."""

LIGHTNING: Mapping[str, str] = {
    "single": "auto",
    "ddp": "ddp",
    "zero1": "deepspeed_stage_1",
    "zero2": "deepspeed_stage_2",
    "zero3": "deepspeed_stage_3",
    "zero2-offload": "deepspeed_stage_2_offload",
    "zero3-offload": "deepspeed_stage_3_offload",
    "fsdp1": "fsdp",
    "fsdp1-offload": "fsdp_cpu_offload",
}
"""Lightning's names of its strategies (StrategyRegistry; lightning/pytorch/strategies, 2.6)."""

OFF: Mapping[str, str] = dict.fromkeys((_DEEPSPEED, _FSDP, _SIZES), "false")
"""What puts off a method that the job's own environment may ask for."""
EXPANDABLE = "expandable_segments:True"


def variables_of(
    method: Method, shards: int, ranks: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that have so many ranks train by a method, each copy of the model on
    `shards` of them.
    """
    sizes = {}
    if method.is_hybrid:
        sizes = {"REPLICATE": ranks // shards, "SHARD": shards}
    switched_off = {
        name: off for name, off in OFF.items() if name not in method.variables and name in environ
    }
    return {
        **switched_off,
        **method.variables,
        **{f"PARALLELISM_CONFIG_DP_{name}_SIZE": str(size) for name, size in sizes.items()},
    }
