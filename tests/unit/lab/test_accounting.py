"""A cluster is made known to a slurmdbd that cannot write at once."""

from pathlib import Path

import pytest

from xmem_slurm.errors import LabError
from xmem_slurm.lab import accounting


@pytest.mark.parametrize(
    ("fails", "known", "calls"), [(0, "", 1), (2, "", 3), (9, "example", 1), (9, "examples", None)]
)
def test_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, known: str, calls: int | None
) -> None:
    """Until it has the cluster, or the time is up."""
    sacctmgr = tmp_path / "sacctmgr"
    sacctmgr.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *show*) echo "{known}"; exit;; esac\n'
        "echo >>calls\n"
        f"[ $(wc -l <calls) -gt {fails} ] || {{ echo 'Unspecified error' >&2; exit 1; }}\n"
    )
    sacctmgr.chmod(0o755)
    monkeypatch.setattr(accounting, "WRITES_SECONDS", 60.0 if calls else 0.0)
    monkeypatch.setattr(accounting.time, "sleep", lambda _seconds: None)
    if calls is None:
        with pytest.raises(LabError, match="Unspecified error"):
            accounting.add_cluster({"sacctmgr": str(sacctmgr)}, tmp_path, "example")
    else:
        accounting.add_cluster({"sacctmgr": str(sacctmgr)}, tmp_path, "example")
        assert (tmp_path / "calls").read_text().count("\n") == calls
