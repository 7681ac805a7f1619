"""How does a site want a request for one of its GPU options to be spelled? A request in, the
options to set out.

The user's own spelling stays where the site takes it: only the kind of GPU changes in it. Where it
does not, the request is written in the first option that the site's dialect lists; the number of
GPUs is never another one.
"""

from collections.abc import Sequence

from xmem_slurm.errors import UsageError
from xmem_slurm.site.schema import Dialect, GpuOption
from xmem_slurm.slurm import gres
from xmem_slurm.slurm.constraint import conjoin
from xmem_slurm.slurm.edit import Edit, apply, type_edits
from xmem_slurm.slurm.request import GPU_OPTIONS, Request
from xmem_slurm.slurm.submission import Submission


def edits(
    request: Request,
    option: GpuOption,
    dialect: Dialect,
    share: str | None = None,
    *,
    typed: bool = True,
) -> Sequence[Edit]:
    """Return what to set in a job of one component so that it asks for `option`; nothing if it does
    already.

    `share` is the entry of --gres for a share of a GPU; it stands in place of the GPUs. Without
    `typed` the GRES type is left off, and the option asked for by its feature.

    Raises:
        UsageError: it cannot be said here, or not without changing the number of GPUs; the message
            says why.
    """
    gpu_type = option.type if typed and dialect.select == "type" else None
    values = (
        _with_share(request, share) if share is not None else _with_type(request, gpu_type, dialect)
    )
    if option.gres is not None:
        listed = values["gres"] if "gres" in values else request.value("gres")
        values["gres"] = gres.with_entry(listed, option.gres)
    by_feature = share is not None or option.both or gpu_type is None
    if by_feature and option.constraint is not None:
        values["constraint"] = _conjoined(request.constraint, option.constraint)
    elif gpu_type is None and option.gres is None and share is None:
        raise UsageError("the chosen GPU has no feature to ask for it by")
    values |= host_memory(request, option, dialect, shared=share is not None)
    return [Edit(name, value) for name, value in values.items() if value != request.value(name)]


def host_memory(
    request: Request, option: GpuOption, dialect: Dialect, *, shared: bool
) -> dict[str, str | None]:
    """Return the option that asks for host memory by the site's rule; none where the user asked, or
    there is no rule.

    A job on a share of a GPU gets what one with a GPU of its own would: its process is the same.
    For --mem and --mem-per-cpu the GPUs on a node must be known; where they are not, host memory is
    left to Slurm's defaults.
    """
    per_gpu = option.host_memory_mib or dialect.host_memory_mib
    if per_gpu is None or request.memory:
        return {}
    name = dialect.host_memory_option
    gpus = 1 if shared else request.gpus_per_node
    if shared and name == "mem-per-gpu":  # Slurm has it for whole GPUs only
        name = "mem"
    if name == "mem-per-gpu":
        return {name: f"{per_gpu}M"}
    if not gpus:
        return {}
    return {
        name: f"{per_gpu * gpus if name == 'mem' else -(-per_gpu * gpus // request.cpus_per_node)}M"
    }


def words(option: GpuOption, dialect: Dialect, count: int = 1) -> tuple[str, ...]:
    """Return options of sbatch or srun that ask for `count` GPUs of an option on a node, or for its
    least share.
    """
    asking = Submission(("--ntasks=1", f"--gres=gpu:{count}"), {}, None)
    return apply(edits(asking.request, option, dialect, least_share(option)), asking).argv


def share_entry(option: GpuOption, units: int) -> str:
    """Return the entry of --gres for so many units of a share."""
    assert option.share is not None
    return ":".join(filter(None, [option.share.kind, option.type, str(units)]))


def least_share(option: GpuOption) -> str | None:
    """Return the entry for the fewest units that a job gets; None for a whole GPU."""
    return share_entry(option, option.share.least) if option.share is not None else None


def _with_type(request: Request, gpu_type: str | None, dialect: Dialect) -> dict[str, str | None]:
    """Give every GPU request the type, in another option where this one is not taken here."""
    spelled = [
        name for name in GPU_OPTIONS if any(gpu.setting.name == name for gpu in request.gpus)
    ]
    if all(name in dialect.options for name in spelled):
        return {edit.name: edit.value for edit in type_edits(request, gpu_type)}
    if len(spelled) > 1:
        raise UsageError(
            f"{_listed(spelled)} together cannot be said in this site's {_listed(dialect.options)}"
        )
    target = dialect.options[0]
    count = _count(request, spelled[0], target)
    entry = ":".join(filter(None, ["gpu", gpu_type, str(count)]))
    values = {name: gres.without(name, request.value(name) or "", ["gpu"]) for name in spelled}
    in_gres = target == "gres"
    values[target] = (
        gres.with_entry(request.value(target), entry) if in_gres else entry.partition(":")[2]
    )
    return values


def _with_share(request: Request, share: str) -> dict[str, str | None]:
    """Put a share in place of the GPUs, or of the share that the user wrote: Slurm takes no GPU
    beside one.
    """
    spelled = {accelerator.setting.name for accelerator in request.accelerators}
    values = {
        name: gres.without(name, request.value(name) or "", ["gpu"])
        for name in GPU_OPTIONS
        if name in spelled
    }
    listed = values["gres"] if "gres" in values else request.value("gres")
    kind, *type_and_count = share.split(":")
    typed = [
        accelerator.type
        for accelerator in request.accelerators
        if accelerator.resource == kind and accelerator.type is not None
    ]
    entry = (
        ":".join([kind, typed[0], *type_and_count]) if typed and len(type_and_count) == 1 else share
    )
    return values | {"gres": gres.with_entry(listed, entry)}


def _conjoined(existing: str | None, feature: str) -> str:
    expression = conjoin(existing, feature)
    if expression is None:
        raise UsageError(
            f"--constraint={existing} cannot be AND-ed with {feature} in Slurm's syntax"
        )
    return expression


def _count(request: Request, source: str, target: str) -> int:
    """Return the number to write in `target` for what is asked for in `source`."""
    total, per_node = request.gpus_total, request.gpus_per_node
    count: int | None = None
    if target in ("gres", "gpus-per-node"):
        count = per_node
    elif source in ("gres", "gpus-per-node") and request.nodes is None and request.ntasks > 1:
        count = None  # how many nodes there will be is Slurm's choice
    elif target == "gpus":
        count = total
    elif total is not None and request.value("ntasks") is not None and total % request.ntasks == 0:
        count = total // request.ntasks
    if not count:
        raise UsageError(
            f"this site takes no --{source}, and how much that is in --{target} is left open; say "
            "--nodes and --ntasks"
        )
    return count


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"--{name}" for name in names)
