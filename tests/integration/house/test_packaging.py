"""The wheel and the sdist carry everything, and an installed wheel finds it: templates, sites, C
sources, probe."""

import json
import os
import pty
import select
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.harness.told import messages
from xmem_slurm import __version__
from xmem_slurm.cli import verb_pages
from xmem_slurm.cli.pages import SHARE

pytestmark = pytest.mark.slow(
    covers=[
        "pyproject.toml",
        "Makefile",
        "launchers/*",
        "share/*",
        "site-config/packages/*",
        "templates/*",
        "xmem_slurm/resources.py",
        "xmem_slurm/cli/pages.py",
    ],
    as_one=True,
)

ROOT = Path(__file__).parents[3]
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True
    )
    return folder


def shipped(folder: str) -> set[str]:
    """Return the files that git knows below a folder."""
    listed = subprocess.run(
        ["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return set(listed.splitlines())


def test_the_wheel_has_every_file_of_ours(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    expected = shipped("xmem_slurm")
    expected |= {f"xmem_slurm/{name}" for name in shipped("templates")}
    (scripts,) = {name.partition("/scripts/")[0] for name in names if "/scripts/" in name}
    expected |= {
        f"{scripts}/scripts/{name.removeprefix('launchers/')}" for name in shipped("launchers")
    }
    expected |= {
        f"xmem_slurm/site_config/{name.removeprefix('site-config/')}"
        for name in shipped("site-config")
    }
    assert expected <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_index_would_take_them(built: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()], check=True
    )


@pytest.mark.skipif(not shutil.which("rpmbuild"), reason="rpmbuild is not installed")
def test_an_rpm_is_built_and_knows_where_it_will_be(built: Path, tmp_path: Path) -> None:
    wheels, sources = tmp_path / "wheels", tmp_path / "SOURCES"
    sources.mkdir()
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--wheel-dir",
        wheels,
        next(built.glob("*.whl")),
    ]
    subprocess.run(pip, check=True)
    with tarfile.open(sources / f"xmem-slurm-wheels-{__version__}.tar.gz", "w:gz") as packed:
        packed.add(wheels, ".")
    spec = ROOT / "site-config" / "packages" / "xmem-slurm.spec"
    macros = [f"--define=_topdir {tmp_path}", f"--define=python {Path(sys.executable).resolve()}"]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *macros, spec], check=True, capture_output=True)
    (rpm,) = (tmp_path / "RPMS").rglob("*.rpm")
    with subprocess.Popen(["rpm2cpio", rpm], stdout=subprocess.PIPE) as archive:
        subprocess.run(["cpio", "-id", "--quiet"], cwd=tmp_path, stdin=archive.stdout, check=True)
    installed = tmp_path / "opt" / "xmem-slurm"
    assert (
        (installed / "bin" / "xmem-slurm-python")
        .read_text()
        .startswith("#!/opt/xmem-slurm/bin/python")
    )
    assert str((tmp_path / "usr" / "bin" / "xsbatch").readlink()) == "/opt/xmem-slurm/bin/xsbatch"
    assert not subprocess.run(
        ["grep", "-rlI", tmp_path, installed], check=False, capture_output=True
    ).stdout


@pytest.fixture(scope="module")
def prefix(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=True)
    install = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        next(built.glob("*.whl")),
    ]
    subprocess.run(install, check=True, capture_output=True)
    return folder


def test_man_page_and_completions_are_where_man_and_shells_look(prefix: Path) -> None:
    for place in (*SHARE.values(), *verb_pages.SHARE.values()):
        assert (prefix / "share" / place).is_file()
    if shutil.which("man"):
        environ = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "MANPAGER": "cat"}
        shown = subprocess.run(
            ["man", "xsbatch"], env=environ, capture_output=True, text=True, check=True
        ).stdout
        assert "--xmem-dry-run" in shown.replace("\b", "")


def test_bash_completes_at_the_press_of_tab(prefix: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "--noprofile", "--norc", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={"PATH": f"{prefix}/bin:/usr/bin:/bin", "TERM": "dumb"},
        start_new_session=True,
    ) as shell:
        os.write(ours, f". {prefix}/share/{SHARE['bash']}\n".encode())
        os.write(ours, b"xsbatch --gr\t-f\t")
        said = b""
        try:
            while b"--gres-flags=" not in said.replace(b"\a", b""):
                assert select.select([ours], [], [], 30)[0], said
                said += os.read(ours, 1024)
        finally:
            shell.kill()


def test_the_sdist_has_what_builds_and_tests_it(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    folders = (
        "templates",
        "site-config",
        "xmem_slurm",
        "tests",
        "share",
        "launchers",
        "news",
        ".ci",
    )
    assert set().union(*map(shipped, folders)) <= names


def test_an_installed_wheel_works_outside_the_checkout(prefix: Path) -> None:
    programs = prefix / "bin"
    find = "from xmem_slurm import resources; print(resources.tree('site-config') / 'example.toml')"
    found = subprocess.run(
        [programs / "python", "-c", find], cwd="/", check=True, capture_output=True, text=True
    ).stdout
    assert str(prefix) in found
    for command in (
        ["xmem-slurm", "site", "check", "--offline", "--site", found.strip()],
        ["xmem-slurm", "--version"],
        [
            "python",
            "-c",
            (
                "from xmem_slurm.device import builder, generate; assert "
                "list(generate.SOURCES.rglob('*.c'))"
            ),
        ],
        [
            "python",
            "-c",
            "from xmem_slurm.lab import settings; from xmem_slurm.rewriting.rewrite import rewrite",
        ],
    ):
        subprocess.run(
            [programs / command[0], *command[1:]], cwd="/", check=True, capture_output=True
        )


BASE = Path(sys.base_prefix) / "bin" / VERSION
NEEDED = f"{sys.prefix}/lib/{VERSION}/site-packages"
"""As the packages that ours needs are in prefixes of their own, and a module puts those on
PYTHONPATH."""


def installed(built: Path, *where: str | Path) -> None:
    """Install the wheel, alone, for a Python that has nothing of it, by that Python's pip."""
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        BASE,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    ]
    subprocess.run([*pip, *where, next(built.glob("*.whl"))], check=True, capture_output=True)


def submitted(programs: Path, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Submit a job that would be sized, with an `sbatch` that prints what it is given."""
    (folder / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:h200:1\ntrue\n")
    (folder / "sbatch").write_text('#!/bin/sh\n[ "$1" = --test-only ] || echo "$*"\n')
    (folder / "sbatch").chmod(0o755)
    given = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "HOME": str(folder),
        "XMEM_SITE": str(ROOT / "site-config/example.toml"),
    }
    return subprocess.run(
        [programs / "xsbatch", "job.sh"],
        cwd=folder,
        env=given | environ,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(params=["--prefix", "--target"])
def apart(request: pytest.FixtureRequest, built: Path, tmp_path: Path) -> Path:
    """Return a folder with an installation that its Python does not look into by itself."""
    installed(built, request.param, tmp_path / "made")
    moved = tmp_path / "a place that it was moved to"
    (tmp_path / "made").rename(moved)
    return moved


def test_an_installation_in_a_prefix_of_its_own_starts_wherever_it_is(
    apart: Path, tmp_path: Path
) -> None:
    done = submitted(apart / "bin", tmp_path, PYTHONPATH=f"{NEEDED}:relative")
    assert (done.returncode, done.stdout) == (0, "job.sh\n")
    assert "start it" not in done.stderr
    assert "did not load torch" in done.stderr or "sandbox" in done.stderr, (
        "that the job was looked at"
    )
    command = [
        apart / "bin" / "xmem-slurm",
        "site",
        "install",
        "--print",
        "--site",
        ROOT / "site-config/example.toml",
    ]
    printed = subprocess.run(
        command, env={"PYTHONPATH": NEEDED}, capture_output=True, text=True, check=True
    )
    assert "No module named" not in printed.stderr
    hook = next(line for line in printed.stdout.splitlines() if line.startswith("local COMMAND"))
    run = ["sh", "-c", json.loads(hook.partition(" = ")[2])]
    answered = subprocess.run(run, env={}, capture_output=True, text=True, check=True)
    assert answered.stdout == "end\n", "a program of another name than sbatch called it"


def test_what_a_prefix_does_not_have_is_said_and_the_job_goes_as_written(
    apart: Path, tmp_path: Path
) -> None:
    done = submitted(apart / "bin", tmp_path)
    assert (done.returncode, done.stdout) == (0, "job.sh\n")
    assert messages(done.stderr).startswith("xsbatch: submitted as written: ")
    assert done.stderr.count("\n") == 1
    done = subprocess.run(
        [apart / "bin" / "xmem-slurm", "gpus"], env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "No module named" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_package_that_came_with_the_launcher_goes_before_others(
    apart: Path, tmp_path: Path
) -> None:
    (tmp_path / "xmem_slurm").mkdir()
    (tmp_path / "xmem_slurm" / "__init__.py").write_text("raise SystemError('an older one')")
    (tmp_path / "json.py").write_text("raise SystemError('no module of ours')")
    done = submitted(apart / "bin", tmp_path, PYTHONPATH=f"{tmp_path}:{NEEDED}", XMEM_OFF="1")
    assert (done.stdout, done.stderr) == ("job.sh\n", "")


@pytest.mark.parametrize(
    "first",
    [
        f"#!/usr/bin/env {VERSION}\n",  # EasyBuild's fix_python_shebang_for
        f"#!/bin/sh /opt/spack/bin/sbang\n#!{BASE}\n",  # Spack, for a path of more than 127 bytes
        f"#!/bin/sh\n'''exec' '{BASE}' \"$0\" \"$@\"\n' '''\n",  # uv, the same
        f"#!/bin/sh\n'''exec' \"{BASE}\" \"$0\" \"$@\"\n' '''\n",
    ],
)
def test_whatever_line_an_installer_writes_for_its_python(
    first: str, built: Path, tmp_path: Path
) -> None:
    installed(built, "--prefix", tmp_path / "made")
    start = tmp_path / "made" / "bin" / "xmem-slurm-python"
    start.write_text(first + start.read_text().partition("\n")[2])
    path = f"{tmp_path}:{BASE.parent}:{os.defpath}"
    done = submitted(start.parent, tmp_path, PYTHONPATH=NEEDED, XMEM_OFF="1", PATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "job.sh\n", "")


def test_a_python_in_a_folder_with_a_very_long_name(built: Path, tmp_path: Path) -> None:
    """Longer than the kernel takes in a first line: pip writes it all the same."""
    deep = tmp_path.joinpath(*["x" * 100] * 3) / "venv"
    venv.create(deep, with_pip=False)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        deep / "bin" / "python",
        "install",
        "--quiet",
        "--no-deps",
    ]
    subprocess.run([*pip, next(built.glob("*.whl"))], check=True, capture_output=True)
    done = submitted(deep / "bin", tmp_path, XMEM_OFF="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "job.sh\n", "")


BREAKS = {
    "does not parse": ("cli/xsbatch.py", "def (\n", "SyntaxError"),
    "does not parse, where it matters": ("submission/answer.py", "def (\n", "SyntaxError"),
    "is of another release": ("cluster/client.py", "", "AttributeError"),
    "is half there": ("slurm/request.py", None, "ModuleNotFoundError"),
    "does not start": ("__init__.py", "1 / 0", "ZeroDivisionError"),
    "wants what another does not have": (
        "submission/handover.py",
        "from os import nothing",
        "ImportError",
    ),
    "does not decide": ("submission/by_sizing.py", "raise OSError('gone')", "OSError"),
    "has no words": (
        "report/decided.py",
        "def lines(): pass\ndef refusal(*_): pass\nUNUSED = ''\n",
        "TypeError",
    ),
}


@pytest.mark.parametrize("fault", BREAKS)
def test_a_broken_package_is_one_line_and_costs_no_job(
    fault: str, built: Path, tmp_path: Path
) -> None:
    name, content, said = BREAKS[fault]
    installed(built, "--prefix", tmp_path / "made")
    (package,) = (tmp_path / "made").glob("lib*/python*/*-packages/xmem_slurm")
    (package / name).unlink()
    if content is not None:
        (package / name).write_text(content)
    done = submitted(tmp_path / "made" / "bin", tmp_path, PYTHONPATH=NEEDED)
    assert (done.returncode, done.stdout) == (0, "job.sh\n"), done.stderr
    assert messages(done.stderr).startswith("xsbatch: submitted as written: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_a_verb_that_does_not_parse_is_one_line(built: Path, tmp_path: Path) -> None:
    installed(built, "--prefix", tmp_path / "made")
    (verb,) = (tmp_path / "made").glob("lib*/python*/*-packages/xmem_slurm/cli/gpus.py")
    verb.write_text("def (\n")
    command = [tmp_path / "made" / "bin" / "xmem-slurm", "gpus"]
    done = subprocess.run(
        command, env={"PYTHONPATH": NEEDED}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert "SyntaxError" in done.stderr
