"""Many submissions at once: each makes its one job, one is run dry, and the site's record has a
line of each."""

import functools
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks import crowd
from tests.conftest import EXAMPLE_SITE, XMEM_SLURM, XSBATCH, Cluster, running_lab, wait_until
from xmem_slurm.filter import hooks
from xmem_slurm.site.loading import load_site

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow(
        covers=[
            "xmem_slurm/*admission*",
            "xmem_slurm/*audit*",
            "xmem_slurm/filter/*",
            "benchmarks/crowd.py",
        ],
        as_one=True,
    ),
]

JOB = "#!/bin/sh\n#SBATCH --gres=gpu:h200:2\nsleep 1\nexit 3\n"


@pytest.fixture(scope="module")
def site_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "audit").mkdir(mode=0o733)
    text = (
        EXAMPLE_SITE.read_text()
        + f'\n[filter]\nmode = "rewrite"\nseconds = 120\n[audit]\nfolder = "{folder}/audit"\n'
    )
    (folder / "site.toml").write_text(text)
    return folder / "site.toml"


@pytest.fixture(scope="module")
def crowded(site_file: Path) -> Iterator[Cluster]:
    with running_lab(site_file, hooks.render(site_file, load_site(site_file))) as cluster:
        yield cluster


@pytest.mark.parametrize(("program", "size"), [(("sbatch",), 60), ((XSBATCH,), 20)])
def test_a_crowd_of_equal_submissions_loses_no_job_and_costs_one_dry_run(
    crowded: Cluster, site_file: Path, tmp_path: Path, program: Sequence[str], size: int
) -> None:
    (tmp_path / "job.sh").write_text(JOB)
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    found = crowd.submit(
        [[*program, "--hold", "--parsable", "job.sh"]] * size, tmp_path, crowded.environ | own
    )
    assert found.is_whole, found
    assert len(found.queued) == size
    told = list(found.said.elements())
    assert sum("the script ended with code 3" in line for line in told) == size
    assert sum("known since" in line for line in told) == size - 1, (
        "all but one have the answer of that one"
    )

    (record,) = (site_file.parent / "audit").glob("*.jsonl")
    wait_until(lambda: record.read_text().count("\n") == size)
    assert record.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    shown = crowded.slurm(XMEM_SLURM, "site", "metrics")
    assert f'xmem_jobs_total{{outcome="as written"}} {size}\n' in shown
    assert f'xmem_gpus_total{{from="h200",to="h200"}} {2 * size}\n' in shown
    for path in (site_file.parent / "audit").iterdir():
        path.unlink()
    assert len(lines) == size
    assert {line["outcome"] for line in lines} == {"as written"}
    assert all(line["from"] == line["to"] == ["gpu:h200:2"] for line in lines)
    assert "sleep" not in str(lines), "nothing of the script"


def test_no_job_is_lost_where_slurmctld_is_restarted_meanwhile(
    crowded: Cluster, site_file: Path, tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text(JOB)
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    environ, command = crowded.environ | own, ["sbatch", "--hold", "--parsable", "job.sh"]
    assert crowd.submit([command], tmp_path, environ).is_whole, "from here on its answer is known"
    slurmctld = shutil.which("slurmctld", path=f"{environ['PATH']}:/usr/sbin")
    assert slurmctld is not None
    restart = functools.partial(crowd.restart, crowded.folder, [slurmctld, "-D"], 0.0)
    found = crowd.submit([command] * 10, tmp_path, environ, restart)
    assert found.is_whole, found
    assert len(found.queued) == 10
