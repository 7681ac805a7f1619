"""What a CUDA build of torch needs from NVIDIA: versions, libraries and symbols, read from files,
nothing run.

The files may be a job's own work: what is read of them is bounded, and names that a compiler is
given are checked.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from xmem_slurm.device import elf
from xmem_slurm.errors import DeviceBuildError

_NAMES = """
    cublas cublasLt cuda cudart cudnn cudss cufft cufile cupti curand cusolver cusparse cusparseLt
    nccl nvJitLink nvToolsExt nvidia-ml nvrtc nvshmem_host
"""
STAND_INS = frozenset(f"lib{name}" for name in _NAMES.split())
"""Libraries that get a stand-in, by the name before `.so`."""

ALWAYS = ("libcuda.so.1", "libnvidia-ml.so.1")
"""What torch opens by name while it runs, whether or not it is linked to it."""

_PREFIXES = {
    **{name: f"lib{name}" for name in _NAMES.split()},
    "__cuda": "libcudart",
    "cuda": "libcudart",
    "cuFile": "libcufile",
    "nvml": "libnvidia-ml",
    "nvshmem": "libnvshmem_host",
    "nvtx": "libnvToolsExt",
}
"""Symbols without a version tag belong to a library by their prefix, the longest one."""
_DRIVER = re.compile(r"cu[A-Z]")
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_TAG = re.compile(r"[\w.]{0,100}", re.ASCII)
_SONAME = re.compile(r"[\w-]+\.so(\.\d+)*", re.ASCII)
_RELEASE = re.compile(r"[\w.+-]{0,100}", re.ASCII)
_MOST_TEXT = 1 << 20
"""Bytes of version.py and of METADATA that are read; torch's have 300 and 30,000."""

# What the stand-ins say when neither the installed wheels nor torch's requirements name a version.
_DEFAULT_CUDNN = {12: "9.1.0", 13: "9.13.0"}
_DEFAULT_NCCL = {12: "2.21.5", 13: "2.27.7"}


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions as NVIDIA's headers encode them: CUDA 13.0 is 13000, cuDNN 9.19.0 91900, NCCL 2.28.9
    22809.
    """

    torch: str
    torch_commit: str
    cuda: int
    cublas: int
    cudnn: int
    nccl: int

    @property
    def cuda_major(self) -> int:
        """12 or 13."""
        return self.cuda // 1000


@dataclass(frozen=True, slots=True)
class Library:
    """A library that torch is linked to: its SONAME and, per version tag ("" for none), the symbols
    it must have.
    """

    soname: str
    symbols: dict[str, frozenset[str]]

    @property
    def stem(self) -> str:
        """The name before `.so`."""
        return _stem(self.soname)


@dataclass(frozen=True, slots=True)
class Needs:
    """All that a build of stand-ins is made from, and where the torch is that needs it."""

    torch_folder: str
    versions: Versions
    libraries: tuple[Library, ...]

    def __post_init__(self) -> None:
        """Refuse what is no name of C's, of the linker's or of a file in the cache: it may come
        from anybody.
        """
        texts = [(self.versions.torch, _RELEASE), (self.versions.torch_commit, _RELEASE)]
        for library in self.libraries:
            texts.append((library.soname, _SONAME))
            for tag, symbols in library.symbols.items():
                texts += [(tag, _TAG), *((symbol, _SYMBOL) for symbol in symbols)]
        wrong = [text for text, form in texts if not form.fullmatch(text)]
        if wrong or any(library.stem not in STAND_INS for library in self.libraries):
            raise DeviceBuildError(
                f"torch in {self.torch_folder} needs {(wrong or ['other libraries'])[0]!r:.60}"
            )


def read(torch: Path, cudnn: Path | None = None) -> Needs:
    """Read what the torch in folder `torch` needs; raises DeviceBuildError. `cudnn`: see
    `read_versions`.
    """
    return Needs(str(torch), read_versions(torch, cudnn), tuple(read_libraries(torch)))


def shared_objects(torch: Path) -> list[Path]:
    """Torch's own shared objects."""
    return sorted([*torch.glob("lib/*.so*"), *torch.glob("*.so")])


def read_versions(torch: Path, cudnn: Path | None = None) -> Versions:
    """Read the versions of the torch in folder `torch`; raises DeviceBuildError if it is no CUDA 12
    or 13 build.

    `cudnn` is a file of the cuDNN that this torch would load, where one is installed. Outside
    NVIDIA's wheels its full name has the version: libcudnn_graph.so.9.10.2.
    """
    try:
        text = _text(torch / "version.py")
    except OSError as error:
        raise DeviceBuildError(f"no torch in {torch}: {error.strerror} (version.py)") from error
    values = dict(re.findall(r"^(\w+)(?:\s*:[^=]*)?\s*=\s*'([^']*)'", text, re.MULTILINE))
    version = values.get("__version__", "unknown")
    if "cuda" not in values:
        raise DeviceBuildError(f"torch {version} in {torch} is not a CUDA build")
    major, minor, _ = _numbers(values["cuda"])
    if major not in _DEFAULT_CUDNN:
        raise DeviceBuildError(
            f"torch {version} is built for CUDA {values['cuda']}; CUDA 12 and 13 have stand-ins"
        )
    return Versions(
        torch=version,
        torch_commit=values.get("git_version", ""),
        cuda=1000 * major + 10 * minor,
        cublas=_encode(
            _wheel_version(torch, "cublas") or _required(torch, "cublas") or f"{major}.{minor}.0"
        ),
        cudnn=_encode(
            _wheel_version(torch, "cudnn")
            or (_version_in_name(cudnn) if cudnn is not None else None)
            or _required(torch, "cudnn")
            or _DEFAULT_CUDNN[major]
        ),
        nccl=_encode(
            _wheel_version(torch, "nccl") or _required(torch, "nccl") or _DEFAULT_NCCL[major]
        ),
    )


def read_libraries(torch: Path) -> list[Library]:
    """Read which of NVIDIA's libraries torch needs, and which of their symbols; raises
    DeviceBuildError.
    """
    try:
        objects = [elf.read(path) for path in shared_objects(torch)]
    except (OSError, elf.ElfError) as error:
        raise DeviceBuildError(f"cannot read the libraries of torch in {torch}: {error}") from error
    sonames = {
        name
        for shared_object in objects
        for name in shared_object.libraries
        if _stem(name) in STAND_INS
    }
    if not any(_stem(name) == "libcudart" for name in sonames):
        raise DeviceBuildError(
            f"torch in {torch} is not linked to libcudart.so: not a CUDA build, or not a complete "
            "one"
        )
    sonames.update(ALWAYS)
    by_stem = {_stem(name): name for name in sonames}
    defined = frozenset().union(*(shared_object.defined for shared_object in objects))
    symbols: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for need in frozenset().union(*(shared_object.undefined for shared_object in objects)):
        if need.symbol in defined:
            continue
        soname = need.library if need.version else by_stem.get(_owner(need.symbol), "")
        if soname in sonames:
            symbols[soname][need.version].add(need.symbol)
    return [
        Library(name, {tag: frozenset(names) for tag, names in sorted(symbols[name].items())})
        for name in sorted(sonames)
    ]


def _stem(soname: str) -> str:
    return soname.partition(".so")[0]


def _owner(symbol: str) -> str:
    prefix = max(filter(symbol.startswith, _PREFIXES), key=len, default="")
    return _PREFIXES.get(prefix) or ("libcuda" if _DRIVER.match(symbol) else "")


def _wheel_version(torch: Path, library: str) -> str | None:
    """The version of NVIDIA's wheel that is installed beside torch."""
    for info in torch.parent.glob(f"nvidia_{library}*.dist-info"):
        if match := re.fullmatch(rf"nvidia_{library}(?:_cu\d+)?-([\d.]+)", info.stem):
            return match[1]
    return None


def _version_in_name(library: Path) -> str | None:
    match = re.search(r"\.so\.(\d+\.\d+\.\d+)$", library.resolve().name)
    return match[1] if match else None


def _required(torch: Path, library: str) -> str | None:
    """The version of NVIDIA's wheel that torch's requirements name."""
    pattern = re.compile(rf"^Requires-Dist: nvidia-{library}(?:-cu\d+)?==([\d.]+)", re.MULTILINE)
    for metadata in torch.parent.glob("torch-*.dist-info/METADATA"):
        if match := pattern.search(_text(metadata)):
            return match[1]
    return None


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST_TEXT).decode(errors="replace")


def _encode(version: str) -> int:
    major, minor, patch = _numbers(version)
    return 10000 * major + 100 * minor + patch


def _numbers(version: str) -> list[int]:
    parts = [*version.split("."), "0", "0"][:3]
    if not all(re.fullmatch(r"\d{1,4}", part, re.ASCII) for part in parts):
        raise DeviceBuildError(f"torch's files name a version {version!r:.60}")
    return [int(part) for part in parts]
