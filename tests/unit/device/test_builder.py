"""The builder of the stand-ins: what makes a build its own, two at once, one killed half-way, and
every way to fail.

The torch here is a fake: a folder with torch's version.py and one library that is linked to the
runtime as torch's are."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from xmem_slurm.device import builder, elf, generate, needs, preload
from xmem_slurm.errors import DeviceBuildError

VERSION_PY = (
    "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\ngit_version = "
    "'70d99e9'\nhip: Optional[str] = None\n"
)


def link(folder: Path, soname: str, names: list[str], user: Path) -> None:
    """Make `user` in `folder`, which calls `names` of a library `soname`, whose version tag is its
    name."""
    tmp = folder / "link"
    tmp.mkdir()
    (tmp / "used.c").write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in names))
    (tmp / "used.map").write_text(f"{soname} {{ global: *; }};\n")
    (tmp / "user.c").write_text(
        "".join(f"int {name}(void);\n" for name in names)
        + f"int use(void) {{ return {' + '.join(f'{name}()' for name in names)}; }}\n"
    )
    gcc = ["gcc", "-shared", "-fPIC", "-o"]
    used = [soname, "used.c", f"-Wl,-soname,{soname}", "-Wl,--version-script,used.map"]
    subprocess.run([*gcc, *used], cwd=tmp, check=True)
    subprocess.run([*gcc, str(user), "user.c", soname], cwd=tmp, check=True)


@pytest.fixture
def fake_torch(tmp_path: Path) -> Path:
    torch = tmp_path / "site-packages" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "version.py").write_text(VERSION_PY)
    link(
        tmp_path,
        "libcudart.so.13",
        ["cudaMalloc", "cudaGraphDebugDotPrint"],
        torch / "lib" / "libtorch_cuda.so",
    )
    return torch


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes a line for each library that it makes, then calls gcc."""
    script = tmp_path / "logging-gcc"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *-shared*) echo linked >> {tmp_path}/links;; esac\nexec gcc '
        '"$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CC", str(script))
    return script


def command(torch: Path, cache: Path, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "xmem_slurm.device", str(torch)],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_builds_once_and_lists_it(fake_torch: Path, compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folder = builder.build(fake_torch, cache)
    links = (tmp_path / "links").read_text()
    assert builder.build(fake_torch, cache) == folder
    assert (tmp_path / "links").read_text() == links
    (listed,) = builder.cached_builds(cache)
    assert listed == builder.CachedBuild(folder, "2.11.0+cu130", str(fake_torch), 13000)
    assert {path.name for path in folder.glob("*.so*")} == {
        "libcudart.so.13",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
    }


def test_exports_what_torch_needs_and_the_whole_public_interface(
    fake_torch: Path, tmp_path: Path
) -> None:
    folder = builder.build(fake_torch, tmp_path / "cache")
    runtime = elf.read(folder / "libcudart.so.13").defined
    (library,) = (each for each in needs.read_libraries(fake_torch) if each.stem == "libcudart")
    assert library.symbols["libcudart.so.13"] == {"cudaMalloc", "cudaGraphDebugDotPrint"}
    assert generate.public_names(library, 13) <= runtime
    assert {"xmem_device_report", "xmem_doubt"} <= runtime
    assert not {"xmem_note_contents", "fail"} & elf.read(folder / "libcuda.so.1").defined
    users = elf.read(fake_torch / "lib" / "libtorch_cuda.so")
    assert elf.Needed("cudaMalloc", "libcudart.so.13", "libcudart.so.13") in users.undefined


def test_what_is_built_runs_with_any_c_library(fake_torch: Path, tmp_path: Path) -> None:
    """No version of glibc's is asked for: an image may have an older one than the machine that it
    was built on."""
    built = builder.build(fake_torch, cache=tmp_path / "cache")
    versions = {
        need.version
        for file in built.glob("*")
        if ".so" in file.name
        for need in elf.read(file).undefined
    }
    versions |= {need.version for need in elf.read(built / builder.HELPER).undefined}
    versions |= {need.version for need in elf.read(preload.build(tmp_path / "preloaded")).undefined}
    assert not [version for version in versions if version.startswith("GLIBC")]
    assert elf.read(built / builder.HELPER).libraries == {"libc.so.6", "libdl.so.2"}
    assert (
        subprocess.run([built / builder.HELPER], stdin=subprocess.DEVNULL, check=False).returncode
        >= 0
    )


def test_identity_follows_torch_and_compiler(
    fake_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    library = fake_torch / "lib" / "libtorch_cuda.so"
    before = library.stat()
    folders = {builder.build(fake_torch, cache)}
    os.utime(library, ns=(1, 1))
    folders.add(builder.build(fake_torch, cache))
    assert len(folders) == 1

    # Another torch that looks the same from outside: it does not come by this one's build, nor this
    # one by its.
    shutil.rmtree(tmp_path / "link")
    link(tmp_path, "libcudart.so.13", ["cudaMemset", "cudaGraphDebugDotPrint"], library)
    assert library.stat().st_size == before.st_size
    os.utime(library, ns=(before.st_atime_ns, before.st_mtime_ns))
    folders.add(builder.build(fake_torch, cache))

    (fake_torch / "version.py").write_text(VERSION_PY.replace("70d99e9", "another"))
    folders.add(builder.build(fake_torch, cache))

    (fake_torch.parent / "nvidia_cudnn_cu13-9.20.0.48.dist-info").mkdir()
    assert needs.read_versions(fake_torch).cudnn == 92000
    folders.add(builder.build(fake_torch, cache))

    other = tmp_path / "other-gcc"
    other.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo 99.0; echo other;; *) exec gcc "$@";; esac\n'
    )
    other.chmod(0o755)
    monkeypatch.setenv("CC", str(other))
    folders.add(builder.build(fake_torch, cache))
    assert len(folders) == 5
    assert len(builder.cached_builds(cache)) == 5


def test_versions_come_from_torch_s_requirements(fake_torch: Path) -> None:
    info = fake_torch.parent / "torch-2.11.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        'Requires-Dist: nvidia-cudnn-cu13==9.19.0.56; platform_system == "Linux"\n'
        'Requires-Dist: nvidia-nccl-cu13==2.28.9; platform_system == "Linux"\n'
    )
    assert needs.read_versions(fake_torch) == needs.Versions(
        "2.11.0+cu130", "70d99e9", 13000, 130000, 91900, 22809
    )


def test_a_cudnn_of_no_wheel_has_its_version_in_its_name(fake_torch: Path, tmp_path: Path) -> None:
    """Conda's and a module's cuDNN: what torch would load is what the stand-in says it is."""
    installed = tmp_path / "libcudnn_graph.so.9.10.2"
    installed.touch()
    (tmp_path / "libcudnn_graph.so.9").symlink_to(installed)
    assert needs.read_versions(fake_torch, tmp_path / "libcudnn_graph.so.9").cudnn == 91002
    assert (
        needs.read_versions(fake_torch, tmp_path / "libcudnn.so.9").cudnn
        == needs.read_versions(fake_torch).cudnn
    )
    (fake_torch.parent / "nvidia_cudnn_cu13-9.20.0.48.dist-info").mkdir()
    assert needs.read_versions(fake_torch, tmp_path / "libcudnn_graph.so.9").cudnn == 92000


def test_two_builds_at_once_do_the_work_once(
    fake_torch: Path, compiler: Path, tmp_path: Path
) -> None:
    both = [command(fake_torch, tmp_path / "cache") for _ in range(2)]
    (first, error), (second, _) = (each.communicate() for each in both)
    assert first == second != "", error
    assert Path(first.strip(), "libcudart.so.13").is_file()
    # and on the way to cuDNN's helper
    assert (tmp_path / "links").read_text().count("linked") == 3 + 3


def test_a_killed_build_leaves_nothing_in_the_way(
    fake_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    (tmp_path / "slow").touch()
    gcc = tmp_path / "sometimes-slow-gcc"
    gcc.write_text(
        f'#!/bin/sh\ncase "$1" in --version) exec gcc "$@";; esac\ncd {tmp_path}\n'
        'if [ -e slow ]; then touch started; exec sleep 60; fi\nexec gcc "$@"\n'
    )
    gcc.chmod(0o755)
    monkeypatch.setenv("CC", str(gcc))
    with command(fake_torch, cache) as killed:
        while not (tmp_path / "started").exists():
            assert killed.poll() is None
            time.sleep(0.01)
        os.killpg(killed.pid, signal.SIGKILL)
    folder = cache / "xmem-slurm" / "device"
    assert builder.cached_builds(folder) == []
    assert list(builder.making(folder).glob("*/"))

    (tmp_path / "slow").unlink()
    done = builder.build(fake_torch, folder)
    assert (done / builder.MANIFEST).is_file()
    assert not list(builder.making(folder).glob("*/"))


@pytest.mark.parametrize("damaged", ["libcudart.so.13", builder.MANIFEST])
def test_what_a_crash_of_the_machine_left_empty_is_built_anew(
    fake_torch: Path, tmp_path: Path, damaged: str
) -> None:
    done = builder.build(fake_torch, tmp_path / "cache")
    size = (done / damaged).stat().st_size
    (done / damaged).write_bytes(b"")
    assert builder.build(fake_torch, tmp_path / "cache") == done
    assert (done / damaged).stat().st_size == size


def test_no_compiler(fake_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(DeviceBuildError, match="no C compiler: install gcc"):
        builder.build(fake_torch, tmp_path / "cache")


def test_a_compiler_error_is_one_line(
    fake_torch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken-gcc"
    broken.write_text(
        '#!/bin/sh\ncase "$1" in --version) exec gcc "$@";; esac\necho "a.c: In function f:" >&2\n'
        'echo "a.c:1: error: no such thing" >&2\necho "a.c:2: error: and more" >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(
        DeviceBuildError, match=r"^broken-gcc could not build lib\S+: a\.c:1: error: no such thing$"
    ):
        builder.build(fake_torch, tmp_path / "cache")
    assert builder.cached_builds(tmp_path / "cache") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n",
            "torch 2.11.0.cpu in .* is not a CUDA build",
        ),
        (
            "__version__ = '2.3.1+cu118'\ncuda = '11.8'\n",
            "built for CUDA 11.8; CUDA 12 and 13 have stand-ins",
        ),
        (None, "no torch in .*: No such file or directory"),
    ],
)
def test_not_a_torch_for_which_there_are_stand_ins(
    fake_torch: Path, text: str | None, message: str
) -> None:
    if text is None:
        (fake_torch / "version.py").unlink()
    else:
        (fake_torch / "version.py").write_text(text)
    with pytest.raises(DeviceBuildError, match=message):
        builder.build(fake_torch)


@pytest.mark.parametrize(
    "text", ["cuda = '13.'", "cuda = '1e9.0'", "cuda = '13.0'\n__version__ = '\x1b[2J'"]
)
def test_a_torch_whose_files_say_what_no_torch_says(
    fake_torch: Path, tmp_path: Path, text: str
) -> None:
    (fake_torch / "version.py").write_text(text)
    with pytest.raises(DeviceBuildError, match=r"^torch"):
        builder.build(fake_torch, tmp_path / "cache")


@pytest.mark.parametrize(
    "library",
    [
        needs.Library("libcudart.so.13", {"": frozenset({'x(void){}\n#include "/etc/passwd"'})}),
        needs.Library("libcudart.so.13", {"X; };": frozenset()}),
        needs.Library("../libcudart.so.13", {}),
        needs.Library("libcudart.so.13,--version-script", {}),
        needs.Library("libc.so.6", {}),
    ],
)
def test_only_names_are_compiled(library: needs.Library) -> None:
    with pytest.raises(DeviceBuildError, match=r"^torch in / needs "):
        needs.Needs("/", needs.Versions("2.11.0", "", 13000, 0, 0, 0), (library,))


def test_a_cuda_version_without_cuda_libraries(fake_torch: Path, tmp_path: Path) -> None:
    (fake_torch / "lib" / "libtorch_cuda.so").unlink()
    with pytest.raises(DeviceBuildError, match="not linked to libcudart"):
        builder.build(fake_torch, tmp_path / "cache")


def test_a_cache_that_cannot_be_written(fake_torch: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        DeviceBuildError, match=r"cannot write the stand-in CUDA libraries to .*: Not a directory"
    ):
        builder.build(fake_torch, tmp_path / "file" / "cache")


@pytest.mark.skipif(os.getuid() != 0, reason="gives files away")
@pytest.mark.parametrize(
    "how",
    [
        "everybody may write",
        "a group may write",
        "a link",
        "somebody else's folder",
        "somebody else's build",
    ],
)
def test_what_others_could_have_written_is_not_loaded(
    fake_torch: Path, tmp_path: Path, how: str
) -> None:
    cache = tmp_path / "cache"
    done = builder.build(fake_torch, cache)
    if how == "everybody may write":
        cache.chmod(0o777)
    elif how == "a group may write":
        cache.chmod(0o770)
    elif how == "a link":
        cache.rename(tmp_path / "elsewhere")
        cache.symlink_to("elsewhere")
    else:
        os.chown(cache if how == "somebody else's folder" else done, 65534, 65534)
    with pytest.raises(DeviceBuildError, match="others can write there"):
        builder.build(fake_torch, cache)
    library = preload.build(tmp_path / "preloaded")
    os.chown(library, 65534, 65534)
    with pytest.raises(DeviceBuildError, match="others can write there"):
        preload.build(tmp_path / "preloaded")


def test_no_room_is_one_line_on_stderr(fake_torch: Path, tmp_path: Path) -> None:
    """The file size limit stands for a full disk: writing a generated source fails half-way."""
    ran = subprocess.run(
        [sys.executable, "-m", "xmem_slurm.device", str(fake_torch)],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert "cannot write the stand-in CUDA libraries" in ran.stderr
    assert not list(builder.making(tmp_path / "cache" / "xmem-slurm" / "device").glob("*/"))


def test_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys, xmem_slurm.device.__main__; print(*{'pydantic', 'typer', 'rich', 'jinja2'} "
        "& sys.modules.keys())"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "\n"
    )


@pytest.mark.parametrize("major", [12, 13])
def test_the_c_has_no_warnings(major: int, tmp_path: Path) -> None:
    defines = [
        f"-DXMEM_CUDA_MAJOR={major}",
        f"-DXMEM_CUDA_VERSION={major}000",
        "-DXMEM_CUBLAS_VERSION=1",
    ]
    defines += ["-DXMEM_CUDNN_VERSION=91900", "-DXMEM_NCCL_VERSION=22809"]
    sources = sorted(map(str, generate.SOURCES.rglob("*.c")))
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-c"]
    ran = subprocess.run(
        ["gcc", *flags, *defines, *sources],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr == ""
    assert ran.returncode == 0
