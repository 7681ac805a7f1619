"""Whose jobs the filter in every sbatch looks at, by the site file's tables alone."""

import os
import pwd
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from xmem_slurm.site import coverage

PARTITIONS = "\n[partition.gpu]\ndefault = true\n[partition.long]\n"


@pytest.mark.parametrize(
    ("table", "looked_at"),
    [
        ("", True),
        ('mode = "off"', False),
        ('not_users = ["ann"]', False),
        ('users = ["bob"]', False),
        ('users = ["ann"]', True),
        ('users = ["ann"]\nnot_users = ["ann"]', False),
    ],
)
def test_users(table: str, *, looked_at: bool) -> None:
    assert coverage.has_user(tomllib.loads(f"[filter]\n{table}\n"), "ann") is looked_at


@pytest.mark.parametrize(
    ("table", "looked_at"),
    [
        ("", True),
        ('commands = ["srun"]', False),
        ("opt_in = true", False),
        ('accounts = ["lab"]', True),
        ('accounts = ["other"]', False),
        ('not_accounts = ["lab"]', False),
        ('partitions = ["gpu"]', True),
        ('partitions = ["long"]', False),
        ('not_partitions = ["gpu"]', False),
    ],
)
def test_jobs(table: str, *, looked_at: bool) -> None:
    tables = tomllib.loads(f"[filter]\n{table}\n{PARTITIONS}")
    assert coverage.has_job(tables, "sbatch", "lab", (), opted_in=False) is looked_at
    if "opt_in" in table:
        assert coverage.has_job(tables, "sbatch", "lab", (), opted_in=True)


def test_each_partition_that_a_job_names_counts() -> None:
    tables = tomllib.loads(f'[filter]\npartitions = ["gpu"]\n{PARTITIONS}')
    assert not coverage.has_job(tables, "sbatch", None, ["gpu", "long"], opted_in=False)
    assert not coverage.has_job({**tables, "partition": {}}, "sbatch", None, [], opted_in=False)


@pytest.mark.parametrize("table", ["users = 7", "not TOML ["])
def test_who_is_not_plainly_left_alone_is_told_what_is_wrong(tmp_path: Path, table: str) -> None:
    """Of a user who is, not even the process is looked for: there is none of this number."""
    user = pwd.getpwuid(os.getuid()).pw_name
    for text, told in (
        (f"[filter]\n{table}\n", "process 9999999: No such file"),
        (f'[filter]\nnot_users = ["{user}"]\n', ""),
    ):
        (tmp_path / "site.toml").write_text(text, encoding="utf-8")
        command = [sys.executable, "-c", "from xmem_slurm.filter.start import main; main()"]
        done = subprocess.run(
            [*command, tmp_path / "site.toml", "9999999"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == "end\n"
        assert (told in done.stderr) if told else not done.stderr
