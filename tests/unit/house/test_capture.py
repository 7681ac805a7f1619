"""The picture of a terminal shows what stands there in the end, asks nothing of the network, and
passes failure on."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

CAPTURE = Path(__file__).parents[3] / "docs" / "capture.py"


def text_of(picture: Path) -> str:
    text = re.sub(
        r"<style>.*?</style>|<[^>]+>", "\n", picture.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    return html.unescape(text).replace("\xa0", " ")


def drawn(target: Path, shell: str) -> tuple[str, int]:
    done = subprocess.run([sys.executable, CAPTURE, target, "sh", "-c", shell], check=False)
    return text_of(target), done.returncode


@pytest.mark.parametrize(
    "progress",
    [
        r"printf 'working 1'; printf '\r\033[2Kworking 2\n\033[1A\033[2K'; echo finished",
        r"printf 'working\rfinished\n'",
        r"printf '\033[?25lworking\r\n\033[1A\033[2K\033[?25hfinished\n'",
    ],
)
def test_progress_that_was_taken_away_is_not_drawn(tmp_path: Path, progress: str) -> None:
    (tmp_path / "run.sh").write_text(progress)
    text, status = drawn(tmp_path / "run.svg", f". {tmp_path}/run.sh")
    assert "finished" in text
    assert "working" not in text
    assert status == 0


def test_a_run_that_fails_is_seen_to_fail(tmp_path: Path) -> None:
    assert drawn(tmp_path / "run.svg", "echo no; exit 7")[1] == 7


def test_the_readmes_picture_is_of_a_real_run_and_needs_no_server() -> None:
    svg = (CAPTURE.parent / "capture.svg").read_text()
    assert "Submitted" in svg
    assert "GPU&#160;memory&#160;needed" in svg
    assert "@font-face" not in svg
    assert not re.search(r"(?:url\(|href=|src=)[\"']?https?:", svg)


def test_the_readmes_text_is_that_of_its_picture() -> None:
    readme = (CAPTURE.parents[1] / "README.md").read_text(encoding="utf-8")
    block = readme.partition("](docs/capture.svg)")[2].partition("```\n$ ")[2].partition("```")[0]
    assert block.split() == text_of(CAPTURE.with_suffix(".svg")).partition("$ ")[2].split()
