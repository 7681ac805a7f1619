"""`xmem-slurm gpus`: the GPUs of the catalogue, and which of them are here."""

import typer

from xmem_slurm.cli.arguments import SiteFile
from xmem_slurm.errors import SiteError
from xmem_slurm.site import loading, places
from xmem_slurm.units import human


def gpus(site: SiteFile = None) -> None:
    """List the GPUs of the catalogue, and which of them the site has, under what name."""
    catalogue = loading.load_catalogue()
    try:
        here = loading.load_site(places.site_file(site))
    except SiteError as error:
        typer.echo(f"xmem-slurm: the catalogue alone: {error}", err=True)
        here = None
    options = {} if here is None else here.option
    width = max(map(len, catalogue))
    for name, gpu in catalogue.items():
        own = ", ".join(each for each, option in options.items() if option.gpu == name and option.share is None)
        typer.echo(f"{name:{width}}  {human(gpu.total_bytes):>10}  {f'this site: {own}' if own else ''}".rstrip())
