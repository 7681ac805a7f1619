"""Which slow tests run today? With --rotate: those of what has changed, and each of the others once
in some days.

A slow test is marked `slow(covers=[...], every=DAYS)`. It runs where a changed file is its own, or
one that `covers` names (patterns of fnmatch, `*` goes through folders), or where it is its day:
crc32 of its id % DAYS == days since 1970-01-01 (UTC) % DAYS, which everybody can compute. With
`as_one=True` the id is its file's: those tests share what takes the time. What has changed is what
`git diff` says against

1. XMEM_TEST_BASE, any name of a commit, such as the last one whose tests passed, if that is set;
2. else the commit at which this branch left the default branch of its origin;
3. else, on that branch itself, as in a clean clone, the commit before this one.

and what is not committed. Without git, or where there is no such commit, it is each test's day that
decides, alone. Without --rotate all tests run. The summary says how many were left out, and why.
"""

import os
import subprocess
import time
import zlib
from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

DAYS = 7
DAY = "XMEM_TEST_DAY"
"""A variable: the days since 1970-01-01, if another day than today is meant."""
_ROOT = Path(__file__).parents[2]
_LEFT_OUT = "left_out"


def some_each_time(
    members: Iterable[str], some: Collection[str], slow: pytest.MarkDecorator
) -> list[Any]:
    """Return the parameters of a test that has many of a kind: all but some are slow."""
    assert set(some) < set(members)
    return [pytest.param(each, marks=() if each in some else slow) for each in members]


def git(*words: str) -> list[str]:
    """Return the lines that git answers; none where it refuses."""
    try:
        ran = subprocess.run(
            ["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return []
    return ran.stdout.splitlines() if ran.returncode == 0 else []


def base() -> str | None:
    """Return the commit that changes are counted from."""
    asked = os.environ.get("XMEM_TEST_BASE")
    if asked:
        return asked
    head = git("rev-parse", "HEAD")
    left = git("merge-base", "HEAD", "origin/HEAD")
    return next(
        iter(left if left != head and left else git("rev-parse", "--verify", "HEAD~1")), None
    )


def changed(since: str | None) -> set[str]:
    """Return the files that differ from a commit, those that git does not know yet included."""
    named = git("diff", "--name-only", since) if since else git("diff", "--name-only", "HEAD")
    return {*named, *git("ls-files", "--others", "--exclude-standard")}


def is_touched(own: str, covers: Iterable[str], files: Iterable[str]) -> bool:
    """Whether one of the files is the test's own or is covered by it."""
    return any(file == own or any(fnmatch(file, pattern) for pattern in covers) for file in files)


def is_due(nodeid: str, every: int, day: int) -> bool:
    """Whether it is the day of this test."""
    return zlib.crc32(nodeid.encode()) % every == day % every


class Rotation:
    """Leaves out what is slow and not due."""

    def __init__(self) -> None:
        # one day for all workers, also past midnight
        os.environ.setdefault(DAY, str(int(time.time() // 86400)))
        self.day = int(os.environ[DAY])
        self.base = base()
        self.left_out = 0

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect it."""
        files = changed(self.base)
        out = [item for item in items if not self._runs(item, files)]
        self.left_out = len(out)
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in set(out)]

    def _runs(self, item: pytest.Item, files: set[str]) -> bool:
        mark = item.get_closest_marker("slow")
        if mark is None:
            return True
        own = item.nodeid.partition("::")[0]
        every = mark.kwargs.get("every", DAYS)
        name = own if mark.kwargs.get("as_one") else item.nodeid
        return is_due(name, every, self.day) or is_touched(own, mark.kwargs["covers"], files)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A worker tells the others how many it left out: all collect the same."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_LEFT_OUT] = self.left_out

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        """Take it from the workers."""
        self.left_out = max(self.left_out, getattr(node, "workeroutput", {}).get(_LEFT_OUT, 0))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it."""
        if self.left_out:
            since = f"since {self.base[:12]}" if self.base else "that git knows of"
            terminalreporter.write_line(
                f"{self.left_out} slow tests left out: nothing that they cover has changed "
                f"{since}, and today"
                f" (day {self.day}) is not theirs. `make test-all` runs all; "
                "tests/harness/rotation.py says which when."
            )
