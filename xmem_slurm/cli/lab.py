"""`xmem-slurm lab VERB`: a real throw-away Slurm cluster on this machine."""

import os
import time
from typing import Annotated

import typer

from xmem_slurm import lab
from xmem_slurm.cli.arguments import AS_TYPED, SiteFile
from xmem_slurm.filter import hooks
from xmem_slurm.site import loading, places

app = typer.Typer(
    help="A real throw-away Slurm cluster on this machine, its nodes as in a site file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_SITE_LINK = "site.toml"
"""How a lab knows the site file that it was made from."""


@app.command("up")
def up(
    site: SiteFile = None,
    accounting: Annotated[
        bool, typer.Option("--accounting", help="With slurmdbd and MariaDB: sacct works.")
    ] = False,
    with_hooks: Annotated[
        bool, typer.Option("--hooks", help="With the hooks of `site install`.")
    ] = False,
) -> None:
    """Start the cluster; does nothing if it runs already."""
    started, path = time.monotonic(), places.site_file(site)
    loaded = loading.load_site(path)
    lab.up(
        loaded,
        lab.default_folder(),
        accounting=accounting,
        hooks=hooks.render(path, loaded) if with_hooks else {},
    )
    link = lab.default_folder() / _SITE_LINK
    link.unlink(missing_ok=True)
    link.symlink_to(path.absolute())
    typer.echo(
        f"lab is up in {lab.default_folder()} ({time.monotonic() - started:.1f} s)", err=True
    )


@app.command("down")
def down() -> None:
    """Stop the cluster and remove all of it."""
    lab.down(lab.default_folder())


@app.command("status")
def status() -> None:
    """Say which daemons run and what state the nodes are in."""
    status = lab.status(lab.default_folder())
    typer.echo(f"{status.folder}: {'up' if status.running else 'not up'}")
    for daemon, runs in status.daemons.items():
        node = daemon.removeprefix("slurmd.")
        typer.echo(
            f"  {daemon:24} {'runs' if runs else 'gone'}  {status.nodes.get(node, '')}".rstrip()
        )


@app.command("exec", context_settings=AS_TYPED)
def run(
    command: Annotated[
        list[str], typer.Argument(help="The command to run against the lab's cluster.")
    ],
) -> None:
    """Run a command, or a shell, whose xsbatch, sbatch, squeue and scontrol talk to the lab's
    cluster.
    """
    folder = lab.default_folder()
    # What is recorded there goes with the lab: jobs on stand-ins must not teach margins for GPUs
    # (`outcomes.learning`).
    environ = {**os.environ, **lab.environment(folder), "XDG_STATE_HOME": str(lab.records(folder))}
    link = folder / _SITE_LINK
    if link.is_symlink():
        environ["XMEM_SITE"] = str(link.readlink())
    os.execvpe(command[0], command, environ)
