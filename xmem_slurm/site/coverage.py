"""Whose jobs does the site-wide filter look at? Asked of a site file's tables as they stand.

pydantic would take longer than all else that a job waits for which is left alone. Where a table is
not as `schema` has it, there may be a TypeError or an AttributeError; what is wrong with it
`loading` says.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Tables = Mapping[str, Any]

COMMANDS: Final = ("sbatch",)
"""Slurm's commands that are looked at where the site file does not say."""


def has_user(tables: Tables, user: str) -> bool:
    """Whether any job of this user is looked at."""
    covered = tables.get("filter", {})
    return covered.get("mode") != "off" and _is_among(covered, "users", {user})


def has_job(
    tables: Tables, command: str, account: str | None, partitions: Sequence[str], *, opted_in: bool
) -> bool:
    """Whether a job of such a user is looked at; `partitions` are those that it names."""
    covered = tables.get("filter", {})
    defaults = [
        name for name, partition in tables.get("partition", {}).items() if partition.get("default")
    ]
    return (
        command in covered.get("commands", COMMANDS)
        and (opted_in or not covered.get("opt_in"))
        and _is_among(covered, "accounts", {account})
        and _is_among(covered, "partitions", set(partitions or defaults))
    )


def _is_among(covered: Tables, key: str, names: set[str | None]) -> bool:
    """Whether the names are all in the list `key`, if there is one, and none in `not_key`."""
    wanted = covered.get(key)
    return not names & set(covered.get(f"not_{key}", ())) and (
        not wanted or (bool(names) and names <= set(wanted))
    )
