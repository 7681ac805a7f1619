"""An array job's answers are taken as its tasks leave them, and its folder goes, and what another
left."""

import errno
import platform
from pathlib import Path

import pytest

from xmem_slurm.dryrun import array_job, exchange
from xmem_slurm.dryrun.budget import Budget, Spent
from xmem_slurm.dryrun.exchange import DryRunResult
from xmem_slurm.dryrun.job import Job
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.site.loading import load_catalogue
from xmem_slurm.site.schema import DryRuns
from xmem_slurm.state import throwaway

WHERE = DryRuns(where="srun", partition="cpu")
ORDER = DryRunOrder(Job(b"#!/bin/sh\n", (), Path("/"), {}), load_catalogue()["h200"], Budget())
KNOWN = DryRunResult([], Spent(3.0))


def test_what_was_answered_counts_whatever_is_left_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what a killed one left goes first."""

    def answered(folder: Path, count: int, _budget: Budget, _where: DryRuns) -> str:
        assert [each.name for each in folder.parent.iterdir()] == [folder.name]
        for index in range(count):
            assert (
                exchange.order_from_json((folder / f"{index}.json").read_text()).job.script
                == ORDER.job.script
            )
            (folder / f"{index}.answer").write_text(exchange.result_to_json(KNOWN))
        return ""

    def busy(folder: Path) -> None:
        raise OSError(errno.EBUSY, "busy", str(folder))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    left = tmp_path / "xmem-slurm" / f"xmem-dry-runs-{platform.node()}-killed"
    left.mkdir(parents=True)
    (left / "0.json").write_text("{}")
    monkeypatch.setattr(array_job, "_submit", answered)
    assert array_job.run([ORDER, ORDER], WHERE) == [KNOWN] * 2
    monkeypatch.setattr(throwaway, "remove", busy)
    assert array_job.run([ORDER, ORDER], WHERE) == [KNOWN] * 2
