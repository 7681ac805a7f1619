"""What do the processes of a job hold of a node's host memory, and does the job ask for as much?"""

from typing import NamedTuple

from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.units import GIB, human

EXACT = 1 / 32
"""To that it is known what a process holds (CHANGE of probe/_xmem/record/host)."""

CUDA_BYTES = GIB
"""Of each process, for what CUDA's libraries take on the host: no dry run shows that. A rule of
thumb, and a whole unit."""


class NodeMemory(NamedTuple):
    """Bytes of a node: each of its processes holds so many, weights before they go to a GPU and
    the workers of its data loaders included, what CUDA's libraries take not.

    The job asks for `requested`, 0 where it leaves that to the site; the largest nodes that have
    these GPUs have `node`, 0 where that is in no question. As it is written, it takes `as_written`
    of a node.
    """

    per_process: int
    processes: int
    requested: int
    node: int = 0
    as_written: int = 0

    @property
    def needed(self) -> int:
        """What all processes of a node hold, if each holds as much as the one that was run."""
        return self.per_process * self.processes

    @property
    def held(self) -> str:
        """What its processes hold, in words."""
        of_one = human(self.per_process)
        return of_one if self.processes == 1 else f"{self.processes} x {of_one}"

    @property
    def is_short(self) -> bool:
        """Whether the job asks for less than was seen."""
        return 0 < self.requested < self.needed

    @property
    def to_ask_for(self) -> int:
        """What a job is to ask for of a node that is to have room for them."""
        return self.needed + self.processes * CUDA_BYTES

    @property
    def fits(self) -> bool:
        """Whether a node has it, or the job as it is written has as little room: then a way is none
        the worse.
        """
        return self.needed <= max(self.node, (1 + EXACT) * self.as_written)

    @property
    def lacking(self) -> str:
        """What is too little for it, in words; "" where nothing is."""
        needed = f"{self.held} of host memory"
        if 0 < self.node < self.needed:
            no_worse = ", and the job as it is written takes as much" if self.fits else ""
            return f"{needed} on each node, which has {human(self.node)}{no_worse}"
        if self.is_short:
            return (
                f"{needed} on each node, of which the job asks for {human(self.requested)}: ask "
                "for more"
            )
        return ""


def of_job(estimate: Estimate, requested: int = 0) -> NodeMemory:
    """Return what the processes of a job were seen to hold of a node, beside what it asks for."""
    trace = estimate.largest.trace
    per_process = max(rank.trace.host_bytes for rank in estimate.ranks)
    processes = -(-trace.world_size // max(1, trace.nodes))
    return NodeMemory(per_process, processes, requested)
