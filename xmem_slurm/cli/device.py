"""`xmem-slurm device VERB`: the stand-in CUDA libraries."""

from pathlib import Path
from typing import Annotated

import typer

from xmem_slurm.device import builder

app = typer.Typer(
    help="The stand-in CUDA libraries that a dry run uses.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@app.command("build")
def build(
    torch_folder: Annotated[
        Path, typer.Argument(help="…/site-packages/torch of the Python in question.")
    ],
) -> None:
    """Build the stand-ins for one torch, if they are not there yet, and print their folder."""
    typer.echo(builder.build(torch_folder))


@app.command("list")
def list_all() -> None:
    """List the stand-ins built so far."""
    for build in builder.cached_builds():
        typer.echo(
            f"{build.path}  torch {build.torch_version}, CUDA {build.cuda}, {build.torch_folder}"
        )
