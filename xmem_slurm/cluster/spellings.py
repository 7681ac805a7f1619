"""Which spellings of a request for a GPU does a live cluster take? Slurm is asked, by trials that
queue nothing.

A site's submit plugin has its say in `sbatch --test-only`, too, so what it refuses shows: options,
GRES types, requests without host memory.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Literal

from xmem_slurm.cluster import client

OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
Memory = Literal["mem", "mem-per-gpu", "mem-per-cpu"]


@dataclass(frozen=True)
class GpuKind:
    """A GPU as it may be asked for: by its GRES type, by a feature, with another GRES beside it."""

    type: str | None
    constraint: str | None
    beside: str | None


@dataclass(frozen=True)
class Accepted:
    """What Slurm took: GPUs in these options, and what is needed with them. None at all: `refused`
    says why.
    """

    options: Sequence[str] = OPTIONS
    by: Literal["type", "constraint"] = "type"
    """"constraint" where GPUs have types, and only their features are taken."""
    memory: Memory | None = None
    refused: Mapping[str, str] = field(default_factory=dict)
    """Slurm's words for each option that it does not take."""


def ask(kind: GpuKind, partition: str) -> Accepted:
    """Ask Slurm, most usual spelling first: by type before by feature, without host memory before
    with it.

    Raises:
        SlurmError: there is no sbatch.
    """
    return find(kind, partial(client.trial, client.find_sbatch(os.environ), partition))


def find(kind: GpuKind, refusal: Callable[[Sequence[str]], str | None]) -> Accepted:
    """Find what is taken; `refusal` says why these options of sbatch are not, or None."""
    memories: tuple[Memory | None, ...] = (None, "mem", "mem-per-gpu", "mem-per-cpu")
    ways: list[Literal["type", "constraint"]] = ["type"] if kind.type or not kind.constraint else []
    ways += ["constraint"] if kind.constraint else []
    first: Mapping[str, str] = {}
    for by, memory in product(ways, memories):
        memory_words = [f"--{memory}=1G"] if memory else []
        why = {option: refusal([*_words(kind, option, by), *memory_words]) for option in OPTIONS}
        refused = {option: words for option, words in why.items() if words is not None}
        accepted = [option for option in OPTIONS if option not in refused]
        if accepted:
            return Accepted(accepted, by if kind.type else "type", memory, refused)
        first = first or refused
    return Accepted((), refused=first)


def _words(kind: GpuKind, option: str, by: str) -> list[str]:
    gpu = f"{kind.type}:1" if kind.type and by == "type" else "1"
    listed = [f"gpu:{gpu}"] if option == "gres" else []
    listed += [kind.beside] if kind.beside else []
    words = [f"--gres={','.join(listed)}"] if listed else []
    words += [f"--{option}={gpu}"] if option != "gres" else []
    words += [f"--constraint={kind.constraint}"] if by == "constraint" else []
    return ["--ntasks=1", *words]
