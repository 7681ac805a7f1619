"""What do the processes of a job hold of a node's host memory, and does the job ask for as much?

What CUDA and its libraries take of it no dry run shows. Measured by others, of one process with
torch, its kernels' images included, in MiB:

    torch of 2018, a convolution          1,717  https://github.com/pytorch/pytorch/issues/12873
    torch of 2019                         1,947  https://discuss.pytorch.org/t/42814
    2.0.1+cu118, a collective of NCCL     1,422  https://github.com/pytorch/pytorch/issues/106511
    2.2.0.dev+cu118, driver 515, eager    1,694  https://github.com/pytorch/pytorch/issues/113326
    the same, lazy                          114  the same
    2.9.1+cu128, driver 570, L4             287  https://github.com/MakazhanAlpamys/Soup/issues/655

The last is anonymous and shared memory, with that of `import torch`; the others are what resident
memory grew by, mapped files included. Eager is CUDA that loads all kernels of its libraries at
once, as it does with those that were built by CUDA 11.6 or older. Others are loaded as they are
called: by default since CUDA 12.2, and before that where torch asks for it, from 1.13 on
(https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/lazy-loading.html).
"""

import re
from typing import NamedTuple

from xmem_slurm.sizing.estimate import Estimate
from xmem_slurm.trace import Trace
from xmem_slurm.units import GIB, human

EXACT = 1 / 32
"""To that it is known what a process holds (CHANGE of probe/_xmem/record/host)."""

_LAZY = 12
"""The CUDA of torch from which on all libraries of its wheels load kernels as they are called."""
_CUDA_BYTES, _EAGER_CUDA_BYTES = GIB, 2 * GIB
"""Of each process, for what CUDA takes on the host: no less than was measured, in whole units. What
is left over is for cuBLAS, cuDNN and NCCL, which in the measurement of a lazy CUDA did nothing."""


class NodeMemory(NamedTuple):
    """Bytes of a node: each of its processes holds so many, weights before they go to a GPU and
    the workers of its data loaders included, and at most `cuda_per_process` more for CUDA.

    The job asks for `requested`, 0 where it leaves that to the site; the largest nodes that have
    these GPUs have `node`, 0 where that is in no question. As it is written, it takes `as_written`
    of a node.
    """

    per_process: int
    processes: int
    cuda_per_process: int
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
    def for_cuda(self) -> int:
        """What CUDA takes in all processes of a node, at most."""
        return self.processes * self.cuda_per_process

    @property
    def to_ask_for(self) -> int:
        """What a job is to ask for of a node that is to have room for them."""
        return self.needed + self.for_cuda

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
    processes = -(-trace.world_size // max(1, trace.nodes))
    return NodeMemory(per_process(estimate), processes, for_cuda(trace), requested)


def per_process(estimate: Estimate) -> int:
    """Return the most that a process of a job was seen to hold."""
    return max(rank.trace.host_bytes for rank in estimate.ranks)


def for_cuda(trace: Trace) -> int:
    """Return what CUDA takes of the host in a process of this torch, at most."""
    major = re.match(r"\d+", trace.cuda_version or "")
    is_lazy = major is None or int(major[0]) >= _LAZY
    return _CUDA_BYTES if is_lazy else _EAGER_CUDA_BYTES
