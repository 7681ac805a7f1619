"""Where is the site file?"""

import os
from collections.abc import Mapping
from pathlib import Path

from xmem_slurm.errors import SiteError


def site_file(named: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Say which site file holds: the one named, else XMEM_SITE, else the cluster's, else the user's.

    Raises:
        SiteError: none of them exists.
    """
    if named or environ.get("XMEM_SITE"):
        return Path(named or environ["XMEM_SITE"])
    for place in site_places():
        if place.is_file():
            return place
    raise SiteError(
        f"no site file: looked for {' and '.join(map(str, site_places()))}; name one with XMEM_SITE=FILE, or an option"
    )


def site_places() -> tuple[Path, ...]:
    """Return where a site file is looked for, the first one first."""
    import platformdirs  # noqa: PLC0415 - not where the site file is named

    return Path("/etc/xmem-slurm/site.toml"), platformdirs.user_config_path("xmem-slurm") / "site.toml"
