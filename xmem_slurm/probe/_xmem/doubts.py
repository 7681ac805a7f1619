"""What this process could not see, and what a trace therefore doubts: `note` is the one way to say
so.

A code is one of those that the wrapper has a price and a sentence for. What hangs on the moment
(loops that are still to come, what was counted so far) is asked for whenever a trace is written, by
the same call (`rows`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

    from _xmem.annotations import Doubting

MOST_DETAILS = 8
"""Of one code that was noted, so many details are told, the most met."""


class DoubtRow(TypedDict):
    """A doubt as it stands in a trace."""

    code: str
    detail: str
    count: int
    share: float | None


class Register:
    """Doubts, each (code, detail) once, with how often it was met."""

    def __init__(self) -> None:
        self._met: dict[tuple[str, str], tuple[int, float | None]] = {}

    def note(self, code: str, detail: str, count: int = 1, share: float | None = None) -> None:
        """Say a doubt, met `count` times; `share` is the margin that it asks for by itself, if that
        can be told.
        """
        self._met[code, detail] = self._met.get((code, detail), (0, None))[0] + count, share

    def rows(self) -> list[DoubtRow]:
        """Return them in the form of a trace."""
        return [
            {"code": code, "detail": detail, "count": count, "share": share}
            for (code, detail), (count, share) in self._met.items()
        ]

    def most_met(self) -> list[DoubtRow]:
        """Return the same of the most met of each code."""
        rows = self.rows()
        details_by_code: dict[str, list[str]] = {}
        for row in sorted(rows, key=lambda row: -row["count"]):
            details_by_code.setdefault(row["code"], []).append(row["detail"])
        return [row for row in rows if row["detail"] in details_by_code[row["code"]][:MOST_DETAILS]]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """What is noted within this is forgotten."""
        met = dict(self._met)
        try:
            yield
        finally:
            self._met.clear()
            self._met.update(met)


_process = Register()


def note(code: str, detail: str, count: int = 1, share: float | None = None) -> None:
    """Say a doubt of this process, as `Register.note`."""
    _process.note(code, detail, count, share)


def kept() -> AbstractContextManager[None]:
    """Within this nothing is noted for good, as `Register.kept`."""
    return _process.kept()


def rows(parts: Iterable[Doubting]) -> list[DoubtRow]:
    """Return all that is doubted now, in the form of a trace; each of `parts` says what hangs on
    the moment.
    """
    register = Register()
    for part in parts:
        part.doubt(register.note)
    return register.rows() + _process.most_met()
