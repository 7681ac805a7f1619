"""A user whose number has no name: in a container, or where the directory service does not
answer."""

import os
import pwd
from pathlib import Path

import pytest

from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.shims import slurm_queries
from xmem_slurm.slurm.submission import Submission


def test_a_user_without_a_name_is_nobody_as_slurm_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    job = from_submission(
        Submission(("--gres=gpu:1", "--output=%u.out", "job.sh"), {}, b"#!/bin/sh\n")
    )
    assert (job.environ["SLURM_JOB_USER"], "nobody.out" in job.environ["XMEM_JOB"]) == (
        "nobody",
        True,
    )
    assert slurm_queries.known(job.environ, 0.0)["UserId"] == f"nobody({os.getuid()})"
