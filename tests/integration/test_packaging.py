"""The wheel and the sdist carry everything, and an installed wheel finds it: templates, sites, C sources, probe."""

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

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
    expected |= {f"xmem_slurm/site_config/{name.removeprefix('site-config/')}" for name in shipped("site-config")}
    assert expected <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]


def test_the_sdist_has_what_builds_and_tests_it(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert shipped("templates") | shipped("site-config") | shipped("xmem_slurm") | shipped("tests") <= names


def test_an_installed_wheel_works_outside_the_checkout(built: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    install = [programs / "python", "-m", "pip", "install", "--quiet", next(built.glob("*.whl"))]
    subprocess.run(install, check=True, capture_output=True)
    find = "from xmem_slurm import resources; print(resources.tree('site-config') / 'example.toml')"
    found = subprocess.run(
        [programs / "python", "-c", find], cwd="/", check=True, capture_output=True, text=True
    ).stdout
    assert str(tmp_path) in found
    for command in (
        ["xmem-slurm", "site", "check", "--offline", "--site", found.strip()],
        ["xmem-slurm", "--version"],
        ["python", "-c", "from xmem_slurm.device import builder, generate; assert list(generate.SOURCES.rglob('*.c'))"],
        ["python", "-c", "from xmem_slurm.lab import settings; from xmem_slurm.rewrite import rewrite"],
    ):
        subprocess.run([programs / command[0], *command[1:]], cwd="/", check=True, capture_output=True)
