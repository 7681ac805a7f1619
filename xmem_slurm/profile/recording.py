"""What did the profiler see? The file in which the probe left a few steps on the CPU, read and
checked.

One JSON object (gzip), written whole and renamed into place:

    schema_version  1
    state, error, argv, python, rank, world_size, component, nodes, torch_version, cuda_version,
    allocator_settings, gpu
                    as in a trace (`xmem_slurm/trace.py`)
    rows            in order of time; `parent` is the number of an operator's row, or -1
                    ["o", parent, name, [[address, shape[], type]], [bytes]]
                                                      an operator or a scope, its tensors, and what
                                                      it takes on a GPU while it computes each of
                                                      its results
                    ["m", parent, address, bytes]     memory: a free has negative bytes
    tags            [{category, addresses[]}]: what the addresses held when the scope "xmem::tag:N"
                    was open
    library_doubts  [{code, detail, count}]: what is not known of such bytes; null where nothing
                    could be asked
    made_up         [{code, detail, count}]: data and weights that others took the place of
    seconds, peak_resident_bytes
                    what the run cost

Scopes are operators, too: "nn.Module: NAME", "xmem::backward", "Optimizer.step#NAME" (torch's own),
and the redirection's "xmem::to_device", "xmem::on_device", "xmem::to_host".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from xmem_slurm import trace_schema, untrusted
from xmem_slurm.errors import NoEstimate
from xmem_slurm.trace import Noted, Process
from xmem_slurm.trace_file import fields_of, noted

SCHEMA_VERSION = 1
SUFFIX = ".profile.gz"


class Tensor(NamedTuple):
    """A tensor that an operator was given: the address of its storage, its shape, its type by
    torch's name.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str


class Operator(NamedTuple):
    """An operator or a scope. `parent` is a row's number or -1; `last` the row at which it has
    ended.

    `workspaces` are the bytes that it takes on a GPU, one after the other, while it computes each
    of its results.
    """

    parent: int
    name: str
    inputs: tuple[Tensor, ...]
    last: int
    workspaces: tuple[int, ...] = ()


class Memory(NamedTuple):
    """An allocation, or with negative `size` a free, in bytes."""

    parent: int
    address: int
    size: int


class Tag(NamedTuple):
    """These addresses held `category` at a moment."""

    category: str
    addresses: Sequence[int]


@dataclass(frozen=True, slots=True)
class Recording(Process):
    """One process that ran on the CPU under the profiler."""

    rows: Sequence[Operator | Memory]
    tags: Sequence[Tag]
    seconds: float
    peak_resident_bytes: int
    library_doubts: Sequence[Noted] | None = None
    made_up: Sequence[Noted] = ()

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor number of torch's version."""
        major, minor = self.torch_version.split(".")[:2]
        return int(major), int(minor)

    def above(self, number: int) -> Iterator[tuple[int, Operator]]:
        """Yield an operator and all that it was called from, innermost first."""
        while number >= 0:
            row = self.rows[number]
            assert isinstance(row, Operator), "only operators have children"
            yield number, row
            number = row.parent


def aten(names: str) -> frozenset[str]:
    """Return the profiler's names of these operators of torch."""
    return frozenset(f"aten::{name}" for name in names.split())


def read(path: Path, allowance: untrusted.Allowance | None = None) -> Recording:
    """Read a recording. The job could have written it, so its size is bounded, that of all by
    `allowance`.

    Raises:
        NoEstimate: the file is not a recording of this schema version.
    """
    try:
        raw = untrusted.read_json(path, allowance or untrusted.Allowance())
        if raw["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {raw['schema_version']!r:.9}, not {SCHEMA_VERSION}")
        profile = trace_schema.checked(raw, trace_schema.ProfileFile)
        return Recording(
            **fields_of(raw, Process),
            rows=_rows(profile.rows),
            tags=[Tag(tag.category, tag.addresses) for tag in profile.tags],
            seconds=profile.seconds,
            peak_resident_bytes=profile.peak_resident_bytes,
            library_doubts=None
            if profile.library_doubts is None
            else noted(profile.library_doubts),
            made_up=noted(profile.made_up or ()),
        )
    except untrusted.DAMAGE as error:
        raise NoEstimate(f"{path}: not a profile: {error}") from error


def _rows(raw: Sequence[Any]) -> list[Operator | Memory]:
    last = list(range(len(raw)))
    for number in range(len(raw) - 1, -1, -1):
        parent = raw[number][1]
        if parent >= number:
            raise ValueError("an operator that began before the one that it is part of")
        if parent >= 0:
            last[parent] = max(last[parent], last[number])
    return [_row(row, last[number]) for number, row in enumerate(raw)]


def _row(row: Sequence[Any], last: int) -> Operator | Memory:
    if row[0] == "m":
        return Memory(row[1], row[2], row[3])
    inputs = tuple(Tensor(address, tuple(shape), dtype) for address, shape, dtype in row[3])
    return Operator(row[1], row[2], inputs, last, tuple(row[4]) if len(row) > 4 else ())
