"""Why a dry run that was stopped knows nothing: the stand-ins were not compiled in time, or it had
no time for the script."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xmem_slurm.device import builder
from xmem_slurm.dryrun import runner


@pytest.mark.parametrize(
    ("states", "is_building", "said"),
    [
        ([], True, "`xmem-slurm device build FOLDER` compiles them"),
        (["importing"], True, "`xmem-slurm device build FOLDER` compiles them"),
        (["running"], True, "--xmem-budget SECONDS gives it more"),
        ([], False, "--xmem-budget SECONDS gives it more"),
    ],
)
def test_where_the_stand_ins_were_being_compiled_it_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    states: list[str],
    *,
    is_building: bool,
    said: str,
) -> None:
    monkeypatch.setattr(builder, "cache_folder", lambda: tmp_path)
    if is_building:
        (builder.making(tmp_path) / "abc.123").mkdir(parents=True)
    outcome: Any = SimpleNamespace(stopped="time")
    read: Any = [SimpleNamespace(state=state) for state in states]
    assert said in runner._why_nothing(tmp_path, read, outcome)
