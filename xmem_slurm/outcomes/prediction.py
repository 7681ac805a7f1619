"""What was predicted of a job, in the few figures that travel with it, and that its outcome is held
against.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from xmem_slurm.outcomes import fields

if TYPE_CHECKING:
    from xmem_slurm.site.schema import Gpu
    from xmem_slurm.sizing.estimate import Estimate


class Prediction(NamedTuple):
    """Sizes in bytes, of the largest process of a job; 0 where nothing was estimated.

    `gpu` is the GPU's name as CUDA has it, `unseen` the doubts that have a price (`Doubt.code`),
    `margin` a share of `fits_in_bytes` and `promise` the probability that it is enough, None where
    it is a prior. `uses_bytes` is what the job takes of a GPU that has room for everything.
    `host_bytes` is the host memory that all its processes on a node hold, if each holds as much as
    those that were run, and `host_cuda_bytes` at most what CUDA takes there, which no dry run sees.
    `script` and `run` are salted hashes (`records.key_of_script` and `key_of_run`). `asked` and
    `given` are what the job asked for and what it was given, as the site's record has it
    (`gpu:h200:1`). `sampled`: it goes as it was written, so that the outcomes of all jobs are
    known.
    """

    script: str = ""
    run: str = ""
    gpu: str = ""
    capability: str = ""
    engine: str = ""
    unseen: Sequence[str] = ()
    margin: float = 0.0
    promise: float | None = None
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    fits_in_bytes: int = 0
    outside_bytes: int = 0
    required_bytes: int = 0
    uses_bytes: int = 0
    host_bytes: int = 0
    host_cuda_bytes: int = 0
    asked: Sequence[str] = ()
    given: Sequence[str] = ()
    sampled: bool = False


def of(estimate: "Estimate", gpu: "Gpu") -> Prediction:
    """Return what an estimate predicts of a job on this GPU."""
    from xmem_slurm.sizing import host_memory  # noqa: PLC0415 - what reads predictions sizes nothing

    rank, on_host = estimate.largest, host_memory.of_job(estimate)
    return Prediction(
        gpu=gpu.cuda_name,
        capability=gpu.capability,
        engine=estimate.engine,
        unseen=sorted({noted.code for noted in rank.doubts if noted.doubt.price is not None}),
        margin=rank.margin.share,
        promise=rank.margin.probability,
        reserved_bytes=rank.peak_reserved_bytes,
        allocated_bytes=rank.replay.peak_allocated_bytes,
        fits_in_bytes=rank.fits_in_bytes,
        outside_bytes=rank.outside_allocator_bytes,
        required_bytes=rank.required_bytes,
        uses_bytes=rank.uses_up_to_bytes,
        host_bytes=on_host.needed,
        host_cuda_bytes=on_host.for_cuda,
    )


def parse(content: Mapping[str, Any]) -> Prediction:
    """Return a prediction from its JSON object, in which nothing need stand.

    Raises:
        ValueError, TypeError, AttributeError: what stands there is of another form.
    """
    values = {
        name: content.get(name, default) for name, default in Prediction._field_defaults.items()
    }
    for name, default in Prediction._field_defaults.items():
        value, check = values[name], _CHECKS.get(name) or _CHECK_OF[type(default)]
        if isinstance(default, tuple):
            values[name] = [check(entry) for entry in value]
        elif value is not None or default is not None:
            values[name] = check(value)
    return Prediction(**values)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


_CHECK_OF: Mapping[type, Callable[[Any], Any]] = {
    str: fields.word,
    int: fields.size,
    float: fields.number,
    bool: _flag,
}
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "gpu": fields.name,
    "asked": fields.name,
    "given": fields.name,
    "unseen": fields.word,
    "promise": lambda value: fields.number(value, 1),
}
