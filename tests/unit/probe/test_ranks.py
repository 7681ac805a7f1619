"""What takes the place of torch's launchers in a dry run: it ends as the rank did that ended
worst."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import xmem_slurm


def test_ranks_of_which_one_was_killed_have_not_succeeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks the first is killed, and the other one ends well."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    utils = ModuleType("torch.distributed.elastic.utils")
    utils.macros = SimpleNamespace(substitute=lambda args, _rank: args)  # type: ignore[attr-defined]
    for name in ("torch", "torch.distributed", "torch.distributed.elastic"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, utils.__name__, utils)
    monkeypatch.setenv("XMEM_RUN_RANKS", "0,1/2")
    monkeypatch.setenv("XMEM_LAUNCHER", "1")
    config = SimpleNamespace(
        nproc_per_node=2,
        min_nodes=1,
        max_nodes=1,
        rdzv_configs={},
        rdzv_endpoint="",
        role="default",
        max_restarts=0,
        run_id="1",
    )
    launch = importlib.import_module("_xmem.ranks.launch").launch_agent(None, None)
    with pytest.raises(SystemExit) as ended:
        launch(config, "/bin/sh", ["-c", "[ $RANK = 1 ] || kill -9 $$"])
    assert ended.value.code == 128 + 9
