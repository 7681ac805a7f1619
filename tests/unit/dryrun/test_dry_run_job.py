"""Which variables a dry run's script finds: what --export lets through, and Slurm's own."""

from pathlib import Path

import pytest

from xmem_slurm.dryrun.job import exported, from_submission
from xmem_slurm.slurm.submission import Submission

MINE = {"A": "1", "B": "2", "HOME": "/home/me", "SLURM_CONF": "/etc/slurm.conf"}
LOGIN = {"HOME": "/home/me", "SLURM_CONF": "/etc/slurm.conf"}


@pytest.mark.parametrize(
    ("export", "found"),
    [
        (None, MINE),
        ("", MINE),
        ("all", MINE),
        ("NONE", LOGIN),
        ("NIL", {"SLURM_CONF": "/etc/slurm.conf"}),
        ("A", LOGIN | {"A": "1"}),
        ("A=3,C", LOGIN | {"A": "3"}),
        ("ALL,A=3", MINE | {"A": "3"}),
        ("A=3,ALL", MINE),
        ("A='x,y',B=\"p q\"", LOGIN | {"A": "x,y", "B": "p q"}),
        ("A=,B", LOGIN | {"A": "", "B": "2"}),
    ],
)
def test_export(export: str | None, found: dict[str, str]) -> None:
    assert exported(MINE, export) == found


@pytest.mark.parametrize(
    ("array", "variables"),
    [
        ("7", ("7", "1", "7", "7", "1")),
        ("0-3", ("0", "4", "0", "3", "1")),
        ("2-10:4", ("2", "3", "2", "10", "4")),
        ("5,1%1", ("1", "2", "1", "5", "4")),
        (
            "0-999999999",
            ("0", "1000000000", "0", "999999999", "1"),
        ),  # sbatch refuses it, and nothing is filled by it
    ],
)
def test_an_array_is_its_first_task(array: str, variables: tuple[str, ...]) -> None:
    found = from_submission(
        Submission((f"--array={array}", "--gres=gpu:1"), {}, b"#!/bin/sh\n")
    ).environ
    names = ("ID", "COUNT", "MIN", "MAX", "STEP")
    assert tuple(found[f"SLURM_ARRAY_TASK_{name}"] for name in names) == variables


def test_without_an_array_there_is_no_task(tmp_path: Path) -> None:
    job = from_submission(Submission(("--gres=gpu:1", f"--chdir={tmp_path}"), {}, b"#!/bin/sh\n"))
    assert not [name for name in job.environ if "ARRAY" in name]
    assert job.folder == tmp_path
