"""The generated part of a stand-in library: C for every symbol that nobody wrote by hand, and the linker's script.

A generated default returns 0, which is "success" in all of these libraries. Defaults are weak, so that a function of
the same name in the hand-written sources takes their place. Sizes that a function must write are in `src/outputs.txt`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from xmem_slurm.device.needs import Library

SOURCES = Path(__file__).parent / "src"

_HAND_WRITTEN = {
    "libcudart": "cudart/*.c",
    "libcuda": "driver/*.c",
    "libcublas": "libraries/cublas.c",
    "libcublasLt": "libraries/cublaslt.c",
    "libcudnn": "libraries/cudnn*.c",
    "libcufft": "libraries/cufft.c",
    "libcupti": "libraries/cupti.c",
    "libcusolver": "libraries/cusolver.c",
    "libcusparse": "libraries/cusparse.c",
    "libnccl": "libraries/nccl.c",
    "libnvidia-ml": "libraries/nvml.c",
    "libnvrtc": "libraries/nvrtc.c",
}
_EXPORTS = {"libcudart": ("cuda*", "__cuda*"), "libcuda": ("cu[A-Z]*",), "libnvidia-ml": ("nvml*",)}
"""Whole name spaces that are exported: extensions of torch use more of these libraries than torch itself."""

_PREAMBLE = """\
extern void xmem_default(const char *function) __attribute__((weak));
extern void xmem_doubt(const char *code, const char *detail) __attribute__((weak));
#define DEFAULT(name) \\
    __attribute__((weak)) long name(void) { if (xmem_default) xmem_default(#name); return 0; }
"""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a function writes zeros (positions among its integer and pointer arguments), and the doubt it reports."""

    positions: tuple[int, ...]
    type: str
    code: str | None


def sources_of(library: Library) -> list[Path]:
    """The hand-written C of a library; empty for one that is all defaults."""
    pattern = _HAND_WRITTEN.get(library.stem)
    return sorted(SOURCES.glob(pattern)) if pattern else []


def public_names(library: Library, cuda_major: int) -> frozenset[str]:
    """Every public entry point of the runtime and the driver; of the other libraries, none beyond what torch needs."""
    files = {"libcudart": f"cudart-{cuda_major}.txt", "libcuda": "cuda-driver.txt"}
    if library.stem not in files:
        return frozenset()
    return frozenset(_lines(SOURCES / "symbols" / files[library.stem]))


def defaults(names: Iterable[str]) -> str:
    """C source with a default for each of `names`."""
    known = outputs()
    parts = [_PREAMBLE]
    for name in sorted(names):
        output = known.get(name)
        parts.append(_writing(name, output) if output else f"DEFAULT({name})")
    return "\n".join(parts) + "\n"


def per_thread_aliases(names: frozenset[str]) -> dict[str, str]:
    """Alias -> function, for the spellings of per-thread default streams (`_ptds`, `_ptsz`): there is one default."""
    bases = ((name, re.sub(r"_pt[ds][sz]$", "", name)) for name in names)
    return {name: base for name, base in bases if base != name and base in names}


def version_script(library: Library, names: Iterable[str]) -> str:
    """The linker's version script: what is exported, under which version tags."""
    tags = [tag for tag in library.symbols if tag]
    wide = _EXPORTS.get(library.stem, ())
    if not tags:
        exported = "; ".join([*sorted(names), *wide, *(["xmem_*"] if library.stem == "libcudart" else [])])
        return f"{{ global: {exported}; local: *; }};\n" if exported else "{ local: *; };\n"
    main = library.soname if library.soname in tags else tags[0]
    elsewhere = frozenset().union(*(library.symbols[tag] for tag in tags if tag != main))
    script = [_node(main, [*sorted(frozenset(names) - elsewhere), *wide], " local: *;")]
    script += [_node(tag, sorted(library.symbols[tag]), "") for tag in tags if tag != main]
    if library.stem == "libcudart":
        script.append(_node("XMEM", ["xmem_*"], ""))
    return "".join(script)


@cache
def outputs() -> Mapping[str, Output]:
    """`src/outputs.txt`, one entry for each function."""
    table: dict[str, Output] = {}
    for line in _lines(SOURCES / "outputs.txt"):
        pattern, positions, kind, code = line.split()
        output = Output(tuple(int(each) for each in positions.split(",")), kind, None if code == "-" else code)
        letters = re.search(r"\[(\w+)\]", pattern)
        for letter in letters[1] if letters else " ":
            table[re.sub(r"\[\w+\]", letter, pattern)] = output
    return table


def _node(tag: str, names: list[str], rest: str) -> str:
    return f"{tag} {{ global: {'; '.join(names)};{rest} }};\n"


def _writing(name: str, output: Output) -> str:
    arguments = ", ".join(f"void *a{i}" for i in range(max(output.positions) + 1))
    body = "".join(f" if (a{i}) *({output.type} *)a{i} = 0;" for i in output.positions).replace(
        "size_t", "unsigned long"
    )
    if output.code:
        body += f' if (xmem_doubt) xmem_doubt("{output.code}", "{name}");'
    return f"__attribute__((weak)) long {name}({arguments}) {{{body} return 0; }}"


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
