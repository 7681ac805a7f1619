"""pyslurm as a way to ask a cluster: a fake of its documented names, and the real one where it is
at hand.

The package index has no pyslurm for every release of Slurm. Where one was built (pyslurm's tag
v22.5.3 builds against Debian's libslurm-dev 22.05), XMEM_TEST_PYSLURM names the folder that has the
package and its dist-info."""

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import Cluster
from xmem_slurm.cluster import by_pyslurm, live
from xmem_slurm.errors import SlurmError

FAKE = """
class Fields:
    def __init__(self, **fields):
        self.__dict__.update(fields)

class Nodes(dict):
    @staticmethod
    def load():
        return Nodes(
            g1=Fields(name="g1", total_cpus=64, real_memory=512000, available_features=["a100", "ib"],
                      configured_gres={"gpu:a100": 4, "shard": 16, "license": 2}, partitions=["gpu", "long"]),
            c1=Fields(name="c1", total_cpus=16, real_memory=64000, available_features=None,
                      configured_gres={}, partitions=["long"]),
        )

class Partitions(dict):
    @staticmethod
    def load():
        return Partitions(gpu=Fields(name="gpu", is_default=True, max_time=2885),
                          long=Fields(name="long", is_default=False, max_time="UNLIMITED"))
"""
CONFIG = "ClusterName             = prod\nSLURM_VERSION           = 22.05.8\n"
NODES = """\
NodeName=g1 CPUTot=64 AvailableFeatures=a100,ib Gres=gpu:a100:4(S:0-1),shard:16 RealMemory=512000 Partitions=gpu,long
NodeName=c1 CPUTot=16 AvailableFeatures=(null) Gres=(null) RealMemory=64000 Partitions=long
"""
PARTITIONS = """\
PartitionName=gpu Default=YES MaxTime=2-00:05:00
PartitionName=long Default=NO MaxTime=UNLIMITED
"""


def python_with(folder: Path, tmp_path: Path) -> str:
    """Return a Python that finds the packages of a folder even with -I."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nshift\nPYTHONPATH="{folder}" exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return str(program)


def fake(tmp_path: Path, code: str = FAKE, version: str = "22.5.3") -> str:
    """Return a Python with a fake pyslurm."""
    packages = tmp_path / "packages"
    (packages / "pyslurm").mkdir(parents=True)
    (packages / "pyslurm" / "__init__.py").write_text(code)
    information = packages / f"pyslurm-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {version}\n"
    )
    return python_with(packages, tmp_path)


def test_pyslurm_and_scontrol_say_the_same_of_a_cluster(tmp_path: Path) -> None:
    account = by_pyslurm.read("22.05.8", fake(tmp_path))
    assert account is not None
    found = live.from_pyslurm(CONFIG, account)
    assert found.source == "pyslurm 22.5.3"
    assert found._replace(source="scontrol") == live.parse(CONFIG, NODES, PARTITIONS)


def test_a_python_without_it_is_no_error() -> None:
    assert by_pyslurm.read("22.05.8") is None


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (FAKE, "25.11.2", "pyslurm 25.11.2 is for another release of Slurm"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "22.5.3", "ended with -9"),
        ("raise ImportError('libslurm.so.38: cannot open')", "22.5.3", "cannot open"),
        ("print('no JSON')", "22.5.3", "has no attribute 'Nodes'"),
        (FAKE.replace("configured_gres", "gres"), "22.5.3", "no attribute 'configured_gres'"),
        (f"{FAKE}\nprint('hello')", "22.5.3", "no answer that can be read"),
        ("import time\ntime.sleep(600)", "22.5.3", "no answer within 3 s"),
    ],
)
def test_what_is_wrong_with_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, version: str, told: str
) -> None:
    if "sleep" in code:
        monkeypatch.setattr(by_pyslurm, "_SECONDS", 3)
    with pytest.raises(SlurmError, match=told):
        by_pyslurm.read("22.05.8", fake(tmp_path, code, version))


@pytest.mark.slurm
def test_the_real_one_says_what_scontrol_says(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "XMEM_TEST_PYSLURM" not in os.environ:
        pytest.skip(
            "XMEM_TEST_PYSLURM names no folder with a pyslurm that was built for this Slurm"
        )
    monkeypatch.setenv("SLURM_CONF", cluster.environ["SLURM_CONF"])
    said = live.read()
    assert said.source == "scontrol"
    monkeypatch.setattr(
        sys, "executable", python_with(Path(os.environ["XMEM_TEST_PYSLURM"]), tmp_path)
    )
    found = live.read()
    assert found.source.startswith("pyslurm ")
    assert sorted(found.nodes) == sorted(said.nodes)
    assert sorted(found.partitions) == sorted(said.partitions)
