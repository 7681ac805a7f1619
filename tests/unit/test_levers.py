"""What a plan changes in a job is what the job reads, and nothing else of it: arguments, variables, files, the request."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.traces import trace_of
from xmem_slurm.planning import deepspeed_json
from xmem_slurm.trace import File, Trace, Training


def ran(*argv: str, training: Training = Training(), ranks: int = 1, read: Sequence[Path] = ()) -> Trace:
    """Return what a dry run of `python train.py ARGV` showed."""
    files = [File("R", 1, 1, str(path)) for path in read]
    words = ["python", "train.py", *argv]
    return replace(trace_of("+p:1:PARAM"), argv=words, world_size=ranks, training=training, files=files)


def written(path: Path, optimizer: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"optimizer": {"type": optimizer}}))
    return path


def test_deepspeeds_file_is_the_one_that_was_read(tmp_path: Path) -> None:
    """One of the same name is where the job starts; and where two were read that differ, it may be either."""
    here, there = written(tmp_path / "ds.json", "SGD"), written(tmp_path / "sub" / "ds.json", "AdamW")
    for read, optimizer in (([there], "AdamW"), ([here], "SGD"), ([], "SGD"), ([tmp_path / "xds.json"], "SGD")):
        found = deepspeed_json.find(ran("--deepspeed", "ds.json", read=read), tmp_path, tmp_path)
        assert found is not None
        assert found.config["optimizer"]["type"] == optimizer
    assert deepspeed_json.find(ran("--deepspeed", "ds.json", read=[here, there]), tmp_path, tmp_path) is None


@pytest.mark.parametrize("words", ["--deepspeed a.json --deepspeed=b.json", "--deepspeed=a.json --deepspeed b.json"])
def test_of_deepspeeds_files_the_last_that_is_named_counts(words: str, tmp_path: Path) -> None:
    written(tmp_path / "a.json", "SGD"), written(tmp_path / "b.json", "AdamW")
    found = deepspeed_json.find(ran(*words.split()), tmp_path, tmp_path)
    assert found is not None
    assert found.config["optimizer"]["type"] == "AdamW"
