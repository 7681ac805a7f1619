"""What this process could not see, and what a trace therefore doubts: `note` is the one way to say
so.

A code is one of those that the wrapper has a price and a sentence for. What hangs on the moment
(loops that are still to come, what was counted so far) is asked for whenever a trace is written, by
the same call (`rows`).
"""

import contextlib

MOST_DETAILS = 8
"""Of one code that was noted, so many details are told, the most met."""


class Register:
    """Doubts, each (code, detail) once, with how often it was met."""

    def __init__(self):
        self._met = {}

    def note(self, code, detail, count=1, share=None):
        """Say a doubt, met `count` times; `share` is the margin that it asks for by itself, if that
        can be told.
        """
        self._met[code, detail] = self._met.get((code, detail), (0,))[0] + count, share

    def rows(self):
        """Return them in the form of a trace."""
        return [
            {"code": code, "detail": detail, "count": count, "share": share}
            for (code, detail), (count, share) in self._met.items()
        ]

    def most_met(self):
        """Return the same of the most met of each code."""
        rows, told = self.rows(), {}
        for row in sorted(rows, key=lambda row: -row["count"]):
            told.setdefault(row["code"], []).append(row["detail"])
        return [row for row in rows if row["detail"] in told[row["code"]][:MOST_DETAILS]]

    @contextlib.contextmanager
    def kept(self):
        """What is noted within this is forgotten."""
        met = dict(self._met)
        try:
            yield
        finally:
            self._met.clear()
            self._met.update(met)


_process = Register()


def note(code, detail, count=1, share=None):
    """Say a doubt of this process, as `Register.note`."""
    _process.note(code, detail, count, share)


def kept():
    """Within this nothing is noted for good, as `Register.kept`."""
    return _process.kept()


def rows(parts):
    """Return all that is doubted now, in the form of a trace; each of `parts` says what hangs on
    the moment.
    """
    now = Register()
    for part in parts:
        part.doubt(now.note)
    return now.rows() + _process.most_met()
