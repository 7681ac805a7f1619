"""What does torch's own allocator answer? Its library, driven line by line on the stand-in CUDA
runtime.

Only libc10.so, libc10_cuda.so and the headers of one torch wheel are used. The program is
tests/contract/allocator_oracle/oracle.cpp; `build` compiles it once per torch under build/.

    python -m benchmarks.allocator_oracle 2.6.0 2.15.0

fetches those parts of the named releases' wheels from the package index into
build/torch-VERSION/torch, where the tests of the differences between releases and
`benchmarks.allocator_fuzz --torch` look for them.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from xmem_slurm.device.builder import build as build_stand_ins

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tests" / "contract" / "allocator_oracle"
PARTS = re.compile(r"torch/(lib/libc10(_cuda)?\.so|version\.py|include/(c10|torch/headeronly)/.*)")

_BYTE_STATS = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_COUNT_STATS = ("allocation", "segment", "active", "inactive_split")
STATS = (
    *(
        f"{stat}.{pool}.{figure}"
        for stat in (*_BYTE_STATS, *_COUNT_STATS)
        for pool in ("all", "small_pool", "large_pool")
        for figure in ("current", "peak", "allocated")
    ),
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "oversize_allocations.current",
    "oversize_segments.current",
)
"""The statistics of an answer, in its order, under torch.cuda.memory_stats()' names."""


class Case(NamedTuple):
    """The device and settings of one run."""

    settings: str = ""
    capacity: int = 8 << 30
    """Bytes that the device gives out."""
    total: int = 8 << 30
    """Bytes that it says it has."""
    fraction: float | None = None
    """torch.cuda.set_per_process_memory_fraction, called first; None: not called."""
    streams: int = 1
    pools: int = 0
    pending_events: bool = False
    """Events are ready only after "s", or when the allocator itself waits for them."""


class Oracle(NamedTuple):
    """A compiled oracle: the program, the stand-ins that it runs on, and the torch version that it
    speaks for.
    """

    program: Path
    stand_ins: Path
    torch_version: str

    def start(self, case: Case) -> "Conversation":
        """Start a fresh allocator."""
        return Conversation(self, case)

    def answers(self, case: Case, operations: Iterable[str]) -> list[str]:
        """Run all operations and return the lines of the answers; fewer when the allocator's
        process died.
        """
        with self.start(case) as conversation:
            output, _ = conversation.process.communicate(
                "".join(line + "\n" for line in operations)
            )
        return output.splitlines()


class Conversation:
    """One running allocator. Operations and answers are the lines that oracle.cpp describes."""

    def __init__(self, oracle: Oracle, case: Case) -> None:
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTORCH_", "XMEM_"))
        }
        environment |= {
            "LD_LIBRARY_PATH": str(oracle.stand_ins),
            "XMEM_DEVICE_LIMIT_BYTES": str(case.capacity),
            "XMEM_DEVICE_TOTAL_BYTES": str(case.total),
            "XMEM_DEVICE_EVENTS": "pending" if case.pending_events else "ready",
        }
        if case.settings:
            environment["PYTORCH_CUDA_ALLOC_CONF"] = case.settings
        fraction = "-" if case.fraction is None else repr(case.fraction)
        self.process = subprocess.Popen(
            [oracle.program, str(case.streams), str(case.pools), fraction],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, operation: str) -> tuple[int, dict[str, int]]:
        """Do one operation; return the address (-1: out of memory) and the statistics after it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(operation + "\n")
        self.process.stdin.flush()
        return read_answer(self.process.stdout.readline())

    def segments(self) -> list[str]:
        """Return the segments, one line each."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("p\n")
        self.process.stdin.flush()
        return list(iter(self.process.stdout.readline, "end\n"))


def read_answer(line: str) -> tuple[int, dict[str, int]]:
    """Take an answer apart: the address and the statistics."""
    address, *figures = map(int, line.split())
    return address, dict(zip(STATS, figures, strict=True))


def build(torch: Path) -> Oracle:
    """Compile the oracle for the torch package in this folder (`.../site-packages/torch`), if that
    was not done yet.
    """
    version = re.search(r"__version__ = '(.*?)'", (torch / "version.py").read_text())
    assert version is not None
    sources = sorted(path for path in SOURCE.rglob("*") if path.is_file())
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in sources) + str(torch).encode()
    ).hexdigest()
    stand_ins = build_stand_ins(torch, ROOT / "build" / "device")
    program = ROOT / "build" / "allocator-oracle" / f"{version[1]}-{digest[:16]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        # Wheels before 2.7 use the older string layout of libstdc++.
        symbols = (torch / "lib" / "libc10.so").read_bytes()
        runtime = [
            next(stand_ins.glob(f"{name}.so.*"))
            for name in ("libcudart", "libcuda", "libnvidia-ml")
        ]
        new_strings = b"torchCheckFailEPKcS2_jRKNSt7__cxx11" in symbols
        with tempfile.TemporaryDirectory(dir=program.parent) as folder:
            fresh = Path(folder) / "oracle"
            subprocess.run(
                [
                    *(
                        "g++",
                        "-std=c++20",
                        "-O1",
                        "-w",
                        f"-D_GLIBCXX_USE_CXX11_ABI={int(new_strings)}",
                    ),
                    *(
                        f"-I{torch / 'include'}",
                        f"-I{SOURCE / 'cuda'}",
                        SOURCE / "oracle.cpp",
                        "-o",
                        fresh,
                    ),
                    *(
                        f"-L{torch / 'lib'}",
                        "-lc10_cuda",
                        "-lc10",
                        f"-Wl,-rpath,{(torch / 'lib').resolve()}",
                    ),
                    # Releases before 2.8 look for the driver only among the libraries that are
                    # loaded already.
                    *("-Wl,--allow-shlib-undefined", "-Wl,--no-as-needed", *runtime),
                ],
                check=True,
            )
            fresh.rename(program)
    return Oracle(program, stand_ins, version[1])


def fetched() -> list[Path]:
    """Return the torch packages of several releases that are here: fetched by this command, or by
    `make`.
    """
    found = [
        *(ROOT / "build").glob("torch-*/torch"),
        *(ROOT / ".venvs").glob("torch-*/lib/*/site-packages/torch"),
    ]
    return [path for path in sorted(found) if (path / "lib" / "libc10_cuda.so").exists()]


def fetch(version: str) -> Path:
    """Fetch the two libraries and the headers of one torch release into build/."""
    target = ROOT / "build" / f"torch-{version}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=ROOT) as folder:
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "--dest",
                folder,
            ]
            subprocess.run([*command, f"torch=={version}"], check=True)
            [wheel] = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(
                    target, [name for name in archive.namelist() if PARTS.fullmatch(name)]
                )
    return target / "torch"


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Fetch the allocator of torch releases, for the tests"
    )
    parser.add_argument("versions", nargs="+")
    for version in parser.parse_args().versions:
        print(fetch(version))


if __name__ == "__main__":
    main()
