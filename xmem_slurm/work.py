"""What does one rank do in one optimizer step? Products, other FLOPs, bytes, launches and
collectives: data alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """`count` matrix products alike: each is a batch of (m x k) times (k x n)."""

    m: int
    n: int
    k: int
    batch: int = 1
    precision: str = "bf16"
    count: int = 1

    @property
    def flops(self) -> float:
        """Of all of them; a multiplication and an addition are two."""
        return 2.0 * self.m * self.n * self.k * self.batch * self.count


@dataclass(frozen=True, slots=True)
class Collective:
    """`count` collectives alike.

    `kind` is "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all" or
    "send". `bytes` are of the whole buffer: of an all_gather or a reduce_scatter the gathered one.
    The group has `ranks` ranks on `nodes` nodes. `beside` is the part of the step's computation
    that it can run beside: 0 for what is waited for at once, as of tensor parallelism; of the
    buckets of DDP the last backward pass.
    """

    kind: str
    bytes: int
    ranks: int
    nodes: int = 1
    count: int = 1
    beside: float = 0.0


@dataclass(frozen=True, slots=True)
class CountedRow:
    """What was done `count` times in the step that the stand-ins kept; the kinds are those of
    device/src/cudart/work.c.

    `word` is a precision, or whether a collective was waited for; `of` are m, n, k and batch of a
    product, bytes and ranks of a collective, FLOPs or bytes of others.
    """

    kind: str
    word: str
    of: tuple[int, int, int, int]
    count: int


@dataclass(frozen=True, slots=True)
class StepCounts:
    """What the stand-ins counted from one optimizer step to the next: kernels, backward passes,
    bytes that were allocated, and the rest by row.
    """

    launches: int
    backwards: int
    allocated: int
    rows: Sequence[CountedRow]


@dataclass(frozen=True, slots=True)
class Work:
    """What one rank does in one optimizer step, all of its micro batches together.

    `flops` are those that are no products, by precision: attention in one kernel, and convolutions.
    Precisions are "fp64", "fp32", "tf32", "bf16", "fp16", "fp8" and "int8". `bytes` are what all
    other kernels read and write in GPU memory, `launches` how many kernels there are.
    `offloaded_bytes` go between host and GPU, both ways together.
    """

    products: tuple[Product, ...]
    flops: Mapping[str, float]
    bytes: float
    launches: int
    collectives: tuple[Collective, ...]
    offloaded_bytes: float = 0.0

    @property
    def total_flops(self) -> float:
        """Those of products and all others."""
        return sum(product.flops for product in self.products) + sum(self.flops.values())
