"""`xmem-slurm filter`: what Slurm's cli_filter hook asks."""

from typing import Annotated

import typer

from xmem_slurm.cli.arguments import SiteFile
from xmem_slurm.filter import start
from xmem_slurm.site import places


def filter_submission(
    process: Annotated[int, typer.Argument(help="The process id of sbatch.")], site: SiteFile = None
) -> None:
    """Answer Slurm's cli_filter hook: what to change in the job that this sbatch is submitting."""
    start.answer(str(places.site_file(site)), process)
