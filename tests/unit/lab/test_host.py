"""What a lab refuses before anything starts, and in which words."""

import socket
import stat
from pathlib import Path

import pytest

from xmem_slurm.errors import LabError
from xmem_slurm.lab import default_folder, folder, host, programs


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def bare_machine(tmp_path, monkeypatch) -> Path:
    """A machine whose only programs are those in the folder returned."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(programs, "_SYSTEM_FOLDERS", ())
    return tmp_path


def test_missing_programs_are_named_with_their_packages(bare_machine):
    for name in ("munged", "slurmctld", "setsid", "sinfo"):
        program(bare_machine / name, "")
    with pytest.raises(LabError) as caught:
        programs.find(accounting=False)
    first, second = str(caught.value).splitlines()
    assert first.endswith("not installed: slurmd, scontrol")
    assert "apt-get install --no-install-recommends slurmd slurm-client;" in second
    assert "dnf install slurm-slurmd slurm (" in second


def test_accounting_needs_a_database_as_well(bare_machine):
    with pytest.raises(LabError, match=r"slurmdbd.* mariadb-server") as caught:
        programs.find(accounting=True)
    assert str(caught.value).count("mariadb-server") == 2, "one for Debian, one for RHEL, each once"


@pytest.mark.parametrize(
    ("said", "release", "version"),
    [
        ("slurm-wlm 22.05.8", "22.05.8", (22, 5)),
        ("slurm 23.11.0-0rc1", "23.11.0-0rc1", (23, 11)),
        ("slurm 25.11.2", "25.11.2", (25, 11)),
    ],
)
def test_the_release_is_read_as_debian_and_schedmd_write_it(tmp_path, said, release, version):
    slurmctld = program(tmp_path / "slurmctld", f"echo {said}")
    assert programs.slurm_version(str(slurmctld)) == (release, version)


@pytest.mark.parametrize(
    ("said", "message"), [("slurm 21.08.8", "22.05 or newer"), ("hello", "does not tell")]
)
def test_an_old_or_unreadable_release_is_refused(tmp_path, said, message):
    slurmctld = program(tmp_path / "slurmctld", f"echo {said}")
    with pytest.raises(LabError, match=message):
        programs.slurm_version(str(slurmctld))


def test_a_folder_too_long_for_a_socket_is_refused_with_the_way_out():
    longest = Path("/tmp/" + "x" * 68)
    host.check_names(longest, ["n1"])
    with pytest.raises(LabError, match=r"is 1 bytes too long.*XMEM_LAB"):
        host.check_names(longest.with_name(longest.name + "x"), ["n1"])


@pytest.mark.parametrize("path", ["/tmp/my lab", "/tmp/100%", "/tmp/lab#1"])
def test_a_folder_that_slurm_conf_cannot_hold_is_refused(path):
    with pytest.raises(LabError, match="XMEM_LAB"):
        host.check_names(Path(path), ["n1"])


def test_a_port_in_use_is_not_handed_out(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(host, "_PORTS", range(port, port + 1))
        with pytest.raises(LabError, match="free"):
            host._free_ports(1)


def test_xmem_lab_names_the_folder(monkeypatch):
    monkeypatch.setenv("XMEM_LAB", "/tmp/elsewhere")
    assert default_folder() == Path("/tmp/elsewhere")
    monkeypatch.delenv("XMEM_LAB")
    assert default_folder().parent == Path("/tmp")


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(LabError, match="not a lab's"), folder.claim(tmp_path):
        pytest.fail("claimed")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_others_can_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(LabError, match="alone"), folder.claim(tmp_path):
        pytest.fail("claimed")
