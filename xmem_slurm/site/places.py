"""Where is the site file, and what stands in it, as far as that must be known before there is time
to check it?
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from xmem_slurm.errors import SiteError
from xmem_slurm.state import own_files, silent

QUEUE_SECONDS = 120.0
"""How long a submission waits for its dry run's turn where the site file does not say
(`schema.DryRuns`)."""
PER_USER = 2
"""How many dry runs of one user run at once where it does not say."""
FILTER_SECONDS = 30.0
"""The same of the filter's answer (`schema.Filter`)."""
UNASKED_SECONDS = 30.0
"""What a job that asks for no GPU may be kept waiting for the answer."""


def site_file(named: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Say which site file holds: the one named, else XMEM_SITE, else the cluster's, else the
    user's.

    Raises:
        SiteError: none of them exists.
        SilentPlace: a file system on which it may be does not answer.
    """
    if named or environ.get("XMEM_SITE"):
        place = Path(named or environ["XMEM_SITE"])
        silent.require_answers([place])
        return place
    for place in site_places():
        silent.require_answers([place])
        if place.is_file():
            return place
    raise SiteError(
        f"no site file: looked for {' and '.join(map(str, site_places()))};"
        " name one with XMEM_SITE=FILE, or with --site FILE (xsbatch: --xmem-site=FILE)"
    )


def tables(named: str | None, environ: Mapping[str, str], word: bytes) -> Mapping[str, Any]:
    """Return the tables of the site file that holds, as they stand, if `word` stands in it at all.

    None where there is no file that can be read: what is wrong with it is said where it is checked.

    Raises:
        SilentPlace: what it is on does not answer.
    """
    try:
        content = site_file(named, environ).read_bytes()
        if word not in content:
            return {}
        import tomllib  # noqa: PLC0415

        return tomllib.loads(content.decode())
    except (SiteError, OSError, ValueError):
        return {}


def unasked(named: str | None, environ: Mapping[str, str]) -> str:
    """Return what the site wants of jobs that ask for no GPU and would use one.

    Without a word of it they are left alone.

    Raises:
        SilentPlace: what the site file is on does not answer.
    """
    try:
        return str(tables(named, environ, b"unasked").get("policy", {}).get("unasked", "leave"))
    except AttributeError:
        return "leave"


def seconds(tables: Mapping[str, Any], table: str, key: str, default: float) -> float:
    """Return a number of seconds of a site file as it stands, where there is one."""
    try:
        return float(tables[table][key])
    except (LookupError, TypeError, ValueError):
        return default


class DryRunRules(NamedTuple):
    """What a site file says of the line that dry runs stand in (`admission.LineRules`)."""

    where: str = "here"
    per_user: int = PER_USER
    per_machine: int | None = None
    queue_seconds: float = QUEUE_SECONDS


def dry_run_rules(tables: Mapping[str, Any]) -> DryRunRules:
    """Return these of a site file as it stands; whoever waits for a turn has not checked it yet."""
    try:
        table = tables.get("dry_run", {})
        return DryRunRules(
            str(table.get("where", "here")),
            int(table.get("per_user", PER_USER)),
            int(table["per_machine"]) if "per_machine" in table else None,
            float(table.get("queue_seconds", QUEUE_SECONDS)),
        )
    except (TypeError, ValueError, AttributeError):
        return DryRunRules()


def site_places() -> tuple[Path, ...]:
    """Return where a site file is looked for, the first one first."""
    return Path("/etc/xmem-slurm/site.toml"), own_files.config_file("site.toml")
