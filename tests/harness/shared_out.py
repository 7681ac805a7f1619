"""Which tests have to run in one process, where several share the work (pytest-xdist's --dist loadgroup)?

Those of one file, as they share its fixtures and what it has imported. But a test that starts a torch or a job,
with no fixture that its file keeps for it, goes wherever there is room: one long file would be what all wait for.
"""

from collections.abc import Iterable

import pytest


def group(items: Iterable[pytest.Item]) -> None:
    """Mark the tests that go together with the name of their file."""
    for item in items:
        own = item.nodeid.partition("::")[0]
        is_heavy = item.get_closest_marker("torch") or item.get_closest_marker("slurm")
        if not is_heavy or own in _kept_by(item):
            item.add_marker(pytest.mark.xdist_group(own))


def _kept_by(item: pytest.Item) -> set[str]:
    """Return the files, or folders, whose fixtures this test uses that live longer than it."""
    info = item._fixtureinfo  # type: ignore[attr-defined]
    return {each[-1].baseid for each in info.name2fixturedefs.values() if each[-1].scope != "function"}
