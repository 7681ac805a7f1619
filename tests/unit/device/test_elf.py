"""The ELF reader, on shared objects that gcc has just made."""

import subprocess
from pathlib import Path

import pytest

from xmem_slurm.device import elf


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A library that needs `answer` of another one under the version tag LIBQ_1, and `plain` of
    nobody."""
    (tmp_path / "q.c").write_text("int answer(void) { return 42; }\n")
    (tmp_path / "q.map").write_text("LIBQ_1 { global: answer; local: *; };\n")
    (tmp_path / "p.c").write_text(
        "int answer(void); int plain(void);\nint ask(void) { return answer() + plain(); }\n"
    )
    library = [
        "gcc",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libq.so.1",
        "-Wl,--version-script,q.map",
        "-o",
        "libq.so.1",
        "q.c",
    ]
    subprocess.run(library, cwd=tmp_path, check=True)
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-o", "libp.so", "p.c", "libq.so.1"], cwd=tmp_path, check=True
    )
    return tmp_path


def test_reads_needs_and_definitions(linked: Path) -> None:
    dynamic = elf.read(linked / "libp.so")
    assert "libq.so.1" in dynamic.libraries
    assert elf.Needed("answer", "LIBQ_1", "libq.so.1") in dynamic.undefined
    assert elf.Needed("plain", "", "") in dynamic.undefined
    assert "ask" in dynamic.defined
    assert "answer" not in dynamic.defined
    assert "answer" in elf.read(linked / "libq.so.1").defined


def test_a_file_that_is_no_elf_file(tmp_path: Path) -> None:
    script = tmp_path / "libfake.so"
    script.write_text("GROUP ( libreal.so )\n" * 10)
    with pytest.raises(elf.ElfError, match=r"libfake\.so: not a 64-bit little-endian ELF file"):
        elf.read(script)


@pytest.mark.parametrize("keep", [70, 200, 0.5, 0.9])
def test_a_file_cut_short(linked: Path, keep: float) -> None:
    whole = (linked / "libp.so").read_bytes()
    cut = linked / "cut.so"
    cut.write_bytes(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(elf.ElfError, match=r"cut\.so"):
        elf.read(cut)
