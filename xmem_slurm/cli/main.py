"""`xmem-slurm VERB`: everything beside submitting."""

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from xmem_slurm import __version__, lab
from xmem_slurm.cli import site as site_verbs
from xmem_slurm.cli.generate import generate
from xmem_slurm.cli.site import SiteFile
from xmem_slurm.device import builder
from xmem_slurm.dryrun import Engine, admission, dispatch
from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.order import Asked
from xmem_slurm.errors import NoEstimate, SiteError, UsageError, XmemError
from xmem_slurm.filter import hooks
from xmem_slurm.report import files, html, perfetto, snapshot, terminal
from xmem_slurm.report import json as json_report
from xmem_slurm.report.largest import at_peak
from xmem_slurm.report.options import outlooks, remedy
from xmem_slurm.site import loading, places
from xmem_slurm.site.schema import DryRuns, Site
from xmem_slurm.sizing import sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import signals

app = typer.Typer(
    help="Right-size the GPU request of Slurm jobs; `xsbatch` is the drop-in for sbatch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
lab_app = typer.Typer(help="A real throw-away Slurm cluster on this machine, its nodes as in a site file.")
device_app = typer.Typer(help="The stand-in CUDA libraries that a dry run uses.")
app.command("generate", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})(generate)
app.add_typer(lab_app, name="lab", no_args_is_help=True)
app.add_typer(device_app, name="device", no_args_is_help=True)
app.add_typer(site_verbs.app, name="site", no_args_is_help=True)


_SITE_LINK = "site.toml"
"""How a lab knows the site file that it was made from."""


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    if version:
        typer.echo(f"xmem-slurm {__version__}")
        raise typer.Exit


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def estimate(
    command: Annotated[list[str], typer.Argument(help="A job script with its arguments, or -- COMMAND…")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write charts and tables, one HTML file.")] = None,
    snapshot_file: Annotated[
        Path | None, typer.Option("--snapshot", help="Write torch's memory snapshot, for pytorch.org/memory_viz.")
    ] = None,
    perfetto_file: Annotated[
        Path | None, typer.Option("--perfetto", help="Write memory counters, for ui.perfetto.dev.")
    ] = None,
    gpu: Annotated[str | None, typer.Option("--gpu", help="A GPU of the catalogue, in place of a site's.")] = None,
    site: SiteFile = None,
    budget: Annotated[
        float, typer.Option("--budget", "--xmem-budget", help="CPU seconds that the dry runs may take.")
    ] = 60.0,
    engine: Annotated[Engine, typer.Option("--engine", help="Stand-in CUDA libraries, or real steps on the CPU.")] = (
        "auto"
    ),
    ranks: Annotated[
        str, typer.Option("--ranks", help="Ranks that are run beside the first: all, last, or numbers (0,3).")
    ] = "",
    advice: Annotated[
        bool,
        typer.Option(
            "--advice", help="Where a GPU is too small, up to three more dry runs: half the batch, bf16, checkpointing."
        ),
    ] = False,
) -> None:
    """Estimate the GPU memory of a job script or a command; no Slurm needed, nothing is submitted."""
    job, allowance = _submission(command), Budget(seconds=budget)
    asked = Asked(engine, ranks, origins=True)
    catalogue = loading.load_catalogue()
    if gpu is not None and gpu not in catalogue:
        raise UsageError(f"--gpu {gpu}: not in the GPU catalogue; it has {', '.join(catalogue)}")
    where = _site(site) if gpu is None else None
    rules = where.dry_run if where is not None else DryRuns()
    turn = admission.turn(rules, None, partial(typer.echo, err=True))
    with turn, terminal.progress("running the job dry to see how much GPU memory it needs"):
        request = job.request
        components = request.with_gpus or range(len(request.components))
        if where is not None:
            gpus = loading.option_gpus(where, catalogue)
            orders = sizing.size_components(job, components, where, gpus, allowance, asked=asked)
        else:
            assert gpu is not None
            orders = sizing.on_one(job, components, gpu, catalogue[gpu], allowance.within(rules), asked=asked)
        answers = dispatch.one(orders, rules)
    sized = _sized(answers)
    if advice:
        turn = admission.turn(rules, None, partial(typer.echo, err=True))
        with turn, terminal.progress("running it dry again with one change at a time"):
            sized = {
                number: dispatch.one(sizing.advised(each, job, number, allowance.within(rules), asked=asked), rules)
                for number, each in sized.items()
            }
    page = partial(html.write, templates=where.templates if where is not None else None)
    for write, path in ((page, html_file), (snapshot.write, snapshot_file), (perfetto.write, perfetto_file)):
        if path is not None:
            for component, each in sized.items():
                _written(write, files.of_component(path, component, sized), each)
    if as_json:
        objects = {component: json_report.estimate_object(each) for component, each in sized.items()}
        listed = {"components": [{"component": number, "estimate": each} for number, each in objects.items()]}
        typer.echo(json.dumps(listed if request.others else objects[0], indent=2))
        return
    for component, each in sized.items():
        options = terminal.option_lines(outlooks(each), remedy(each), each.advice)
        if advice and not each.advice:
            options.append("nothing to advise: no whole GPU is too small")
        lines = [*terminal.estimate_lines(each.estimate, at_peak(each.estimate.largest)), *options]
        typer.echo("\n".join(f"component {component}: {line}" if request.others else line for line in lines))


def _site(named: str | None) -> Site:
    try:
        return loading.load_site(places.site_file(named))
    except SiteError as error:
        raise SiteError(f"{error}; --gpu NAME takes a GPU of the catalogue in its place") from error


def _sized(answers: Mapping[int, sizing.Sizing | NoEstimate]) -> Mapping[int, sizing.Sizing]:
    """Return what is known of each component, and say of the others why not.

    Raises:
        NoEstimate: nothing is known of any.
    """
    sized = {component: each for component, each in answers.items() if isinstance(each, sizing.Sizing)}
    for component, each in answers.items():
        if isinstance(each, NoEstimate):
            if not sized:
                raise each
            typer.echo(f"xmem-slurm: component {component}: {each}", err=True)
    return sized


def _written(write: Callable[[Path, sizing.Sizing], None], path: Path, sized: sizing.Sizing) -> None:
    try:
        write(path, sized)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from error


def _submission(command: Sequence[str]) -> Submission:
    """Take a file that begins with #! as a job script with its arguments, and anything else as a command to wrap."""
    environ, script = dict(os.environ), Path(command[0])
    if script.is_file() and script.read_bytes().startswith(b"#!"):
        return Submission(tuple(command), environ, script.read_bytes())
    if shutil.which(command[0]) is None:
        wrong = "does not begin with #!, nor can it be run" if script.is_file() else "no such script or command"
        raise UsageError(f"{command[0]}: {wrong}")
    return Submission(("--wrap", shlex.join(command)), environ, None)


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


@lab_app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def lab_exec(
    command: Annotated[list[str], typer.Argument(help="The command to run against the lab's cluster.")],
) -> None:
    """Run a command, or a shell, whose xsbatch, sbatch, squeue and scontrol talk to the lab's cluster."""
    folder = lab.default_folder()
    environ = {**os.environ, **lab.environment(folder)}
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


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(help="The shell that completes `xsbatch`.")],
) -> None:
    """Print xsbatch's completion for a shell; the wheel has it in share/, too, where the shell looks by itself."""
    from xmem_slurm.cli import pages  # noqa: PLC0415 - the other verbs need none of it

    typer.echo(pages.render(shell), nl=False)


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
