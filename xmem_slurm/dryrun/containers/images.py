"""What does an image's header say: for which machine type it is, and which image?

Source: SIF's global header, 128 bytes (github.com/apptainer/sif, pkg/sif/sif.go): magic number,
machine type, UUID, times. A squashfs begins with its superblock, 96 bytes: when it was made, sizes,
where its tables are (Documentation/filesystems/squashfs.rst of Linux).
"""

import hashlib
import struct
from pathlib import Path

HEADER_BYTES = 128
_SIF_MAGIC, _SIF_MAGIC_AT, _SIF_MACHINE_AT = b"SIF_MAGIC\0", 32, 45
_SIF_MACHINES = {b"02": "x86_64", b"04": "aarch64", b"06": "ppc64le", b"11": "riscv64"}
# ELF's e_machine (elf(5)).
_ELF_MACHINES = {62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}


def identity(file: Path) -> int:
    """Return a number for this very image, by its header alone; 0 where no file can be read.

    A job may have named it: what is no regular file is not opened.
    """
    try:
        if not file.is_file():
            return 0
        header = _header(file)
    except OSError:
        return 0
    return int.from_bytes(hashlib.blake2b(header, digest_size=7).digest(), "big")


def machine(image: Path) -> str | None:
    """Return for which machine type an image is, by its header or its shell; None where that does
    not say.
    """
    try:
        if image.is_dir():
            return _machine_of_program(image)
        header = _header(image)
    except OSError:
        return None
    if header[_SIF_MAGIC_AT:].startswith(_SIF_MAGIC):
        return _SIF_MACHINES.get(header[_SIF_MACHINE_AT : _SIF_MACHINE_AT + 2])
    return None


def _machine_of_program(image: Path) -> str | None:
    """Return for which machine type the programs of a folder are."""
    for place in ("bin/sh", "usr/bin/sh", "usr/bin/env"):
        program = image / place
        if program.is_file():
            return _ELF_MACHINES.get(struct.unpack_from("<H", _header(program), 18)[0])
    return None


def _header(file: Path) -> bytes:
    with file.open("rb", buffering=0) as opened:
        return opened.read(HEADER_BYTES).ljust(HEADER_BYTES, b"\0")
