"""What somebody who knows other commands expects of this one: short options, errors of one line,
JSON."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import EXAMPLE_SITE
from tests.harness.told import messages
from xmem_slurm import __version__
from xmem_slurm.cli import xsbatch
from xmem_slurm.cli.main import main
from xmem_slurm.estimating import by_dry_run
from xmem_slurm.outcomes import learned


class Done(NamedTuple):
    """How a command ended, and what it printed."""

    code: object
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Command":
    monkeypatch.setenv("XMEM_SITE", str(EXAMPLE_SITE))
    return Command(monkeypatch, capsys)


class Command:
    """Runs `xmem-slurm` in this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *words: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["xmem-slurm", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *self._capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["estimat", "job.sh"], "no such command 'estimat'. Did you mean 'estimate'?"),
        (["plan", "--top", "x", "job.sh"], "invalid value for '--top'"),
        (["estimate"], "missing argument 'command'; `xmem-slurm estimate --help` says more"),
        (["gpus", "--nope"], "no such option: --nope; `xmem-slurm gpus --help` says more"),
        (
            ["gpus", "--site"],
            "option '--site' requires an argument; `xmem-slurm gpus --help` says more",
        ),
        (
            ["explain", "--html", "/no/such/folder/x.html"],
            "/no/such/folder/x.html: there is no folder",
        ),
        (["gpus", "nope"], "nope: no GPU of the catalogue, nor of the site, has that in its name"),
    ],
)
def test_a_wrong_command_line_is_one_line_like_every_other_error(
    command: Command, words: list[str], said: str
) -> None:
    done = command(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"xmem-slurm: {said}")
    assert messages(done.err).count("\n") == 1


def test_short_options(command: Command) -> None:
    for word in ("-V", "-v"):  # without a verb there is nothing to say more of
        assert command(word) == (0, f"xmem-slurm {__version__}\n", "")
    assert "Usage: xmem-slurm" in command("-h").out
    assert "Usage: xmem-slurm explain" in command("explain", "-h").out


def test_without_a_word_there_is_help_alone(command: Command) -> None:
    done = command()
    assert (done.code, done.err) == (2, "")
    assert "Usage: xmem-slurm" in done.out


@pytest.mark.parametrize("words", [[], ["estimate"], ["plan"], ["site"], ["explain"]])
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_help_is_whole_and_no_wider_than_the_terminal(
    command: Command, monkeypatch: pytest.MonkeyPatch, words: list[str], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = command(*words, "--help").out.splitlines()
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if line.endswith("...") and "Usage:" not in line]
    assert "<bool>" not in "".join(lines)
    assert ("pytorch.org/memory_viz" in "".join(lines)) == (words in (["estimate"], ["explain"]))


@pytest.mark.parametrize("columns", [80, 120])
def test_help_of_xsbatch_is_no_wider_than_the_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert max(map(len, xsbatch._help().splitlines()[1:])) <= columns


def test_a_setting_that_nobody_set_shows_what_applies(command: Command) -> None:
    rows = dict(line.split()[:2] for line in command("config").out.splitlines())
    assert (rows["engine"], rows["ranks"], rows["budget"]) == ("auto", "automatic", "60")
    assert "-" not in rows.values()


def test_what_a_script_turns_on_is_shown_as_what_nobody_did(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n#XMEM keep-type\n")
    shown = command("config", str(tmp_path / "job.sh")).out.splitlines()
    assert shown[0].split(maxsplit=2) == ["keep-type", "on", "line 3 of the script"]


def test_gpus_of_the_site_come_first_and_a_word_narrows_them(command: Command) -> None:
    lines = command("gpus").out.splitlines()
    assert lines.pop(0).split() == ["GPU", "memory", "name", "at", "this", "site"]
    here = [not line.endswith("  -") for line in lines]
    assert here == sorted(here, reverse=True)
    assert any(here)
    assert [line.split()[0] for line in command("gpus", "a100_80").out.splitlines()] == [
        "GPU",
        "a100-sxm4-80gb",
    ]
    (row,) = json.loads(command("gpus", "--json", "L40S").out)["gpus"]
    assert (row["name"], row["options"]) == ("l40s", [])


def test_of_no_jobs_nothing_is_learned_and_no_file_written(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    said = command("learn").out
    assert said.startswith("no jobs of the last 400 days were recorded: there is nothing to learn")
    assert not learned.own_file().exists()


def test_a_gpu_can_be_named_as_the_site_names_it(command: Command) -> None:
    del command
    assert list(by_dry_run._named("a100_80")) == ["a100-sxm4-80gb"]
    assert list(by_dry_run._named("l40s")) == ["l40s"]
