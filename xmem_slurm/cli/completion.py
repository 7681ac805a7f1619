"""`xmem-slurm completion`: what a shell completes xsbatch and xmem-slurm by."""

from typing import Annotated, Literal

import typer

from xmem_slurm.cli import main, pages, verb_pages


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that completes it.")
    ],
    program: Annotated[
        Literal["xsbatch", "xmem-slurm"], typer.Argument(help="What is completed.")
    ] = "xsbatch",
) -> None:
    """Print the shell completion of xmem-slurm or xsbatch; an installed wheel already has it in
    share/.
    """
    text = pages.render(shell) if program == "xsbatch" else verb_pages.render(shell, main.whole())
    typer.echo(text, nl=False)
