"""What a shared object needs from others and what it defines: the dynamic part of an ELF file, read
directly.

Only the section headers, `.dynamic`, `.dynsym`, `.dynstr` and the GNU version sections are read, so
that a library of 450 MB costs a few milliseconds and no binutils are called. 64-bit little-endian
files (x86-64, aarch64) only.

Sources: the System V gABI, chapters 4 and 5; the LSB, "Symbol Versioning" (Elf64_Verneed,
Elf64_Vernaux).
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

_SHT_DYNAMIC = 6
_SHT_DYNSYM = 11
_SHT_GNU_VERNEED = 0x6FFFFFFE
_SHT_GNU_VERSYM = 0x6FFFFFFF
_DT_NEEDED = 1
_SHN_UNDEF = 0
_CPP = b"_Z"
"""How the name of every symbol of C++ begins."""
_VERSION_INDEX = 0x7FFF  # the top bit of a versym entry marks a hidden definition


class ElfError(ValueError):
    """The file is not a 64-bit little-endian ELF file, or is cut short."""


class Needed(NamedTuple):
    """An undefined symbol, the version tag it was linked against and the library of that tag (""
    for none).
    """

    symbol: str
    version: str
    library: str


@dataclass(frozen=True, slots=True)
class Dynamic:
    """The dynamic part of one shared object."""

    libraries: frozenset[str]
    """The SONAMEs of its DT_NEEDED entries."""
    undefined: frozenset[Needed]
    defined: frozenset[str]
    """Those of C: torch defines 300,000 of C++, which no CUDA library has a part in."""


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


def read(path: Path) -> Dynamic:
    """Read the dynamic part of the shared object at `path`; raises ElfError or OSError."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ElfError(f"{path}: damaged ELF file ({error})") from error
    except ElfError as error:
        raise ElfError(f"{path}: {error}") from None


def _read(file: BinaryIO) -> Dynamic:
    """Read the dynamic section and symbols (elf(5)).

    Raises:
        ElfError: it is no 64-bit little-endian ELF file.
    """
    sections = _sections(file)
    by_kind = {section.kind: section for section in sections}

    def content(section: _Section) -> bytes:
        file.seek(section.offset)
        return file.read(section.size)

    libraries: set[str] = set()
    if dynamic := by_kind.get(_SHT_DYNAMIC):
        strings = content(sections[dynamic.link])
        libraries = {
            _string(strings, value)
            for tag, value in struct.iter_unpack("<qQ", content(dynamic))
            if tag == _DT_NEEDED
        }
    versions: dict[int, tuple[str, str]] = {}
    if verneed := by_kind.get(_SHT_GNU_VERNEED):
        versions = _version_needs(content(verneed), content(sections[verneed.link]))
    symbols = by_kind.get(_SHT_DYNSYM)
    if not symbols:
        return Dynamic(frozenset(libraries), frozenset(), frozenset())
    strings, table = content(sections[symbols.link]), content(symbols)
    versym = by_kind.get(_SHT_GNU_VERSYM)
    indices = [entry[0] for entry in struct.iter_unpack("<H", content(versym))] if versym else []
    undefined: set[Needed] = set()
    defined: set[str] = set()
    for number, (name, _info, _other, section, _value, _size) in enumerate(
        struct.iter_unpack("<IBBHQQ", table)
    ):
        if not name:
            continue
        if section != _SHN_UNDEF:
            if not strings.startswith(_CPP, name):
                defined.add(_string(strings, name))
            continue
        symbol = _string(strings, name)
        index = indices[number] & _VERSION_INDEX if indices else 0
        undefined.add(Needed(symbol, *versions.get(index, ("", ""))))
    return Dynamic(frozenset(libraries), frozenset(undefined), frozenset(defined))


def _sections(file: BinaryIO) -> list[_Section]:
    """Return the section headers.

    Raises:
        ElfError: it is no 64-bit little-endian ELF file, or cut off.
    """
    header = file.read(64)
    if header[:6] != b"\x7fELF\x02\x01":
        raise ElfError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", header, 0x28)
    size, count = struct.unpack_from("<HH", header, 0x3A)
    file.seek(offset)
    table = file.read(size * count)
    if len(table) < size * count:
        raise ElfError("the section headers lie beyond its end")
    sections = []
    for index in range(count):
        _name, kind, _flags, _address, start, length, link = struct.unpack_from(
            "<IIQQQQI", table, index * size
        )
        sections.append(_Section(kind, start, length, link))
    return sections


def _version_needs(needs: bytes, strings: bytes) -> dict[int, tuple[str, str]]:
    """Map version index -> (version tag, library), from the chained Elf64_Verneed and Elf64_Vernaux
    records.
    """
    versions: dict[int, tuple[str, str]] = {}
    at, has_more = 0, bool(needs)
    while has_more:
        _version, count, library, first, step = struct.unpack_from("<HHIII", needs, at)
        aux = at + first
        for _ in range(count):
            _hash, _flags, index, name, following = struct.unpack_from("<IHHII", needs, aux)
            versions[index] = (_string(strings, name), _string(strings, library))
            aux += following
        at, has_more = at + step, step != 0
    return versions


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(b"\0", offset)].decode()
