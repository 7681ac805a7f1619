"""What a site wants: the GPU that is free first; and of jobs that use one without asking, or ask
and use none."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, TRAIN, WARM_XSBATCH, Cluster, wait_until, write_job

pytestmark = [pytest.mark.slurm, pytest.mark.torch]


@pytest.fixture
def busy(cluster: Cluster) -> Iterator[Cluster]:
    """Keep every L4 busy for an hour, by Slurm's reckoning."""
    words = [
        "sbatch",
        "--parsable",
        "--gres=gpu:l4:4",
        "--time=60",
        "--output=/dev/null",
        "--wrap=sleep 3600",
    ]
    jobs = [cluster.slurm(*words).strip() for _ in range(2)]
    yield cluster
    cluster.slurm("scancel", *jobs)


def xsbatch(
    cluster: Cluster, folder: Path, *argv: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    words = [*WARM_XSBATCH, "--xmem-dry-run", "--time=10", *argv, "job.sh"]
    return cluster.run(*words, cwd=folder, XDG_STATE_HOME=str(folder / "state"), **environ)


def test_a_job_can_go_where_it_starts_first(
    busy: Cluster, tmp_path: Path, warm_python: Path
) -> None:
    write_job(tmp_path, warm_python, "--gres=gpu:h200:1")
    cheapest = xsbatch(busy, tmp_path)
    assert "#SBATCH --gres=gpu:l4:1" in cheapest.stdout, cheapest.stderr

    quiet = xsbatch(busy, tmp_path, "--xmem-policy=start", "--quiet")
    assert "#SBATCH --gres=gpu:a100_40:1" in quiet.stdout, quiet.stderr
    first = xsbatch(busy, tmp_path, "--xmem-policy=start")
    assert "#SBATCH --gres=gpu:a100_40:1" in first.stdout, first.stderr
    assert "of 4 options the first to start (" in first.stderr

    program = tmp_path / "sbatch"
    program.write_text(
        '#!/bin/sh\n[ -z "$SLURM_TIME_FORMAT" ] || exit 1\nPATH=/usr/bin exec sbatch "$@"\n'
    )
    program.chmod(0o755)
    silent = xsbatch(busy, tmp_path, XMEM_POLICY="start", XMEM_SBATCH=str(program))
    assert "#SBATCH --gres=gpu:l4:1" in silent.stdout, silent.stderr
    assert "Slurm did not say when each would start" in silent.stderr


def test_a_job_goes_to_no_gpu_that_it_would_wait_for_in_vain(
    cluster: Cluster, tmp_path: Path, warm_python: Path
) -> None:
    """A site file may say more than the cluster has, and Slurm may allow a user less: it has the
    last word."""
    site = tmp_path / "site.toml"
    site.write_text(
        EXAMPLE_SITE.read_text().replace("gpus = { a100_80 = 2 }", "gpus = { a100_80 = 4 }")
    )
    write_job(tmp_path, warm_python, "--gres=gpu:h200:3 --constraint=a100|h200")
    done = xsbatch(cluster, tmp_path, XMEM_SITE=str(site))
    assert "the request stays as it is: h200 has" in done.stderr, done.stderr


UNUSED = "import torch\ntorch.ones(9).sum()\n"
NOTHING = "print('no torch here')\n"


@pytest.mark.parametrize(
    ("stance", "train", "asked", "code", "told"),
    [
        ("unasked = 'leave'", TRAIN, (), 0, ""),
        ("unasked = 'advise'", TRAIN, (), 0, "this job asks for no GPU, and would use one"),
        ("unasked = 'advise'", NOTHING, (), 0, ""),
        ("unasked = 'refuse'", UNUSED, (), 0, ""),
        (
            "unasked = 'refuse'",
            TRAIN,
            (),
            1,
            "not submitted: this job asks for no GPU, and would use one",
        ),
        (
            "unused = 'leave'",
            UNUSED,
            ("--gres=gpu:h200:1",),
            0,
            "submitted as written: torch was imported but no GPU",
        ),
        (
            "unused = 'advise'",
            UNUSED,
            ("--gres=gpu:h200:1",),
            0,
            "this job asks for a GPU, and its dry run used none",
        ),
        (
            "unused = 'refuse'",
            UNUSED,
            ("--gres=gpu:h200:1",),
            1,
            "not submitted: this job asks for a GPU, and",
        ),
        ("unused = 'refuse'", NOTHING, ("--gres=gpu:h200:1",), 0, "submitted as written"),
    ],
)
def test_a_site_says_what_is_done_with_jobs_that_use_no_gpu_or_ask_for_none(
    cluster: Cluster,
    tmp_path: Path,
    warm_python: Path,
    stance: str,
    train: str,
    asked: tuple[str, ...],
    code: int,
    told: str,
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(EXAMPLE_SITE.read_text().replace("[policy]", f"[policy]\n{stance}"))
    site.write_text(f'{site.read_text()}\n[audit]\nfolder = "{tmp_path}/audit"\n')
    (tmp_path / "audit").mkdir()
    write_job(tmp_path, warm_python, train=train)
    for environ in ({}, {}, {"XMEM_OFF": "1"}):  # the second time, it is known
        again = {"XMEM_SITE": str(site)} | environ
        done = cluster.run(*WARM_XSBATCH, "--hold", *asked, "job.sh", cwd=tmp_path, **again)
        off = "XMEM_OFF" in environ
        assert done.returncode == (0 if off else code), done.stderr
        assert done.stderr == "" if off or not told else told in done.stderr
        if done.returncode == 0:
            shown = cluster.show(done.stdout.split()[-1])
            assert ("TresPerNode=gres:gpu:h200:1" in shown) is bool(asked)
            assert asked or "gres:gpu" not in shown
    if code == 1:
        record = tmp_path / "audit" / f"{os.getuid()}.jsonl"
        wait_until(lambda: record.exists() and record.read_text().count("\n") == 2)
        assert record.read_text().count('"outcome": "refused"') == 2
