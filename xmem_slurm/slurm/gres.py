"""How do `--gres`, `--gpus…` and `--tres-per-task` spell a request for GPUs, and how is the type in
one changed?

Source: sbatch(1), `--gres`, `--gpus`, `--tres-per-task`; `slurm_get_next_tres` in
src/common/slurm_protocol_defs.c. A list is `name[:type][:count]`, comma separated, `name` being
left out in the `--gpus` family. After the name, what is a number (with K, M, G, T or P) is a count
and what is not is a type. A type that begins with a digit (the MIG profile `1g.10gb`) needs a count
after it: Slurm refuses `gpu:1g.10gb` and takes `gpu:1g.10gb:1`.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from xmem_slurm.errors import UsageError

GPU = "gpu"
SHARED = ("shard", "mps")
"""GRES that are a part of a GPU."""

GPUS_FAMILY = ("gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task")
"""Options whose list leaves the name `gpu` out."""

_SUFFIXES = "kmgtp"


class GresError(UsageError):
    """A list of generic resources that Slurm would not understand; the message quotes it."""


class Gres(NamedTuple):
    """One entry of a list, in its own spelling.

    `prefix` is what stands before the name (`gres:`, `gres/`) or "". `count_text` is the count as
    written, "" for none (which means 1). `suffix` is a trailing note such as `(S:0)`, which Slurm
    prints but users seldom write.
    """

    prefix: str
    name: str
    type: str | None
    separator: str
    count_text: str
    suffix: str

    @property
    def amount(self) -> int:
        """How many: `2K` is 2048."""
        if not self.count_text:
            return 1
        if self.count_text.isdigit():
            return int(self.count_text)
        return int(self.count_text[:-1]) << 10 * (_SUFFIXES.index(self.count_text[-1].lower()) + 1)

    @property
    def is_gpu(self) -> bool:
        """Whether this asks for whole GPUs or MIG instances."""
        return self.name == GPU

    @property
    def is_share(self) -> bool:
        """Whether this asks for a part of a GPU (mps, shard)."""
        return self.name in SHARED

    def __str__(self) -> str:
        text = self.prefix + self.name + ("" if self.type is None else f":{self.type}")
        return text + (self.separator + self.count_text if self.count_text else "") + self.suffix


def parse(text: str) -> tuple[Gres, ...]:
    """Read a `--gres` or `--tres-per-task` list; `none` and what is no generic resource (`cpu=4`)
    give no entries.

    Raises:
        GresError: an entry is empty or has too many parts.
    """
    return tuple(entry for entry in _entries(text) if isinstance(entry, Gres))


def parse_option(name: str, value: str) -> tuple[Gres, ...]:
    """Read the value of the option `name`: gres, tres-per-task or one of the `--gpus` family.

    Raises:
        GresError: as `parse`.
    """
    return tuple(entry for entry in _of_option(name, value) if isinstance(entry, Gres))


def with_type(name: str, value: str, gpu_type: str | None) -> str:
    """Return the value of the option `name` with another GPU type, or none; everything else stays
    as it was written.

    Raises:
        GresError: the value asks for GPUs in more than one entry, so that there is no one type to
            change, or cannot be read.
    """
    entries = _of_option(name, value)
    if sum(isinstance(entry, Gres) and entry.is_gpu for entry in entries) > 1:
        raise GresError(f"--{name}={value} asks for GPUs in more than one entry")
    changed = [
        _typed(entry, gpu_type) if isinstance(entry, Gres) and entry.is_gpu else entry
        for entry in entries
    ]
    return _written(name, changed)


def with_amount(name: str, value: str, amount: int) -> str:
    """Return the value of the option `name` with another number of GPUs, of no type; everything
    else stays.

    Raises:
        GresError: as `with_type`.
    """

    def counted(entry: Gres | str) -> Gres | str:
        if isinstance(entry, Gres) and entry.is_gpu:
            return entry._replace(count_text=str(amount))
        return entry

    entries = _of_option(name, with_type(name, value, None))
    return _written(name, [counted(entry) for entry in entries])


def with_entry(value: str | None, entry: str) -> str:
    """Return a --gres list with `entry` in place of the one of its name, else at the end.

    Raises:
        GresError: as `parse`.
    """
    name = entry.partition(":")[0]
    entries = _entries(value or "none")
    kept = [
        entry if isinstance(present, Gres) and present.name == name else str(present)
        for present in entries
    ]
    return ",".join(kept if entry in kept else [*kept, entry])


def without(name: str, value: str, resources: Collection[str]) -> str | None:
    """Return the value of the option `name` without its entries of these resources; None if nothing
    is left of it.

    Raises:
        GresError: as `parse`.
    """
    kept = [
        str(entry)
        for entry in _of_option(name, value)
        if not (isinstance(entry, Gres) and entry.name in resources)
    ]
    return ",".join(kept) or None


def _written(name: str, entries: Sequence[Gres | str]) -> str:
    return ",".join(
        str(entry).removeprefix(f"{GPU}:" if name in GPUS_FAMILY else "") for entry in entries
    )


def parse_memory(text: str) -> int:
    """Return the bytes that `--mem` and its kin ask for: a number of MiB, or with K, M, G or T
    (`str_to_mbytes`).

    K is rounded up to whole MiB. 0 means all the memory of a node.

    Raises:
        GresError: this is no size.
    """
    number, unit = text, "m"
    trimmed = text[:-1] if text[-1:] in {"b", "B"} else text
    if trimmed[-1:].lower() in {"k", "m", "g", "t"}:
        number, unit = trimmed[:-1], trimmed[-1].lower()
    if not (number.isascii() and number.isdigit()):
        raise GresError(
            f"{text!r} is no memory size: write a number of MiB, or one with K, M, G or T"
        )
    if unit == "k":
        return -(-int(number) // 1024) << 20
    return int(number) << {"m": 20, "g": 30, "t": 40}[unit]


def _of_option(name: str, value: str) -> list[Gres | str]:
    """Read the value of an option; the `--gpus` family has no names in it: `2`, `a100`,
    `a100:2`.
    """
    if name in GPUS_FAMILY:
        return [_after_name("", GPU, ":" + part, value) for part in value.split(",")]
    return _entries(value)


def _entries(text: str) -> list[Gres | str]:
    if text.lower() == "none":
        return []
    return [_entry(part, text) for part in text.split(",")]


def _entry(part: str, text: str) -> Gres | str:
    """Read one entry; another kind of TRES (`cpu=4`, `license/x:1`) comes back as it is."""
    prefix = next((prefix for prefix in ("gres:", "gres/") if part.lower().startswith(prefix)), "")
    bare = part[len(prefix) :]
    if not prefix and (
        "/" in bare or bare.partition("=")[0].partition(":")[0] in {"cpu", "mem", "node", "billing"}
    ):
        return part
    name, separator, _ = bare.partition(":")
    if not separator:
        name = bare.partition("=")[0]
    if not name:
        raise GresError(f"{text!r} has an entry without a name")
    return _after_name(part[: len(prefix)], name, bare[len(name) :], text)


def _typed(entry: Gres, gpu_type: str | None) -> Gres:
    needs_count = not entry.count_text and (gpu_type is None or gpu_type[0].isdigit())
    return entry._replace(type=gpu_type, count_text="1" if needs_count else entry.count_text)


def _after_name(prefix: str, name: str, following: str, text: str) -> Gres:
    """Read what follows the name: `:type`, `:count`, `:type:count` or `=count`."""
    following, bracket, note = following.partition("(")
    separator = ":"
    if "=" in following:
        following, separator, last = following.rpartition("=")
        parts = [*following.split(":")[1:], last]
    else:
        parts = following.split(":")[1:]
    if not all(parts) or len(parts) > 2:
        raise GresError(
            f"{text!r} is no list of generic resources: name[:type][:count], comma separated"
        )
    if parts and _is_count(parts[-1]):
        return Gres(
            prefix, name, parts[0] if len(parts) > 1 else None, separator, parts[-1], bracket + note
        )
    if len(parts) > 1:
        raise GresError(f"{text!r}: {parts[-1]!r} is no count")
    return Gres(prefix, name, parts[0] if parts else None, separator, "", bracket + note)


def _is_count(text: str) -> bool:
    digits = text[:-1] if text[-1].lower() in _SUFFIXES else text
    return digits.isascii() and digits.isdigit()
