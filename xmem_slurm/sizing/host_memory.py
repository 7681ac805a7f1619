"""What do the processes of a job hold of a node's host memory, and does the job ask for as much?"""

from typing import NamedTuple

from xmem_slurm.units import human

EXACT = 1 / 32
"""To that it is known what a process holds (CHANGE of probe/_xmem/record/host)."""


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
    def fits(self) -> bool:
        """Whether a node has it, or the job as it is written has as little room: then a way is none
        the worse.
        """
        return self.needed <= max(self.node, (1 + EXACT) * self.as_written)

    @property
    def lacking(self) -> str:
        """What is too little for it, in words; "" where nothing is."""
        needed = f"{self.processes} x {human(self.per_process)} of host memory"
        if 0 < self.node < self.needed:
            no_worse = ", and the job as it is written takes as much" if self.fits else ""
            return f"{needed} on each node, which has {human(self.node)}{no_worse}"
        if 0 < self.requested < self.needed:
            return (
                f"{needed} on each node, of which the job asks for {human(self.requested)}: ask "
                "for more"
            )
        return ""
