"""What launchers make of their options in a dry run: how many processes, on which GPUs."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from xmem_slurm.dryrun.shims import commands, launchers, workers

OUTER = {"XMEM_DEVICE_COUNT": "4", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}


class Became(Exception):  # noqa: N818
    """Raised in place of becoming a rank."""


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The environment of a launcher in the dry run of a job with four GPUs on each node."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("torchrun", "deepspeed"):
        (programs / name).touch(0o755)
    environ = OUTER | {"XMEM_TRACE_DIR": str(tmp_path), "XMEM_SHIMS": str(tmp_path)}
    environ["PATH"] = str(programs)
    monkeypatch.setattr(launchers.os, "environ", environ)
    monkeypatch.setattr(workers.os, "environ", environ)

    def become(words: Sequence[str]) -> None:
        raise Became(*words)

    monkeypatch.setattr(launchers, "become", become)
    return environ


@pytest.mark.parametrize("name", ["mpirun", "mpiexec"])
@pytest.mark.parametrize("there", [True, False])
def test_mpi_is_done_without_where_it_is_not_and_that_is_noted(
    environ: dict[str, str], name: str, tmp_path: Path, *, there: bool
) -> None:
    programs = tmp_path / "programs"
    for program in ("python", *[name] * there):
        (programs / program).touch(0o755)
    with pytest.raises(Became) as started:
        commands.SHIMS[name](["-np", "1", "python", "train.py"])
    assert started.value.args == ("python", "train.py")
    noted = Path(environ["XMEM_TRACE_DIR"], launchers.NOT_HERE)
    assert (noted.read_text() if noted.exists() else "") == ("" if there else name)


@pytest.mark.parametrize(
    ("options", "nodes", "expected"),
    [
        ("", 1, (4, "0,1,2,3")),
        ("--num_gpus 2", 1, (2, "0,1,2,3")),
        ("--num_accelerators=2 -q", 1, (2, "0,1,2,3")),
        ("--include localhost:0,1", 1, (2, "0,1")),
        ("-i localhost:3,2", 1, (2, "2,3")),
        ("--include=localhost", 1, (4, "0,1,2,3")),
        ("--include localhost:1@localhost:3", 1, (2, "1,3")),
        ("--exclude localhost:0", 1, (3, "1,2,3")),
        ("--include worker-0:0,1@worker-1:2,3", 2, (4, "0,1")),
        ("--exclude worker-1", 2, (4, "0,1,2,3")),
        ("--exclude worker-0:0@worker-1:1", 2, (6, "1,2,3")),
        ("--include worker-0:0@worker-1", 2, (5, "0")),
        ("--exclude worker-1:0", 2, (7, "1,2,3")),
    ],
)
def test_deepspeed_starts_a_process_on_each_gpu_that_its_options_leave(
    environ: dict[str, str], options: str, nodes: int, expected: tuple[int, str]
) -> None:
    environ["SLURM_NNODES"] = str(nodes)
    with pytest.raises(Became) as started:
        launchers.deepspeed([*options.split(), "train.py", "--x"])
    assert started.value.args == ("python", "-u", "train.py", "--local_rank=0", "--x")
    assert (int(environ["WORLD_SIZE"]), environ["CUDA_VISIBLE_DEVICES"]) == expected


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--include localhost:4", "No slot '4' specified on host 'localhost'"),
        ("-i localhost:0 --num_gpus=1", "Cannot specify num_nodes/gpus with include/exclude"),
        ("-i localhost:0 -e localhost:1", "include_str and exclude_str are mutually exclusive."),
        ("--exclude localhost", "no GPU is left by --exclude"),
    ],
)
def test_what_deepspeed_refuses_is_refused(
    environ: Mapping[str, str],
    options: str,
    why: str,
) -> None:
    with pytest.raises(SystemExit):
        launchers.deepspeed([*options.split(), "train.py"])
    assert _notes(environ) == [f"deepspeed: {why}"]


def test_ranks_of_a_larger_node_know_how_many_they_are(environ: dict[str, str]) -> None:
    environ.update(SLURM_NNODES="2", XMEM_RUN_RANKS="4/5")
    with pytest.raises(Became) as started:
        launchers.deepspeed(["--include", "worker-0:0@worker-1", "train.py"])
    assert started.value.args[-1] == "--local_rank=3"
    names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
    assert [environ[name] for name in names] == ["4", "3", "4", "1", "0,1,2,3"]


def _notes(environ: Mapping[str, str]) -> list[str]:
    lines = (Path(environ["XMEM_TRACE_DIR"]) / "notes.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("start", [launchers.torchrun, launchers.deepspeed])
def test_a_launcher_that_is_not_there_starts_nothing(
    environ: dict[str, str], capsys: pytest.CaptureFixture[str], start: Callable[[list[str]], None]
) -> None:
    """The job's shell does not find it, either."""
    environ["PATH"] = "/nowhere"
    with pytest.raises(SystemExit) as ended:
        start(["train.py"])
    assert (ended.value.code, capsys.readouterr().err) == (
        127,
        f"{start.__name__}: command not found\n",
    )
