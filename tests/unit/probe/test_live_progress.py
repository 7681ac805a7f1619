"""What a dry run says of where it is: heard while somebody waits, and nothing that the job could
make of it."""

import importlib
import socket
from pathlib import Path
from types import ModuleType

import pytest

import xmem_slurm
from xmem_slurm.dryrun import live_progress


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the probe's own module, which says all that it is given."""
    monkeypatch.syspath_prepend(Path(xmem_slurm.__file__).parent / "probe")
    module = importlib.import_module("_xmem.process.says")
    monkeypatch.setattr(module, "LEAST_SECONDS", 0.0)
    return module


def test_the_last_word_is_heard_with_the_rank_that_said_it(
    tmp_path: Path, says: ModuleType
) -> None:
    folder = tmp_path / ("long" * 30)
    (folder / "traces").mkdir(parents=True)
    with live_progress.somebody_waits() as dry_run, live_progress.told(folder) as variables:
        assert dry_run.words() == "starting"
        say = says.Says(variables | {"XMEM_TRACE_DIR": str(folder / "traces")}, lambda: 9.7)
        say("importing torch")
        say("step 7", lambda: (3, 8))
        assert dry_run.words() == "rank 3 of 8: step 7"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as voice:
            place = folder.rename(tmp_path / "short") / live_progress.SOCKET
            voice.sendto(b"1|\x1b[2J", str(place))
            voice.sendto(b"1|" + b"word " * 40, str(place))
        assert dry_run.words() == "rank 3 of 8: step 7"
    say("step 8")
    assert dry_run.words() == "replaying what it asked for"
    assert dry_run.seconds == 9
    with dry_run.listening(tmp_path):
        assert dry_run.seconds == 9, "the next dry run's come on top of it"


def test_where_nobody_waits_nothing_is_said(tmp_path: Path, says: ModuleType) -> None:
    with live_progress.told(tmp_path) as variables:
        assert variables == {}
        says.Says(variables, lambda: 0.0)("step 1")
    assert list(tmp_path.iterdir()) == []


def test_a_word_of_another_kind_is_said_at_once(
    tmp_path: Path, says: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(says, "LEAST_SECONDS", 60.0)
    with live_progress.somebody_waits() as dry_run, live_progress.told(tmp_path) as variables:
        (tmp_path / "traces").mkdir()
        say = says.Says(variables | {"XMEM_TRACE_DIR": str(tmp_path / "traces")}, lambda: 9)
        heard = []
        for words in ("importing torch", "importing flash_attn", "step 1", "step 2"):
            say(words)
            heard.append(dry_run.words())
        assert heard == ["importing torch", "importing torch", "step 1", "step 1"]


def test_who_reads_too_late_hears_what_comes_next(
    tmp_path: Path, says: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket holds a few hundred messages at most."""
    monkeypatch.setattr(says, "LEAST_SECONDS", -1.0)
    with live_progress.somebody_waits() as dry_run, live_progress.told(tmp_path) as variables:
        (tmp_path / "traces").mkdir()
        say = says.Says(variables | {"XMEM_TRACE_DIR": str(tmp_path / "traces")}, lambda: 9)
        for step in range(2000):
            say(f"step {step}")
        assert dry_run.words() != "step 1999"
        say("evaluating")
        assert dry_run.words() == "evaluating"


def test_a_thousand_steps_a_second_are_not_a_thousand_words(
    tmp_path: Path, says: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(says, "LEAST_SECONDS", 60.0)
    with live_progress.somebody_waits() as dry_run, live_progress.told(tmp_path) as variables:
        (tmp_path / "traces").mkdir()
        say = says.Says(variables | {"XMEM_TRACE_DIR": str(tmp_path / "traces")}, lambda: 0.0)
        for step in range(1000):
            say(f"step {step}")
        assert dry_run.words() == "step 0"
