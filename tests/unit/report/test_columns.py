"""Where lines that are too long to be read are broken."""

import os
import pty
import struct
import termios
from fcntl import ioctl

import pytest

from tests.harness.told import messages
from xmem_slurm.report.columns import COLUMNS, broken, width


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("a line that fits", ["a line that fits"]),
        ("  l4  21.95 GiB", ["  l4  21.95 GiB"]),
        ("one that is longer than twenty", ["one that is longer", "  than twenty"]),
        ("the change:\nthe reason", ["the change:", "  the reason"]),
        (
            "too long: /home/ada/a-path-of-one-word",
            ["too long:", "  /home/ada/a-path-of-one-word"],
        ),
        ("said by `explain train.sh`", ["said by", "  `explain train.sh`"]),
        ("it was changed [--off: not]", ["it was changed", "  [--off: not]"]),
        ("it needs some 15.35 GiB", ["it needs some", "  15.35 GiB"]),
        ("", []),
    ],
)
def test_a_line_is_broken_between_words_that_are_not_copied_together(
    line: str, shown: list[str]
) -> None:
    assert broken([line], 20) == shown


def test_tests_read_a_message_a_line() -> None:
    said = [f"xsbatch: {line}" for line in broken(["word " * 9 + "end\nmore", "next"], 20)]
    assert messages("\n".join(said)) == f"xsbatch: {'word ' * 9}end more\nxsbatch: next"


@pytest.mark.parametrize(("given", "seen"), [(80, 80), (300, COLUMNS), (0, COLUMNS)])
def test_a_line_is_as_wide_as_its_terminal_at_most(given: int, seen: int) -> None:
    terminal, side = pty.openpty()
    try:
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, given, 0, 0))
        assert width(side) == seen
    finally:
        os.close(terminal)
        os.close(side)


def test_a_log_has_lines_of_one_width() -> None:
    read, write = os.pipe()
    assert width(write) == COLUMNS
    os.close(read)
    os.close(write)
