"""`xmem-slurm VERB`: everything beside submitting."""

import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from xmem_slurm import __version__, lab
from xmem_slurm.cli import outcomes
from xmem_slurm.cli import site as site_verbs
from xmem_slurm.cli.estimate import compare, estimate, explain
from xmem_slurm.cli.generate import generate
from xmem_slurm.cli.plan import plan
from xmem_slurm.cli.site import SiteFile
from xmem_slurm.device import builder
from xmem_slurm.errors import SiteError, UsageError, XmemError
from xmem_slurm.filter import hooks
from xmem_slurm.site import loading, places
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import signals
from xmem_slurm.submission import settings
from xmem_slurm.submission.answer import Wishes
from xmem_slurm.units import human

app = typer.Typer(
    help="Right-size the GPU request of Slurm jobs; `xsbatch` is the drop-in for sbatch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
lab_app = typer.Typer(help="A real throw-away Slurm cluster on this machine, its nodes as in a site file.")
device_app = typer.Typer(help="The stand-in CUDA libraries that a dry run uses.")
_AS_TYPED = {"ignore_unknown_options": True, "allow_interspersed_args": False}
app.command("estimate", context_settings=_AS_TYPED)(estimate)
app.command("plan", context_settings=_AS_TYPED)(plan)
app.command("explain")(explain)
app.command("compare")(compare)
app.command("learn")(outcomes.learn)
app.command("waste")(outcomes.waste)
app.command("generate", context_settings=_AS_TYPED)(generate)
app.add_typer(lab_app, name="lab", no_args_is_help=True)
app.add_typer(device_app, name="device", no_args_is_help=True)
site_verbs.app.command("learn")(outcomes.site_learn)
site_verbs.app.command("waste")(outcomes.site_waste)
app.add_typer(site_verbs.app, name="site", no_args_is_help=True)


_SITE_LINK = "site.toml"
"""How a lab knows the site file that it was made from."""


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(f"xmem-slurm {__version__}")
        raise typer.Exit


@lab_app.command("up")
def lab_up(
    site: SiteFile = None,
    accounting: Annotated[bool, typer.Option("--accounting", help="With slurmdbd and MariaDB: sacct works.")] = False,
    with_hooks: Annotated[bool, typer.Option("--hooks", help="With the hooks of `site install`.")] = False,
) -> None:
    """Start the cluster; does nothing if it runs already."""
    started, path = time.monotonic(), places.site_file(site)
    loaded = loading.load_site(path)
    lab.up(loaded, lab.default_folder(), accounting=accounting, hooks=hooks.render(path, loaded) if with_hooks else {})
    link = lab.default_folder() / _SITE_LINK
    link.unlink(missing_ok=True)
    link.symlink_to(path.absolute())
    typer.echo(f"lab is up in {lab.default_folder()} ({time.monotonic() - started:.1f} s)", err=True)


@lab_app.command("down")
def lab_down() -> None:
    """Stop the cluster and remove all of it."""
    lab.down(lab.default_folder())


@lab_app.command("status")
def lab_status() -> None:
    """Say which daemons run and what state the nodes are in."""
    status = lab.status(lab.default_folder())
    typer.echo(f"{status.folder}: {'up' if status.running else 'not up'}")
    for daemon, runs in status.daemons.items():
        node = daemon.removeprefix("slurmd.")
        typer.echo(f"  {daemon:24} {'runs' if runs else 'gone'}  {status.nodes.get(node, '')}".rstrip())


@lab_app.command("exec", context_settings=_AS_TYPED)
def lab_exec(
    command: Annotated[list[str], typer.Argument(help="The command to run against the lab's cluster.")],
) -> None:
    """Run a command, or a shell, whose xsbatch, sbatch, squeue and scontrol talk to the lab's cluster."""
    folder = lab.default_folder()
    # What is recorded there goes with the lab: jobs on stand-ins must not teach margins for GPUs (`outcomes.learning`).
    environ = {**os.environ, **lab.environment(folder), "XDG_STATE_HOME": str(folder / "records")}
    link = folder / _SITE_LINK
    if link.is_symlink():
        environ["XMEM_SITE"] = str(link.readlink())
    os.execvpe(command[0], command, environ)


@device_app.command("build")
def device_build(
    torch_folder: Annotated[Path, typer.Argument(help="…/site-packages/torch of the Python in question.")],
) -> None:
    """Build the stand-ins for one torch, if they are not there yet, and print their folder."""
    typer.echo(builder.build(torch_folder))


@device_app.command("list")
def device_list() -> None:
    """List the stand-ins built so far."""
    for build in builder.cached_builds():
        typer.echo(f"{build.path}  torch {build.torch_version}, CUDA {build.cuda}, {build.torch_folder}")


@app.command("config")
def config(
    script: Annotated[str | None, typer.Argument(help="A job script, whose #XMEM lines count, too.")] = None,
) -> None:
    """Show which settings hold, and where each is from: your file, a script, the environment."""
    try:
        text = None if script is None else Path(script).read_bytes()
    except OSError as error:
        raise UsageError(f"{script}: cannot be read: {error.strerror}") from error
    job = Submission(() if script is None else (script,), dict(os.environ), text)
    found, complaints = settings.effective(job)
    typer.echo("".join(f"xmem-slurm: {line}\n" for line in complaints), err=True, nl=False)
    names = [option.name.removeprefix("xmem-") for option in settings.OWN_OPTIONS]
    for name in [*settings.ANYWHERE, *(name for name in names if name in found and name not in settings.ANYWHERE)]:
        default = getattr(Wishes(), name.replace("-", "_")) or "-"
        value, where = found.get(name, (f"{default:g}" if isinstance(default, float) else default, "default"))
        typer.echo(f"{name:12} {value:12} {where}")
    typer.echo(f"your file is {settings.user_file()}", err=True)


@app.command("gpus")
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


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that completes it.")],
    program: Annotated[Literal["xsbatch", "xmem-slurm"], typer.Argument(help="What is completed.")] = "xsbatch",
) -> None:
    """Print a program's completion for a shell; the wheel has it in share/, too, where the shell looks by itself."""
    from xmem_slurm.cli import pages, verb_pages  # noqa: PLC0415 - the other verbs need none of it

    own = pages.render(shell) if program == "xsbatch" else verb_pages.render(shell, typer.main.get_command(app))
    typer.echo(own, nl=False)


@app.command("filter", hidden=True)
def filter_submission(
    process: Annotated[int, typer.Argument(help="The process id of sbatch.")], site: SiteFile = None
) -> None:
    """Answer Slurm's cli_filter hook: what to change in the job that this sbatch is submitting."""
    from xmem_slurm.filter import start  # noqa: PLC0415 - the other verbs need none of it

    start.answer(str(places.site_file(site)), process)


def main() -> NoReturn:
    """Run the command line; an error of ours is one line on stderr and its exit code."""
    try:
        with signals.clearing_up():
            app()
    except XmemError as error:
        print(f"xmem-slurm: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(error.exit_code) from None
    raise SystemExit(0)
