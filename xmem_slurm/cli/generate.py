"""`xmem-slurm generate`: a batch script from a template, for a command."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from xmem_slurm.cli.arguments import SiteFile, tell
from xmem_slurm.cli.wishes import EngineName, Margin, Policy, Ranks, Seconds, wishes_of
from xmem_slurm.dryrun import dispatch
from xmem_slurm.dryrun.exchange import Orders
from xmem_slurm.errors import SiteError, UsageError
from xmem_slurm.generate import scripts, sweep, templates
from xmem_slurm.report import columns
from xmem_slurm.site import loading, places
from xmem_slurm.sizing import sizing
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.submission.premises import patient_turn, premises_of


def generate(
    command: Annotated[
        list[str] | None, typer.Argument(help="-- COMMAND that the job runs.")
    ] = None,
    *,
    template: Annotated[str, typer.Option("--template", help="The template's name.")] = "plain",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value; --show lists the keys.")
    ] = None,
    axes: Annotated[
        list[str] | None, typer.Option("--grid", help="key=v1,v2: an axis of a sweep.")
    ] = None,
    table: Annotated[
        Path | None, typer.Option("--csv", help="The points of a sweep; keys in the first line.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--templates", envvar="XMEM_TEMPLATES", help="A folder of your own templates."
        ),
    ] = None,
    list_all: Annotated[bool, typer.Option("--list", help="List the templates.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Show the template and what can be set in it.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write a script for each GPU to this folder.")
    ] = None,
    site: SiteFile = None,
    budget: Seconds = None,
    engine: EngineName = None,
    ranks: Ranks = None,
    policy: Policy = None,
    margin: Margin = None,
) -> None:
    """Write a batch script for a command on stdout, asking for the GPU that fits; nothing is
    submitted.
    """
    folders = templates.folders(folder, _site_templates(site))
    if list_all:
        for listed in templates.available(folders):
            on_screen = sys.stdout.isatty()  # elsewhere a template is a line: grep finds it
            width = shutil.get_terminal_size().columns if on_screen else sys.maxsize
            typer.echo("\n".join(columns.entry(listed.name, listed.about, 21, width)))
        return
    chosen = templates.find(template, folders)
    if show:
        typer.echo(templates.describe(chosen))
        return
    if not command:
        raise UsageError("generate: nothing to run; write -- COMMAND… at the end")
    points = sweep.read_csv(table) if table is not None else sweep.grid(axes or [])
    values = templates.values(chosen, settings or [])
    commands = sweep.commands(command, points)
    first = scripts.draft(chosen, values, commands[0], os.environ)
    wishes = wishes_of(
        first, budget=budget, engine=engine, ranks=ranks, policy=policy, margin=margin
    )
    # Without shares: a script alone cannot hold a job to its share. And one that is yet to be
    # written has not run out of memory.
    premises = premises_of(first, wishes._replace(site=site, whole=True), None, tell)
    assert premises.site is not None
    existing = [
        path
        for name in premises.site.option
        if output and (path := _file(output, chosen.name, name)).exists()
    ]
    if existing:
        raise UsageError(
            f"{existing[0]}: it exists, and nothing is overwritten; name another --output"
        )
    target = scripts.Target(premises.site, premises.gpus, os.environ)
    work = "dry-running the job to see how much GPU memory it needs"
    with patient_turn(premises, tell, work) as say:

        def size(number: int, job: Submission) -> Orders[sizing.Sizing]:
            if len(points) > 1:
                say(f"{work} (point {number} of {len(points)})")
            return (yield from sizing.size(job, premises))

        generated = scripts.generate(
            chosen,
            values,
            list(zip(map(sweep.label, points), commands, strict=True)),
            target,
            lambda jobs: dispatch.together(
                [size(*numbered) for numbered in enumerate(jobs, 1)], premises.rules
            ),
        )
    for script in generated:
        for line in script.lines:
            tell(line)
    _hand_out(generated, chosen.name, output)


def _site_templates(named: str | None) -> Path | None:
    """Return the site's own folder of templates; --list and --show do without a site file."""
    try:
        return loading.load_site(places.site_file(named)).templates
    except SiteError:
        return None


def _file(folder: Path, template: str, option: str) -> Path:
    return folder / f"{template}-{option}.sh"


def _hand_out(generated: Sequence[scripts.Generated], name: str, folder: Path | None) -> None:
    """Print the only script, or write each to a file of its own, named after its GPU option;
    overwrite nothing.
    """
    if folder is None:
        if len(generated) > 1:
            raise UsageError(
                f"the points need {len(generated)} kinds of GPU "
                f"({', '.join(script.option for script in generated)});"
                " --output FOLDER takes a script for each"
            )
        typer.echo(generated[0].script, nl=False)
        return
    for script in generated:
        path = _file(folder, name, script.option)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(script.script)
        except OSError as error:
            raise UsageError(f"{path}: not written: {error.strerror}") from error
        typer.echo(path)
