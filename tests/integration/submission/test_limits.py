"""A QOS of which a job asks too much has it wait for ever: such a kind of GPU is none to move it
to."""

import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import EXAMPLE_SITE, Cluster, wait_until
from xmem_slurm import lab, resources
from xmem_slurm.cluster import start_times
from xmem_slurm.site.loading import load_site
from xmem_slurm.slurm.submission import Submission

pytestmark = pytest.mark.slurm
ENFORCED = "\nAccountingStorageEnforce=associations,limits,qos\n"


@pytest.fixture
def limited() -> Iterator[Cluster]:
    """Bring up a cluster whose default QOS has limits that it does not deny jobs for."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    missing = [
        name
        for name in ("slurmdbd", "mariadbd", "mariadb")
        if shutil.which(name, path=path) is None
    ]
    if missing:
        pytest.skip(f"accounting needs {', '.join(missing)}, which are not installed")
    with tempfile.TemporaryDirectory(prefix="xl", dir="/tmp") as parent:
        Path(parent).chmod(0o755)
        own = Path(parent, "templates", "lab")
        own.mkdir(parents=True)
        name = "slurm.conf.j2"
        (own / name).write_text((resources.tree("templates") / "lab" / name).read_text() + ENFORCED)
        site = Path(parent, "site.toml")
        site.write_text(f'templates = "{own.parent}"\n{EXAMPLE_SITE.read_text()}')
        folder, user = Path(parent, "lab"), getpass.getuser()
        lab.up(load_site(site), folder, accounting=True)
        try:
            cluster = Cluster(
                folder, {**os.environ, **lab.environment(folder), "XMEM_SITE": str(site)}
            )
            # root is there already
            cluster.run("sacctmgr", "-i", "add", "user", user, "account=root")
            most = ["MaxTRESPerJob=gres/gpu:l4=0,gres/gpu:h200=1", "GrpTRES=gres/gpu:a100_40=1"]
            cluster.slurm("sacctmgr", "-i", "add", "qos", "small", "set", *most)
            cluster.slurm(
                "sacctmgr",
                "-i",
                "modify",
                "user",
                user,
                "set",
                "qos+=small,normal",
                "defaultqos=small",
            )
            yield cluster
        finally:
            lab.down(folder)


def test_an_option_beyond_the_limits_of_the_qos_never_starts(
    limited: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in limited.environ.items():
        monkeypatch.setenv(name, value)

    def never(*words: str) -> set[str]:
        site = load_site(Path(limited.environ["XMEM_SITE"]))
        job = Submission((*words, "job.sh"), limited.environ, b"#!/bin/sh\n")
        answers = start_times.expected(job, site, list(site.option))
        assert answers.keys() == site.option.keys()
        return {name for name, start in answers.items() if start == float("inf")}

    def reason(*words: str) -> str:
        job = limited.slurm("sbatch", "--parsable", "-o/dev/null", *words, "--wrap=true").strip()
        wait_until(
            lambda: limited.slurm("squeue", "-hj", job, "-o%r").strip() not in {"None", "Priority"}
        )
        return limited.slurm("squeue", "-hj", job, "-o%r").strip()

    assert reason("--gres=gpu:h200:2") == "QOSMaxGRESPerJob"
    assert reason("--gres=gpu:l4:1") == "QOSMaxGRESPerJob"
    assert never("--gres=gpu:1") == {"l4"}
    assert never("--gres=gpu:2") == {"l4", "h200", "a100_40"}
    assert never("--gres=gpu:2", "--qos=normal") == set()
