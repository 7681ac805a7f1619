"""`xmem-slurm site VERB`: site files, and the hooks that are made from one."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from xmem_slurm.cli import outcomes
from xmem_slurm.cli.arguments import SiteFile
from xmem_slurm.cluster import calibration, comparison, discovery, live, spellings
from xmem_slurm.errors import SiteError, SlurmError
from xmem_slurm.filter import hooks
from xmem_slurm.report import audit, prometheus, totals
from xmem_slurm.sandbox import cgroup
from xmem_slurm.site import loading, places
from xmem_slurm.state import own_files

app = typer.Typer(
    help="Site files: what this cluster offers.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

SlurmFolder = Annotated[Path, typer.Option("--folder", help="Slurm's configuration folder.")]


@app.command("discover")
def discover() -> None:
    """Print a site file for the cluster that Slurm's commands talk to, with a question where it
    does not say enough.
    """
    text = discovery.write(live.read(), loading.load_catalogue(), live.host_list, spellings.ask)
    typer.echo(text, nl=False)
    questions = text.count("# QUESTION")
    typer.echo(
        f"{questions} question{'s' * (questions != 1)}: see the lines with QUESTION", err=True
    )


@app.command("check")
def check(
    site: SiteFile = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="The file alone, without the cluster.")
    ] = False,
    folder: SlurmFolder = Path("/etc/slurm"),
) -> None:
    """Check a site file against its schema, the GPU catalogue, and the cluster; each option is
    tried there.

    Where the filter is installed, its Python is started, too; where a record is kept, users must be
    able to write it.
    """
    path = places.site_file(site)
    loaded, wrong = loading.examine(path)
    if loaded is not None:
        wrong += loading.unknown_gpus(loaded, loading.load_catalogue())
    typer.echo("".join(f"{line}\n" for line in wrong), nl=False)
    if loaded is not None and not offline:
        lines = [*comparison.differences(loaded, live.read()), *comparison.refusals(loaded)]
        python = hooks.installed_python(folder)
        record, spool = loaded.audit.folder, loaded.outcomes.spool
        faults = [python and hooks.unusable(python), record and audit.unusable(record)]
        faults += [spool and audit.unusable(spool, "[outcomes] spool")]
        lines += [fault for fault in faults if fault]
        typer.echo("".join(f"{line}\n" for line in lines), nl=False)
        wrong += lines
    if loaded is None or wrong:
        raise SiteError(
            f"{path}: problems found: {len(wrong)}"
            + ("" if loaded else "; the cluster was not asked yet")
        )
    typer.echo(cgroup.told())
    groups, caveat = len(loaded.nodes), " in the file; the cluster was not asked" if offline else ""
    counts = f"{len(loaded.option)} GPU options on {groups} groups of nodes"
    typer.echo(f"{path}: site {loaded.name}: {counts}: no errors{caveat}")


@app.command("show")
def show(site: SiteFile = None) -> None:
    """Show what a site file says, defaults and the GPUs' memory included, as JSON."""
    loaded = loading.load_site(places.site_file(site))
    gpus = loading.option_gpus(loaded, loading.load_catalogue())
    shown = loaded.model_dump(mode="json") | {
        "gpu": {name: gpu.model_dump(mode="json") for name, gpu in gpus.items()}
    }
    typer.echo(json.dumps(shown, indent=2))


@app.command("calibrate")
def calibrate(
    site: SiteFile = None,
    python: Annotated[
        str, typer.Option("--python", help="A Python on the GPU nodes that has torch.")
    ] = "python3",
    seconds: Annotated[
        int, typer.Option("--seconds", help="How long Slurm may take to begin each job.")
    ] = 600,
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the jobs; run nothing, change nothing.")
    ] = False,
) -> None:
    """Measure what a process holds of each kind of GPU beside torch's allocator, and add it to the
    site file.

    One short job a GPU option that has no figures yet: run it again to go on with those that
    failed.
    """
    path = places.site_file(site)
    jobs = calibration.jobs(loading.load_site(path), python, seconds)
    if only_print:
        typer.echo("\n".join(map(str, jobs)))
        return
    failed = 0
    for option, measured in calibration.run(jobs):
        if isinstance(measured, SlurmError):
            failed += 1
            typer.echo(f"option {option}: {measured}", err=True)
            continue
        text = (
            path.read_text(encoding="utf-8").rstrip("\n")
            + "\n"
            + calibration.fragment(option, measured)
        )
        try:
            own_files.write_for_user(path, text.encode())
        except OSError as error:
            raise SiteError(
                f"{path}: cannot be written: {error.strerror}; option {option}: {measured}"
            ) from error
        typer.echo(f"option {option}: {measured.context_bytes} bytes; {measured.source}")
    if failed:
        raise SiteError(
            f"{path}: {failed} of {len(jobs)} options were not measured; run this again for those"
        )


@app.command("metrics")
def metrics(site: SiteFile = None) -> None:
    """Print what was decided here, from the record that the site file names, as a Prometheus
    textfile.

    Each line is counted once: totals are kept beside the record.
    """
    loaded = loading.load_site(places.site_file(site))
    folder = loaded.audit.folder
    if folder is None:
        raise SiteError(f"{places.site_file(site)}: no record is kept; [audit] folder names one")
    types = {
        name
        for option in loaded.option.values()
        for name in (option.type, option.constraint)
        if name
    }
    try:
        counted, failure = totals.count(folder, types)
    except OSError as error:
        raise SiteError(f"{folder}: cannot be read: {error.strerror}") from error
    typer.echo(prometheus.text(counted), nl=False)
    if failure is not None:
        again = "these lines are counted again, and are missing once they are rotated away"
        typer.echo(
            f"xmem-slurm: {folder / totals.NAME}: cannot be written: {failure.strerror}; {again}",
            err=True,
        )


@app.command("install")
def install(
    site: SiteFile = None,
    folder: SlurmFolder = Path("/etc/slurm"),
    only_print: Annotated[
        bool, typer.Option("--print", help="Print the hooks; change nothing.")
    ] = False,
) -> None:
    """Write Slurm's hooks, cli_filter.lua and job_submit.lua, from a site file; what was there is
    kept.
    """
    path = places.site_file(site)
    texts = hooks.render(path, loading.load_site(path))
    if not all(hooks.check(name, text) for name, text in texts.items()):
        typer.echo("no Lua compiler here (luac): the hooks were not checked", err=True)
    unusable = hooks.unusable(sys.executable)
    if unusable is not None:
        typer.echo(unusable, err=True)
    if only_print:
        typer.echo("\n".join(texts.values()), nl=False)
        return
    for file, backup in hooks.install(texts, folder):
        typer.echo(f"{file}{f' (before: {backup})' if backup else ''}")
    typer.echo(
        "slurm.conf needs CliFilterPlugins=lua and JobSubmitPlugins=lua; then `scontrol "
        "reconfigure`",
        err=True,
    )


app.command("learn")(outcomes.site_learn)
app.command("waste")(outcomes.site_waste)
