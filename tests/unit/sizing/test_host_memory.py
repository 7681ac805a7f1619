"""What CUDA takes of a node's memory, of which no dry run sees anything."""

import dataclasses

import pytest

from tests.unit.report.test_report import GPT2, GPUS
from xmem_slurm.sizing import host_memory
from xmem_slurm.sizing.estimate import estimate
from xmem_slurm.units import GIB

MEASURED_MIB = {
    "9.0": 1717,
    "11.8": 1694,
    "12.8": 287,
}
"""Of a process, as published for a torch of that CUDA: the sources are in the module."""


@pytest.mark.parametrize("cuda", MEASURED_MIB)
def test_there_is_room_for_what_was_measured_of_cuda(cuda: str) -> None:
    trace = dataclasses.replace(GPT2, cuda_version=cuda)
    assert MEASURED_MIB[cuda] << 20 <= host_memory.for_cuda(trace) <= 2 * GIB
    assert str(f"{MEASURED_MIB[cuda]:,}") in (host_memory.__doc__ or "")


@pytest.mark.parametrize(
    ("cuda", "gib"), [("11.8", 2), ("12.1", 1), ("13.0", 1), (None, 1), ("", 1)]
)
def test_a_cuda_that_loads_all_its_kernels_takes_more(cuda: str | None, gib: int) -> None:
    held = dataclasses.replace(GPT2, host_bytes=3 * GIB, world_size=4, nodes=2, cuda_version=cuda)
    memory = host_memory.of_job(estimate([held], "l4", GPUS["l4"]))
    assert (memory.needed, memory.for_cuda) == (6 * GIB, 2 * gib * GIB)
    assert memory.to_ask_for == 6 * GIB + 2 * gib * GIB
