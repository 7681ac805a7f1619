"""The wheel and the sdist carry everything, and an installed wheel finds it: templates, sites, C sources, probe."""

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

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    return folder


def shipped(folder: str) -> set[str]:
    """Return the files that git knows below a folder."""
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(listed.splitlines())


def test_the_wheel_has_every_file_of_ours(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    expected = shipped("xmem_slurm")
    expected |= {f"xmem_slurm/{name}" for name in shipped("templates")}
    (scripts,) = {name.partition("/scripts/")[0] for name in names if "/scripts/" in name}
    expected |= {f"{scripts}/scripts/{name.removeprefix('launchers/')}" for name in shipped("launchers")}
    expected |= {f"xmem_slurm/site_config/{name.removeprefix('site-config/')}" for name in shipped("site-config")}
    assert expected <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_index_would_take_them(built: Path) -> None:
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()], check=True)


@pytest.mark.skipif(not shutil.which("rpmbuild"), reason="rpmbuild is not installed")
def test_an_rpm_is_built_and_knows_where_it_will_be(built: Path, tmp_path: Path) -> None:
    wheels, sources = tmp_path / "wheels", tmp_path / "SOURCES"
    sources.mkdir()
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", wheels, next(built.glob("*.whl"))]
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
    assert (installed / "bin" / "xmem-slurm-python").read_text().startswith("#!/opt/xmem-slurm/bin/python")
    assert str((tmp_path / "usr" / "bin" / "xsbatch").readlink()) == "/opt/xmem-slurm/bin/xsbatch"
    assert not subprocess.run(["grep", "-rlI", tmp_path, installed], check=False, capture_output=True).stdout


@pytest.fixture(scope="module")
def prefix(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a virtual environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", next(built.glob("*.whl"))]
    subprocess.run(install, check=True, capture_output=True)
    return folder


def test_man_page_and_completions_are_where_man_and_shells_look(prefix: Path) -> None:
    for place in (*SHARE.values(), *verb_pages.SHARE.values()):
        assert (prefix / "share" / place).is_file()
    if shutil.which("man"):
        environ = {"PATH": f"{prefix}/bin:/usr/bin:/bin", "MANPAGER": "cat"}
        shown = subprocess.run(["man", "xsbatch"], env=environ, capture_output=True, text=True, check=True).stdout
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
    folders = ("templates", "site-config", "xmem_slurm", "tests", "share", "launchers", "news", ".ci")
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
        ["python", "-c", "from xmem_slurm.device import builder, generate; assert list(generate.SOURCES.rglob('*.c'))"],
        ["python", "-c", "from xmem_slurm.lab import settings; from xmem_slurm.rewriting.rewrite import rewrite"],
    ):
        subprocess.run([programs / command[0], *command[1:]], cwd="/", check=True, capture_output=True)
