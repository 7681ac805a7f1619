"""The stand-in CUDA libraries for one torch: built with gcc when first needed, then found in the
user's cache.

A finished build is a folder `<cache>/<identity>` that holds the libraries under their real SONAMEs,
and `build.json` with their sizes. The identity covers everything that the result depends on, by
content: what torch needs, our sources, the compiler. So no torch, whatever its files are made to
look like, comes by the build of another. A build is made in `<cache>/making` under a lock and
renamed into place, so that a reader sees a whole build or none, two builds at once do the work
once, and what a killed build leaves is swept away by the next.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from xmem_slurm.device import elf, generate, needs
from xmem_slurm.errors import DeviceBuildError
from xmem_slurm.state import own_files

COMPILERS_AT_ONCE = 2
MANIFEST = "build.json"
HELPER = "cudnn-plans"
ANY_C_LIBRARY = ("-nodefaultlibs", "-lgcc")
"""Linked so, a library asks for the C library's functions without a version, and those of any glibc
will do: who loads it has them. Where there are several, the dynamic linker takes the oldest
(glibc's elf/dl-lookup.c)."""
_FLAGS = ("-std=c11", "-O1", "-fPIC", "-shared", "-w", "-pipe")


@dataclass(frozen=True, slots=True)
class CachedBuild:
    """One finished build in the cache; `torch_folder` is where its torch was when it was built."""

    path: Path
    torch_version: str
    torch_folder: str
    cuda: int


def cache_folder() -> Path:
    """Where builds are kept: `device` in the user's cache directory."""
    return own_files.cache_folder("device")


def build(torch_dir: Path, cache: Path | None = None, cudnn: Path | None = None) -> Path:
    """Return the folder with the stand-ins for the torch package in `torch_dir`, building them if
    there are none yet.

    `cudnn` is a file of the real cuDNN that this torch would load, if one is known: its version
    becomes the stand-in's. Raises DeviceBuildError: no CUDA build of torch there, or as `make`
    does.
    """
    return make(needs.read(torch_dir.resolve(), cudnn), cache)


def make(wanted: needs.Needs, cache: Path | None = None) -> Path:
    """Return the folder with the stand-ins for a torch that needs this, building them if there are
    none yet.

    Raises DeviceBuildError: no compiler, a compiler error, no room in the cache, or a cache that
    others could have written to: the libraries run in the user's name.
    """
    compiler = find_compiler()
    folder = cache if cache is not None else cache_folder()
    target = folder / _identity(wanted, compiler)
    try:
        make_own(folder, target)
        if _is_whole(target):
            return target
        making(folder).mkdir(mode=0o700, exist_ok=True)
        with _locked(making(folder) / f"{target.name}.lock"):
            if not _is_whole(target):
                shutil.rmtree(target, ignore_errors=True)
                _build_into(target, wanted, compiler[0])
    except OSError as error:
        raise DeviceBuildError(
            f"cannot write the stand-in CUDA libraries to {folder}: {error.strerror}"
        ) from error
    return target


def making(folder: Path) -> Path:
    """Where builds of the cache `folder` are made: its locks are there too, and a dry run sees
    nothing of it.
    """
    return folder / "making"


def cached_builds(cache: Path | None = None) -> list[CachedBuild]:
    """The finished builds in the cache, by torch version."""
    folder = cache if cache is not None else cache_folder()
    builds = []
    for manifest in folder.glob(f"*/{MANIFEST}"):
        try:
            about = json.loads(manifest.read_text(encoding="utf-8"))
            builds.append(
                CachedBuild(manifest.parent, about["torch"], about["torch_folder"], about["cuda"])
            )
        except (OSError, ValueError, KeyError):
            continue  # removed or damaged while we looked
    return sorted(builds, key=lambda cached: (cached.torch_version, cached.path))


def make_own(folder: Path, target: Path) -> None:
    """Make the cache's folder if there is none, and see that nobody else could have put `target`
    there, which may not be.

    Raises:
        DeviceBuildError: somebody else could have.
        OSError: it cannot be made.
    """
    try:
        own_files.make(folder)
        own_files.check(target)
    except PermissionError as error:
        raise DeviceBuildError(
            f"{error.filename}: {error.strerror}; remove it, or set XDG_CACHE_HOME"
        ) from error


def find_compiler() -> tuple[str, str]:
    """The C compiler and what it says of itself."""
    for name in (os.environ.get("CC", ""), "gcc", "cc"):
        path = shutil.which(name) if name else None
        if path is None:
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
        if version.returncode == 0:
            return path, version.stdout
    raise DeviceBuildError(
        "no C compiler: install gcc, or name one in CC, to build the stand-in CUDA libraries"
    )


def _identity(wanted: needs.Needs, compiler: tuple[str, str]) -> str:
    libraries = [
        (library.soname, [(tag, sorted(names)) for tag, names in library.symbols.items()])
        for library in wanted.libraries
    ]
    digest = hashlib.sha256(repr((wanted.versions, libraries, compiler)).encode())
    ours = [*generate.SOURCES.rglob("*"), *Path(__file__).parent.glob("*.py")]
    for path in sorted(path for path in ours if path.is_file()):
        digest.update(
            path.relative_to(Path(__file__).parent).as_posix().encode() + b"\0" + path.read_bytes()
        )
    return digest.hexdigest()[:32]


def _is_whole(target: Path) -> bool:
    """Whether there is a finished build, with all of its files: a machine that lost its power
    leaves empty ones.
    """
    try:
        sizes = json.loads((target / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all((target / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock. A file system without locks must do without: the rename alone keeps
    builds whole.
    """
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                raise
        yield


def _build_into(target: Path, wanted: needs.Needs, compiler: str) -> None:
    """Compile all libraries and cuDNN's helper beside `target`, and rename the whole into place.

    Raises:
        DeviceBuildError: the compiler refuses; says what.
    """
    place, prefix = making(target.parent), f"{target.name}."
    for leftover in place.glob(f"{prefix}*/"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    versions, libraries = wanted.versions, wanted.libraries
    try:
        with ThreadPoolExecutor(COMPILERS_AT_ONCE) as pool:
            compiling = [
                pool.submit(_compile, library, work, versions, compiler) for library in libraries
            ]
            for finished in [*compiling, pool.submit(_compile_helper, work, compiler)]:
                finished.result()
        sizes = {
            name: (work / name).stat().st_size
            for name in (HELPER, *(library.soname for library in libraries))
        }
        about = {**asdict(versions), "torch_folder": wanted.torch_folder, "files": sizes}
        (work / MANIFEST).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        work.chmod(0o755)
        try:
            work.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise  # else a build without a lock was faster, with the same result
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(library: needs.Library, work: Path, versions: needs.Versions, compiler: str) -> None:
    """Compile one stand-in: its own C, defaults for every other name, the symbol versions that
    torch links to.
    """
    needed = frozenset().union(*library.symbols.values())
    names = needed | generate.public_names(library, versions.cuda_major)
    aliases = generate.per_thread_aliases(names)
    with tempfile.TemporaryDirectory(prefix="gcc.", dir=work) as scratch:
        defaults, script = Path(scratch, "defaults.c"), Path(scratch, "exports.map")
        defaults.write_text(generate.defaults(names - aliases.keys()), encoding="utf-8")
        script.write_text(generate.version_script(library, names), encoding="utf-8")
        command = [
            compiler,
            *_FLAGS,
            f"-DXMEM_CUDA_MAJOR={versions.cuda_major}",
            f"-DXMEM_CUDA_VERSION={versions.cuda}",
            f"-DXMEM_CUBLAS_VERSION={versions.cublas}",
            f"-DXMEM_CUDNN_VERSION={versions.cudnn}",
            f"-DXMEM_NCCL_VERSION={versions.nccl}",
            *(f"-Wl,--defsym={alias}={name}" for alias, name in sorted(aliases.items())),
            f"-Wl,-soname,{library.soname}",
            f"-Wl,--version-script,{script}",
            "-o",
            str(work / library.soname),
            str(defaults),
            *map(str, generate.sources_of(library)),
            *ANY_C_LIBRARY,
        ]
        run(command, library.soname, scratch)


def _compile_helper(work: Path, compiler: str) -> None:
    """The program that the stand-in libcudnn asks; its library finds it by this name
    (src/plans/protocol.h).

    A program has to name the C library that it wants: an empty one of that name, without versions,
    is there to link to.
    """
    source, flags = str(generate.SOURCES / "plans" / "answer.c"), ("-std=c11", "-O1", "-w")
    with tempfile.TemporaryDirectory(prefix="gcc.", dir=work) as scratch:
        stub, tried = Path(scratch, "stub.c"), Path(scratch, "tried.so")
        run(
            [compiler, *flags, "-fPIC", "-shared", "-o", str(tried), source, *ANY_C_LIBRARY],
            HELPER,
            scratch,
        )
        names = sorted({need.symbol for need in elf.read(tried).undefined} | {"__libc_start_main"})
        stub.write_text("".join(f"void {name}(void) {{}}\n" for name in names), encoding="utf-8")
        libraries = [str(Path(scratch, name)) for name in ("libc.so.6", "libdl.so.2")]
        for library in libraries:
            empty = [
                "-fno-builtin",
                "-shared",
                "-nostdlib",
                f"-Wl,-soname,{Path(library).name}",
                str(stub),
            ]
            run([compiler, *flags, *empty, "-o", library], HELPER, scratch)
        linked = [*ANY_C_LIBRARY, "-Wl,--no-as-needed", *libraries]
        run([compiler, *flags, "-o", str(work / HELPER), source, *linked], HELPER, scratch)


def run(command: Sequence[str], product: str, scratch: str) -> None:
    """Run a compiler, with what it keeps meanwhile in `scratch`; raises DeviceBuildError if it
    cannot make the `product`.
    """
    environment = {**os.environ, "TMPDIR": scratch, "LC_ALL": "C"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise DeviceBuildError(
            f"{Path(command[0]).name} could not build {product}: {_first_error(ran.stderr)}"
        )


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line or "No space" in line),
        lines[0] if lines else "no message",
    )
