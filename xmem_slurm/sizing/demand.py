"""What does a request for GPUs leave open, and what does it settle, in the site's words?"""

from xmem_slurm.site.schema import GpuOption, Site
from xmem_slurm.sizing.placement import Demand
from xmem_slurm.slurm import gres
from xmem_slurm.slurm.request import GpuRequest, Request


def demand_of(request: Request, site: Site) -> Demand:
    """Return what a request leaves open, in the site's words."""
    shares = [
        accelerator for accelerator in request.accelerators if accelerator.resource in gres.SHARED
    ]
    if shares:
        named = [
            name for name, option in site.option.items() if _is_share_of(option, shares[0], site)
        ]
    else:
        types = request.gpu_types
        named = [
            name
            for name, option in site.option.items()
            if option.share is None and option.type in types
        ]
    return Demand(
        gpus_per_node=request.gpus_per_node or 1,
        option=named[0] if len(named) == 1 else None,
        partitions=request.partitions,
        constraint=request.constraint,
        gpus_total=request.gpus_total or 1,
        nodes=request.nodes or 1,
        cpus_per_node=request.cpus_per_node,
        memory_bytes=memory_per_node(request),
        alone="exclusive" in request.settings,
        whole_nodes="exclusive" in request.settings and request.value("exclusive") is None,
        share=shares[0].resource if shares else None,
        least_units=shares[0].amount if shares and shares[0].resource == "mps" else 1,
    )


def _is_share_of(option: GpuOption, requested: GpuRequest, site: Site) -> bool:
    """Whether a request for shares means this option; Slurm types a share as its GPU."""
    if option.share is None or option.share.kind != requested.resource:
        return False
    return requested.type in (None, option.type, site.option[option.share.of].type)


def memory_per_node(request: Request) -> int:
    """Return the host memory that the request wants of a node, in bytes; 0 where it leaves that to
    the site.
    """
    amounts = {setting.name: gres.parse_memory(setting.value or "0") for setting in request.memory}
    per_gpu = amounts.get("mem-per-gpu", 0) * (request.gpus_per_node or 1)
    return amounts.get("mem", 0) or amounts.get("mem-per-cpu", 0) * request.cpus_per_node or per_gpu
