"""`xmem-slurm gpus`: the GPUs of the catalogue, and which of them are here."""

import json
from typing import Annotated

import typer

from xmem_slurm.cli.arguments import AsJson, SiteFile, tell
from xmem_slurm.errors import SiteError, UsageError
from xmem_slurm.site import loading, places
from xmem_slurm.units import human


def gpus(
    word: Annotated[
        str | None, typer.Argument(help="Only those with this in their name, or in the site's.")
    ] = None,
    *,
    site: SiteFile = None,
    as_json: AsJson = False,
) -> None:
    """List the GPUs of the catalogue, and which of them the site has, and under what name."""
    catalogue = loading.load_catalogue()
    try:
        loaded = loading.load_site(places.site_file(site))
    except SiteError as error:
        tell(f"only the catalogue is shown: {error}")
        loaded = None
    options = {} if loaded is None else loaded.option
    names = {
        name: [
            label
            for label, option in options.items()
            if option.gpu == name and option.share is None
        ]
        for name in catalogue
    }
    part = (word or "").lower()
    shown = [
        name for name in catalogue if any(part in label.lower() for label in [name, *names[name]])
    ]
    if not shown:
        raise UsageError(f"{word}: no GPU of the catalogue, nor of the site, has that in its name")
    shown.sort(key=lambda name: not names[name])  # those of the site first
    if as_json:
        listed = [
            {
                "name": name,
                "cuda_name": catalogue[name].cuda_name,
                "total_bytes": catalogue[name].total_bytes,
                "compute_capability": catalogue[name].capability,
                "options": names[name],
            }
            for name in shown
        ]
        typer.echo(json.dumps({"schema_version": 1, "gpus": listed}, indent=2))
        return
    rows = [
        (name, human(catalogue[name].total_bytes), ", ".join(names[name]) or "-") for name in shown
    ]
    width = max(map(len, shown))
    for name, size, at_site in [("GPU", "memory", "name at this site"), *rows]:
        here = f"  {at_site}" if loaded is not None else ""
        typer.echo(f"{name:{width}}  {size:>10}{here}")
