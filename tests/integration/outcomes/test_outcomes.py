"""What jobs really used comes back: on a lab that keeps accounts, from submission to report."""

import json
from pathlib import Path

import pytest

from tests.conftest import XMEM_SLURM, XSBATCH, Cluster, own_cache, wait_until, write_job
from xmem_slurm.outcomes import records
from xmem_slurm.outcomes.records import JobOutcome

pytestmark = [
    pytest.mark.torch, pytest.mark.slurm,
    pytest.mark.slow(
        covers=["xmem_slurm/outcomes/*", "xmem_slurm/recorder/*", "xmem_slurm/submission/re*"], as_one=True
    ),
]  # fmt: skip

SMALL_L4 = """[ -n "$XMEM_SHIMS" ] || case $SLURMD_NODENAME in l*) export XMEM_DEVICE_LIMIT_BYTES=900000000;; esac
"""
"""Makes the GPU of a job that really runs on an l4 too small; the dry run knows nothing of it."""


@pytest.fixture(scope="module")
def cluster(accounts: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A lab that keeps accounts, for a user who has nothing from before."""
    folder = tmp_path_factory.mktemp("user")
    own = {"XDG_STATE_HOME": str(folder / "state"), "XMEM_BUDGET": "300"}
    return Cluster(accounts.folder, accounts.environ | own_cache(folder) | own)


def job(folder: Path, python: Path, before: str = "") -> Path:
    write_job(folder, python, "--gres=gpu:h200:1", "--output=%j.out")
    script = folder / "job.sh"
    script.write_text(
        script.read_text().replace(f"{python} train.py", f"{before}{python} train.py")
    )
    return folder


def submitted(cluster: Cluster, folder: Path, *options: str) -> tuple[str, str]:
    done = cluster.run(XSBATCH, "--parsable", *options, "job.sh", cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


def outcome(cluster: Cluster, number: str) -> JobOutcome:
    place = Path(cluster.environ["XDG_STATE_HOME"], "xmem-slurm", "outcomes")
    return next(each for each in records.outcomes(place) if each.job == number)


def test_what_a_job_used_is_what_was_predicted_and_the_hours_are_those_of_a_hand_count(
    cluster: Cluster, job_python: Path, tmp_path: Path
) -> None:
    folder = job(tmp_path, job_python)
    first, _ = submitted(cluster, folder, "--xmem-summary")
    # it is known, and its prediction with it
    second, told = submitted(cluster, folder, "--xmem-record")
    assert "known since" in told
    for number in (first, second):
        assert "JobState=COMPLETED" in cluster.ended(number)
        seen = outcome(cluster, number)
        assert seen.prediction is not None
        assert seen.finished
        assert seen.device.reserved == seen.prediction.reserved_bytes > 0
        assert seen.device.allocated == seen.prediction.allocated_bytes
    assert (
        folder / f"{first}.out"
    ).read_text() == "xmem-slurm: estimated 1.0 GiB of GPU memory, used 1.0 of 22.0 GiB\n"
    assert (folder / f"{second}.out").read_text() == ""

    shown = cluster.run(XMEM_SLURM, "explain", first).stdout
    assert "torch reserved exactly what was estimated" in shown
    assert shown.count("would have fitted") == 4
    seconds = [0]

    def accounted() -> bool:
        rows = cluster.slurm(
            "sacct", "-nXP", "--format=ElapsedRaw,State", f"--jobs={first},{second}"
        ).split()
        seconds[:] = [int(row.partition("|")[0]) for row in rows if "COMPLETED" in row]
        return len(seconds) == 2

    wait_until(accounted)
    hours = sum(seconds) / 3600
    sums = json.loads(cluster.run(XMEM_SLURM, "waste", "--json").stdout)
    assert sums["done"] == {"l4": pytest.approx(hours)}  # other tests' jobs are in accounting, too
    assert (sums["cost_asked"], sums["cost_done"]) == (
        pytest.approx(9 * hours),
        pytest.approx(hours),
    )


def test_after_an_oom_the_same_script_asks_for_more(
    cluster: Cluster, job_python: Path, tmp_path: Path
) -> None:
    folder = job(tmp_path, job_python, SMALL_L4)
    first, _ = submitted(cluster, folder, "--xmem-record")
    assert "JobState=FAILED" in cluster.ended(first)
    second, told = submitted(cluster, folder, "--xmem-record")
    assert f"job {first} ran out of memory on l4 at 218.31 MiB" in told
    assert "--gres=gpu:h200:1 -> --gres=gpu:a100_40:1" in told
    assert "JobState=COMPLETED" in cluster.ended(second)
    assert "it needs more than the 218.31 MiB" in cluster.run(XMEM_SLURM, "explain", first).stdout


def test_a_retry_is_a_job_of_its_own_for_the_case_that_memory_ran_out(
    cluster: Cluster, job_python: Path, tmp_path: Path
) -> None:
    (tmp_path / "fails").mkdir()
    first, told = submitted(cluster, job(tmp_path, job_python, SMALL_L4), "--xmem-retry=1")
    (line,) = [line for line in told.splitlines() if "is there in case" in line]
    again = line.split()[2]
    assert "JobState=FAILED" in cluster.ended(first)
    shown = cluster.ended(again)
    assert "JobState=COMPLETED" in shown
    assert "a100_40" in shown
    seen = outcome(cluster, again)
    assert seen.finished
    assert seen.prediction is not None
    # The dry run was on an l4, and says nothing of an a100_40.
    assert (seen.prediction.run != "", seen.prediction.gpu) == (True, "")
    shown = cluster.run(XMEM_SLURM, "explain", again).stdout
    assert "estimated: nothing\n" in shown
    assert "\nhost memory: used " in shown

    other, told = submitted(
        cluster, job(tmp_path / "fails", job_python, "exit 1\n"), "--xmem-retry=1"
    )
    # its dry run failed, too: nothing was chosen that could be too small
    assert "submitted as written" in told
    assert "JobState=FAILED" in cluster.ended(other)
