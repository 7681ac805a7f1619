"""How wide is a line that somebody reads on a terminal or in a log, and where is a longer one
broken?
"""

import os
import re
from collections.abc import Sequence

COLUMNS = 100
"""Of a line that goes to no terminal, or to a wider one."""
_LEAST_COLUMNS = 60
"""A narrower terminal breaks lines itself; one of no width is a program's."""
INDENT = "  "
"""Before what goes on with a line."""
_WHOLE = re.compile(r"`[^`]*`|\[[^]]{,60}\]|\d (?:[KMGT]iB|%)")
"""What is not broken: what is copied from a line or said in passing, and a figure with its unit."""


def width(descriptor: int) -> int:
    """Return how wide a line may be there."""
    try:
        wide = os.get_terminal_size(descriptor).columns
    except OSError:
        return COLUMNS
    return min(wide, COLUMNS) if wide >= _LEAST_COLUMNS else COLUMNS


def broken(lines: Sequence[str], most: int) -> list[str]:
    """Return lines that are no wider than that, where they can be broken; what belongs to the one
    before is indented.
    """
    import textwrap  # noqa: PLC0415 - of most jobs without GPUs nothing is told

    wrapper = textwrap.TextWrapper(
        most, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False
    )
    shown: list[str] = []
    for line in lines:
        wrapper.initial_indent = ""
        for part in line.splitlines():
            shown += wrapper.wrap(_WHOLE.sub(lambda match: match[0].replace(" ", "\0"), part))
            wrapper.initial_indent = INDENT
    return [line.replace("\0", " ") for line in shown]


def entry(word: str, words: str, indent: int, most: int) -> list[str]:
    """Return the lines of a list's entry, `words` in a column of their own behind `word`."""
    import textwrap  # noqa: PLC0415 - as above

    first, column = word.ljust(indent - 2) + "  ", " " * indent
    lines = textwrap.wrap(
        words, max(most, _LEAST_COLUMNS), initial_indent=column, subsequent_indent=column
    )
    if len(first) > indent:
        return [word, *lines]
    return [first + lines[0][indent:], *lines[1:]]
