"""Has a node the host memory that a way of training takes there? By what a process of it was seen
to hold.
"""

from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.site.schema import Site
from xmem_slurm.sizing.demand import memory_per_node
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.sizing.host_memory import NodeMemory, for_cuda, per_process
from xmem_slurm.slurm.request import Request
from xmem_slurm.units import MIB


def host_memory(
    estimate: Estimate, candidate: Candidate, base: Base, request: Request, site: Site
) -> NodeMemory:
    """Return what a way takes of its nodes' memory, and what there is."""
    nodes = (
        group for group in site.nodes if group.gpus.get(candidate.option, 0) >= candidate.per_node
    )
    largest_mib = max((group.memory_mib for group in nodes), default=0)
    as_written = base.trace.host_bytes * -(-base.ranks // base.nodes)
    return NodeMemory(
        per_process(estimate),
        candidate.per_node,
        for_cuda(estimate.largest.trace),
        memory_per_node(request),
        largest_mib * MIB,
        as_written,
    )
