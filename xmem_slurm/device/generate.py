"""The generated part of a stand-in library: C for every symbol that nobody wrote by hand, and the
linker's script.

A generated default returns 0, which is "success" in all of these libraries. Defaults are weak, so
that a function of the same name in the hand-written sources takes their place. What a function must
write is in `src/outputs.txt`, where that is the same for every call.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

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
    "libcusparse": "libraries/cusparse.c",
    "libnccl": "libraries/nccl.c",
    "libnvidia-ml": "libraries/nvml.c",
    "libnvrtc": "libraries/nvrtc.c",
}
_EXPORTS = {"libcudart": ("cuda*", "__cuda*"), "libcuda": ("cu[A-Z]*",), "libnvidia-ml": ("nvml*",)}
"""Whole name spaces that are exported: extensions of torch use more of these libraries than torch
itself."""
_OF_OTHERS = {"libnvidia-ml": "nvml", "libcublasLt": "cublasLtMatrixTransform"}
"""What others than torch look up by its name (nvidia-ml-py) or are linked to (bitsandbytes until
0.44)."""

_PREAMBLE = """\
#include <stdlib.h>
#include <string.h>
extern void xmem_default(const char *function) __attribute__((weak));
extern void xmem_doubt(const char *code, const char *detail) __attribute__((weak));
#define DEFAULT(name) \\
    __attribute__((weak)) long name(void) { if (xmem_default) xmem_default(#name); return 0; }
"""
_IN_REGISTERS = 6
"""Integer and pointer arguments that are passed in registers on x86-64; aarch64 has two more."""
_MOST_ARGUMENTS = 24
_HANDLE_BYTES = 512


class Output(NamedTuple):
    """What a function writes, [(which of its integer and pointer arguments, value in C)], and the
    doubt it reports.

    One that is another by its `alias` does neither.
    """

    alias: str = ""
    writes: Sequence[tuple[str, str]] = ()
    type: str = ""
    code: str = ""


def sources_of(library: Library) -> list[Path]:
    """The hand-written C of a library; empty for one that is all defaults."""
    pattern = _HAND_WRITTEN.get(library.stem)
    return sorted(SOURCES.glob(pattern)) if pattern else []


def public_names(library: Library, cuda_major: int) -> frozenset[str]:
    """Every public entry point of the runtime and the driver; of others, what not only torch asks
    for.
    """
    if library.stem in _OF_OTHERS:
        return frozenset(name for name in outputs() if name.startswith(_OF_OTHERS[library.stem]))
    files = {"libcudart": f"cudart-{cuda_major}.txt", "libcuda": "cuda-driver.txt"}
    if library.stem not in files:
        return frozenset()
    return frozenset(_lines(SOURCES / "symbols" / files[library.stem]))


def defaults(names: Iterable[str]) -> str:
    """C source with a default for each of `names`."""
    outputs_by_name = outputs()
    parts = [_PREAMBLE]
    for name in sorted(names):
        output = outputs_by_name.get(name)
        parts.append(_writing(name, output) if output else f"DEFAULT({name})")
    return "\n".join(parts) + "\n"


def per_thread_aliases(names: frozenset[str]) -> dict[str, str]:
    """Alias -> function, for the spellings of per-thread default streams (`_ptds`, `_ptsz`): there
    is one default.
    """
    bases = ((name, re.sub(r"_pt[ds][sz]$", "", name)) for name in names)
    return {name: base for name, base in bases if base != name and base in names}


def version_script(library: Library, names: Iterable[str]) -> str:
    """The linker's version script: what is exported, under which version tags."""
    tags = [tag for tag in library.symbols if tag]
    wide = _EXPORTS.get(library.stem, ())
    if not tags:
        exported = "; ".join(
            [*sorted(names), *wide, *(["xmem_*"] if library.stem == "libcudart" else [])]
        )
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
        pattern, *columns = line.split(None, 4)
        if columns[0] == "=":
            output = Output(alias=columns[1])
        else:
            positions, kind, code, values = (*columns, "0")[:4]
            writes = zip(re.findall(r"\d+", positions), cycle(values.split(",")), strict=False)
            output = Output("", list(writes), kind, code.strip("-"))
        before, _, braced = pattern.partition("{")
        alternatives, _, after = braced.partition("}")
        table.update(
            (before + alternative + after, output) for alternative in alternatives.split(",")
        )
    return table


def _node(tag: str, names: list[str], local: str) -> str:
    return f"{tag} {{ global: {'; '.join(names)};{local} }};\n"


def _writing(name: str, output: Output) -> str:
    arguments = [f"a{number}" for number in range(_MOST_ARGUMENTS)]
    if output.alias:
        passed = ", ".join(arguments[:_IN_REGISTERS])
        body = f'extern long real_{name}() __asm__("{output.alias}"); return real_{name}({passed});'
    else:
        body = "".join(
            _written(f"a{position}", output.type, value) for position, value in output.writes
        )
        body += f'if (xmem_doubt) xmem_doubt("{output.code}", "{name}"); ' if output.code else ""
        body += "return 0;"
    parameters = ", ".join(f"void *{argument}" for argument in arguments)
    return f"__attribute__((weak)) long {name}({parameters}) {{ {body} }}"


def _written(argument: str, kind: str, value: str) -> str:
    """C that writes `value` through an argument, makes a handle there, or frees it."""
    if kind == "handle":
        return f"if (!(*(void **){argument} = calloc(1, {_HANDLE_BYTES}))) return 2; "
    if kind == "free":
        return f"free({argument}); "
    if kind.endswith("]"):
        return f"memset({argument}, 0, sizeof({kind})); "
    return f"if ({argument}) *({kind} *){argument} = ({kind})({value}); "


def _lines(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]
