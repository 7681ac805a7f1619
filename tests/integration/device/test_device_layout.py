"""The structs that the stand-ins declare lie as in NVIDIA's headers, for the oldest and newest CUDA
of each major."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from xmem_slurm.device import generate

CACHE = Path(__file__).parents[3] / "build" / "cuda-headers"
WHEELS = [
    ("nvidia-cuda-runtime-cu12", "12.1.105"),
    ("nvidia-cuda-runtime-cu12", "12.9.79"),
    ("nvidia-cuda-runtime", "13.0.96"),
    ("nvidia-cuda-runtime", "13.5.37"),
]
TYPEDEFS = {"CUmemAllocationProp"}  # in NVIDIA's headers; the other names are struct tags there too
MACROS = (
    "__host__ __device__ __device_builtin__ __device_builtin_texture_type__ "
    "__device_builtin_surface_type__"
)
MACROS += (
    " __cudart_builtin__ __inline_hint__ __noinline__ __global__ __specialization_static "
    "CUDARTAPI CUDA_CB"
)


def headers(package: str, version: str) -> Path:
    """The include folder of a wheel, downloaded once; crt/host_defines.h, which is in another
    wheel, is made up."""
    folder = CACHE / f"{package}-{version}"
    if not (folder / "crt" / "host_defines.h").is_file():
        pip = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(CACHE),
        ]
        subprocess.run([*pip, f"{package}=={version}"], check=True, capture_output=True)
        (wheel,) = CACHE.glob(f"{package.replace('-', '_')}-{version}-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if "/include/" in name and not name.endswith("/"):
                    target = folder / name.partition("/include/")[2]
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
        defines = "".join(f"#define {name}\n" for name in MACROS.split())
        aligned = (
            "#define __align__(n) __attribute__((aligned(n)))\n#define __builtin_align__(n) "
            "__align__(n)\n"
        )
        (folder / "crt").mkdir(exist_ok=True)
        (folder / "crt" / "host_defines.h").write_text(defines + aligned)
    return folder


def fields(major: int) -> dict[str, list[str]]:
    """The members of each struct that we declare."""
    source = generate.SOURCES / "cudart" / "structs.h"
    define = f"-DXMEM_CUDA_MAJOR={major}"
    text = subprocess.run(
        ["gcc", "-E", "-P", define, str(source)], capture_output=True, text=True, check=True
    ).stdout
    found = {}
    for name in ("cudaDeviceProp", "cudaPointerAttributes", "cudaFuncAttributes"):
        body = re.search(rf"struct {name} \{{(.*?)\}};", text, re.DOTALL)
        assert body
        found[name] = [
            each for each in re.findall(r"(\w+)(?:\[\d+\])?;", body[1]) if each != "reserved"
        ]
    found["CUmemAllocationProp"] = ["type", "requestedHandleTypes", "location.type", "location.id"]
    found["CUmemAllocationProp"] += ["win32HandleMetaData", "allocFlags"]
    return found


def layout(includes: str, major: int, folder: Path, arguments: list[str]) -> dict[str, str]:
    lines = [f'#include "{name}"' for name in includes.split()]
    lines += ["#include <stdio.h>", "#include <stddef.h>", "int main(void) {"]
    for struct, members in fields(major).items():
        kind = struct if struct in TYPEDEFS and "structs.h" not in includes else f"struct {struct}"
        lines.append(f'printf("{struct} %zu\\n", sizeof({kind}));')
        lines += [
            f'printf("{struct}.{member} %zu\\n", offsetof({kind}, {member}));' for member in members
        ]
    source, program = folder / "layout.c", folder / "layout"
    source.write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run(["gcc", "-w", *arguments, str(source), "-o", str(program)], check=True)
    printed = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return dict(line.split() for line in printed.splitlines())


@pytest.mark.torch
@pytest.mark.parametrize(("package", "version"), WHEELS)
def test_structs_lie_as_in_nvidia_s_headers(package: str, version: str, tmp_path: Path) -> None:
    major = int(version.partition(".")[0])
    ours = layout(
        "structs.h",
        major,
        tmp_path,
        [f"-I{generate.SOURCES / 'cudart'}", f"-DXMEM_CUDA_MAJOR={major}"],
    )
    theirs = layout("driver_types.h cuda.h", major, tmp_path, [f"-I{headers(package, version)}"])
    assert ours == theirs
    assert len(ours) > 90
