"""What does a job on a share of a GPU get, so that a wrong estimate hurts it and not its
neighbours?

Slurm counts shares and fences nothing, so a share is given only where something else holds the job
to it:
- `mps`: the MPS server does (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, CUDA's MPS documentation, "Memory
  Management"), whatever the job runs;
- `shard`: the job's own torch does, from the release on that has `per_process_memory_fraction` in
  its allocator's settings (2.10); not with backend:cudaMallocAsync, which reads no other setting.
Both are variables: a job that was seen to overrule them gets no share (`not_held`). They are a
fence against mistakes and not against malice: what a dry run did not show, and memory outside
torch's allocator beyond the CUDA context that was reckoned with, is on the job's honour.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from xmem_slurm.allocator.releases import release
from xmem_slurm.doubts import Doubt
from xmem_slurm.errors import UsageError
from xmem_slurm.rewriting import dialect
from xmem_slurm.site.schema import Gpu, GpuOption
from xmem_slurm.slurm.request import Request
from xmem_slurm.trace import Trace
from xmem_slurm.units import MIB

FRACTION = "per_process_memory_fraction"

_DROPPED = re.compile(
    rb"\benv\s+(-\S+\s+)*(-i|-|--ignore-environment)\s|\bexec\s+-c\b"
    rb"|\b(sudo|su)\s|\bsrun\b[^\n;|&]*--export[= ](?!ALL)"
)
"""What starts programs in another environment, whatever the dry run came to of it."""
_PARTS = 10**6
"""The fraction is written with six digits and rounded down."""


class Grant(NamedTuple):
    """A share: how Slurm is asked for it, and the variables that hold the job to it."""

    entry: str
    variables: Mapping[str, str]


def not_held(
    option: GpuOption, trace: Trace, environ: Mapping[str, str], texts: Iterable[bytes] = ()
) -> str | None:
    """Return why nothing holds a job to its share of the option, or None.

    `trace` is of its dry run, `environ` what it was submitted from, `texts` are its script and
    those that this runs.
    """
    assert option.share is not None
    overruling = (Doubt.OWN_ENVIRONMENT, Doubt.OWN_ALLOCATOR)
    overruled = {noted.doubt: noted.detail for noted in trace.doubts if noted.doubt in overruling}
    if option.share.kind == "mps":
        overruled.pop(Doubt.OWN_ALLOCATOR, None)
    elif FRACTION not in release(trace.torch_version).keys:
        return f"torch {trace.torch_version} takes no limit"
    elif "cudaMallocAsync" in environ.get(_variable(environ), ""):
        return "cudaMallocAsync takes no limit"
    dropped = next(filter(None, map(_DROPPED.search, texts)), None)
    if dropped is not None:
        return f"the job runs {dropped[0].decode(errors='replace').strip()}"
    return next(iter(overruled.values()), None)


def grant(option: GpuOption, gpu: Gpu, units: int, environ: Mapping[str, str]) -> Grant:
    """Return the share of `units` units of the GPU for a job that is submitted from `environ`.

    torch's part is the share without the CUDA context, which the allocator does not count.
    """
    share = option.share
    assert share is not None
    size = units * (gpu.total_bytes // share.per_gpu)
    entry = dialect.share_entry(option, units)
    if share.kind == "mps":
        return Grant(entry, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={size // MIB}M"})
    name = _variable(environ)
    parts = max(0, size - gpu.context_bytes) * _PARTS // gpu.total_bytes
    setting = f"{FRACTION}:{parts / _PARTS:.6f}"
    return Grant(entry, {name: ",".join(filter(None, [environ.get(name), setting]))})


def check_exported(request: Request, variables: Iterable[str]) -> None:
    """Make sure that the job will get the variables that hold it to its share, as they are set.

    Raises:
        UsageError: it would not.
    """
    words = (request.value("export") or "ALL").split(",")
    if "ALL" not in words or any(word.partition("=")[0] in variables for word in words):
        raise UsageError(
            f"--export={request.value('export')} would keep the limit of its share from the job"
        )


def _variable(environ: Mapping[str, str]) -> str:
    """Return the name under which torch reads the settings: the newer one goes before, where it is
    set.
    """
    return "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in environ else "PYTORCH_CUDA_ALLOC_CONF"
