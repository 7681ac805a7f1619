"""Has a node the host memory that a way of training takes there? By what a process of it was seen to hold."""

from typing import NamedTuple

from xmem_slurm.planning.candidates import Base, Candidate
from xmem_slurm.site.schema import Site
from xmem_slurm.sizing.demand import memory_per_node
from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.slurm.request import Request
from xmem_slurm.units import MIB, human

EXACT = 1 / 32
"""To that it is known what a process holds (GROWTH of probe/_xmem/record/host)."""


class NodeMemory(NamedTuple):
    """Bytes of a node: `each` of its processes holds so many in large pieces, weights before they go to a GPU included.

    The job asks for `asked`, 0 where it leaves that to the site; the largest nodes that have these GPUs have `node`. As
    it is written, it takes `as_written` of a node.
    """

    each: int
    processes: int
    asked: int
    node: int
    as_written: int

    @property
    def needed(self) -> int:
        """What all processes of a node hold, if each holds as much as the one that was run."""
        return self.each * self.processes

    @property
    def fits(self) -> bool:
        """Whether a node has it, or the job as it is written has as little room: then a way is none the worse."""
        return self.needed <= max(self.node, (1 + EXACT) * self.as_written)

    @property
    def lacking(self) -> str:
        """What is too little for it, in words; "" where nothing is."""
        needed = f"{self.processes} x {human(self.each)} of host memory"
        if self.needed > self.node:
            no_worse = ", and the job as it is written takes as much" if self.fits else ""
            return f"{needed} on each node, which has {human(self.node)}{no_worse}"
        if 0 < self.asked < self.needed:
            return f"{needed} on each node, of which the job asks for {human(self.asked)}: ask for more"
        return ""


def host_memory(found: Estimate, candidate: Candidate, base: Base, request: Request, site: Site) -> NodeMemory:
    """Return what a way takes of its nodes' memory, and what there is."""
    nodes = (group for group in site.nodes if group.gpus.get(candidate.option, 0) >= candidate.per_node)
    most = max((group.memory_mib for group in nodes), default=0)
    each = max(rank.trace.host_bytes for rank in found.ranks)
    as_written = base.trace.host_bytes * -(-base.ranks // base.nodes)
    return NodeMemory(each, candidate.per_node, memory_per_node(request), most * MIB, as_written)
