"""`xmem-slurm trust`, `learn` and `waste`, of one's own jobs and of a site's: what jobs really
used.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from xmem_slurm.cli.arguments import AsJson, SiteFile, say, tell
from xmem_slurm.cluster import client
from xmem_slurm.errors import SiteError, SlurmError, UsageError, XmemError
from xmem_slurm.estimating import asked
from xmem_slurm.estimating.asked import Wanted
from xmem_slurm.outcomes import learned, learning, on_host, records, sources
from xmem_slurm.outcomes import waste as wasted
from xmem_slurm.outcomes.records import JobOutcome
from xmem_slurm.outcomes.sources import Accounted
from xmem_slurm.outcomes.trust import track_record
from xmem_slurm.report import outcomes as job_report
from xmem_slurm.report import waste as report
from xmem_slurm.site import loading, places
from xmem_slurm.site.schema import Gpu, Site
from xmem_slurm.slurm.submission import Submission
from xmem_slurm.state import own_files

Since = Annotated[
    str,
    typer.Option("--since", help="Jobs that ended in the last so many days or weeks: 30d, 12w."),
]
Coverage = Annotated[
    float,
    typer.Option(
        "--coverage",
        min=0.5,
        max=0.99,
        help="For which share of jobs a margin must be enough.",
    ),
]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write the tables, one HTML file.")]
_DAYS = {"d": 1, "w": 7}
_MOST_OUTPUT = 1 << 20


def learn(since: Since = "400d", coverage: Coverage = learning.COVERAGE) -> None:
    """Derive margins from what your recorded jobs really used; your next estimates use them."""
    _learn(
        _own_outcomes(),
        _days(since),
        coverage,
        "jobs of yours",
        learned.own_file(),
        everybody=False,
    )


def trust(since: Since = "400d", *, as_json: AsJson = False) -> None:
    """Say how good the estimates of your recorded jobs were: how many fitted, and how close
    the estimates came.
    """
    days = _days(since)
    record = track_record(records.since(_own_outcomes(), days))
    if as_json:
        typer.echo(json.dumps(job_report.trust_document(record, days), indent=2))
    else:
        say(job_report.trust_lines(record, days))


def site_learn(
    site: SiteFile = None,
    since: Since = "400d",
    coverage: Coverage = learning.COVERAGE,
) -> None:
    """Derive margins from what all recorded jobs of the site really used, for all users."""
    loaded = loading.load_site(places.site_file(site))
    if loaded.outcomes.margins is None:
        raise SiteError(f"{places.site_file(site)}: [outcomes] margins names no file to write")
    _learn(
        _of_site(loaded),
        _days(since),
        coverage,
        "jobs of this site",
        loaded.outcomes.margins,
        everybody=True,
    )


def waste(
    site: SiteFile = None,
    since: Since = "30d",
    *,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay", help="Estimate the stored scripts of jobs that were not recorded."
        ),
    ] = False,
    as_json: AsJson = False,
    html_file: HtmlFile = None,
) -> None:
    """Add up the GPU hours of your jobs: as requested, as allocated, and as would have been
    enough.
    """
    loaded = loading.load_site(places.site_file(site))
    if replay and os.geteuid() == 0:
        raise UsageError("--replay dry-runs scripts, which root must not do: run it as their user")
    _waste(
        loaded,
        _own_outcomes(),
        _days(since),
        everybody=False,
        replay=replay,
        as_json=as_json,
        html_file=html_file,
    )


def site_waste(
    site: SiteFile = None,
    since: Since = "30d",
    *,
    as_json: AsJson = False,
    html_file: HtmlFile = None,
) -> None:
    """Add up the GPU hours of the site's jobs: as requested, as allocated, and as would have been
    enough.
    """
    loaded = loading.load_site(places.site_file(site))
    _waste(
        loaded,
        _of_site(loaded),
        _days(since),
        everybody=True,
        replay=False,
        as_json=as_json,
        html_file=html_file,
    )


def explain_job(job: str, *, as_json: bool) -> bool:
    """Show what a job really used; False where nothing of it is known.

    Raises:
        UsageError: it has not started.
    """
    begun = _own_outcomes(records.begun)
    outcomes = [
        outcome
        for outcome in begun
        if job in {outcome.job, *(process.job for process in outcome.processes)}
    ]
    if outcomes and as_json:
        typer.echo(json.dumps(job_report.job_document(outcomes[-1]), indent=2))
    elif outcomes:
        # Slurm knows whether a job is still there of which no process was seen to end.
        unknown = any(process.state == "running" for process in outcomes[-1].processes)
        state = _slurm_state(job) if unknown else ""
        say(job_report.job_lines(outcomes[-1], _gpus()[1], state))
    else:
        accounted = _accounted(job)
        if not accounted:
            if _slurm_state(job) == "PENDING":  # sacct has it without a GPU until then
                raise UsageError(
                    f"job {job}: it has not started; `xmem-slurm explain SCRIPT` shows what it was"
                    " estimated to need"
                )
            return False
        say(job_report.accounted_lines(accounted[-1], sources.ran_out(_output(job))))
    return True


def _learn(
    outcomes: Sequence[JobOutcome],
    days: float,
    coverage: float,
    source: str,
    place: Path,
    *,
    everybody: bool,
) -> None:
    """Learn, say what, and write it. Accounting, where there is one, knows of failures that no
    recorder sees.
    """
    from xmem_slurm.report import terminal  # noqa: PLC0415 - a job is explained without it

    failed = set[str]()
    with contextlib.suppress(SlurmError), terminal.progress("asking sacct which jobs failed"):
        failed = sources.not_completed(days, everybody=everybody)
    recent = records.since(outcomes, days)
    lessons, nothing = learning.lessons(recent, failed)
    if not lessons and not nothing:
        kept = f"; {place} stays as it is" if place.exists() else ""
        none = f"no jobs of the last {days:g} days were recorded: there is nothing to learn from"
        say([f"{none}, and nothing was written{kept}; {job_report.RECORDS}"])
        return
    margins = learning.learn(lessons, coverage)
    drift, host = learning.drift(lessons), on_host.record(recent)
    say(job_report.learned_lines(margins, lessons, nothing, drift, host))
    text = learned.text(margins, source, time.strftime("%Y-%m-%d"))
    try:
        if place == learned.own_file():
            own_files.make(place.parent)
            own_files.write(place, text.encode())
        else:
            own_files.write_for_user(place, text.encode())
    except OSError as error:
        raise UsageError(f"{place}: cannot be written: {error.strerror}") from error
    typer.echo(f"written to {place}", err=True)


def _waste(
    site: Site,
    outcomes: Sequence[JobOutcome],
    days: float,
    *,
    everybody: bool,
    replay: bool,
    as_json: bool,
    html_file: Path | None,
) -> None:
    """Report the waste of a site's jobs, by its accounting; where it has none, by what was recorded
    alone.
    """
    from xmem_slurm.report import terminal  # noqa: PLC0415 - as `_learn`

    gpus = loading.option_gpus(site, loading.load_catalogue())
    outcomes = records.since(outcomes, days)
    try:
        with terminal.progress("asking sacct which jobs had GPUs"):
            accounted = sources.accounted(days, everybody=everybody)
    except SlurmError as error:
        tell(f"only recorded jobs are counted, from their first use of a GPU: {error}")
        accounted = [wasted.as_accounted(outcome) for outcome in outcomes]
    spent = wasted.spent(accounted, outcomes, site, gpus)
    if replay:
        replayed = _replayed(wasted.to_replay(spent, accounted))
        spent = wasted.spent(accounted, outcomes, site, gpus, replayed)
    sums = wasted.summed(spent, site)
    shown = json.dumps(report.document(sums, days), indent=2) if as_json else None
    typer.echo(shown or "\n".join(report.lines(sums, days)))
    sys.stdout.flush()
    if html_file is not None:
        try:
            own_files.write_for_user(html_file, report.page(sums, days, site.templates).encode())
        except OSError as error:
            raise UsageError(f"{html_file}: cannot be written: {error.strerror}") from error


def _replayed(jobs: Sequence[Accounted]) -> dict[str, int]:
    """Estimate jobs by the scripts that Slurm has kept, each in its folder; return what they need,
    by name.
    """
    needs = {}
    for past_job in jobs:
        stored = sources.stored(past_job.number)
        if stored is None or not Path(stored.folder).is_dir():
            tell(f"{past_job.name}: its script is not kept, or its folder is gone")
            continue
        with contextlib.chdir(stored.folder):
            job = Submission(tuple(stored.argv), dict(os.environ), stored.script)
            try:
                estimated = asked.estimate(job, Wanted(), tell)
                needs[past_job.script] = max(
                    texts.document["required_bytes"] for texts in estimated.said.values()
                )
            except XmemError as error:
                tell(f"{past_job.name}: {error}")
    return needs


def _own_outcomes(
    read: Callable[[Path, int], list[JobOutcome]] = records.outcomes,
) -> list[JobOutcome]:
    """Return the user's own outcomes, of their folder and of the site's spool, where it names one.

    `read` says which: of jobs that used a GPU, or of all that started CUDA (`records.begun`).
    """
    spool = _gpus()[0]
    folders = [records.folder(), *([spool] if spool is not None else [])]
    return records.merged(*(read(folder, os.geteuid()) for folder in folders if folder.is_dir()))


def _of_site(site: Site) -> list[JobOutcome]:
    """Return all outcomes of a site.

    Raises:
        SiteError: it names no spool, or that cannot be read.
    """
    if site.outcomes.spool is None:
        raise SiteError(
            f"site {site.name}: [outcomes] spool names no folder that all its jobs' outcomes are in"
        )
    try:
        return records.outcomes(site.outcomes.spool)
    except OSError as error:
        raise SiteError(f"{site.outcomes.spool}: cannot be read: {error.strerror}") from error


def _gpus() -> tuple[Path | None, dict[str, Gpu]]:
    """Return the site's spool and options, where there is a site file; else the catalogue."""
    catalogue = loading.load_catalogue()
    try:
        site = loading.load_site(places.site_file(None))
    except SiteError:
        return None, dict(catalogue)
    return site.outcomes.spool, loading.option_gpus(site.without_shares(), catalogue)


def _accounted(job: str) -> list[Accounted]:
    try:
        return sources.accounted(0, everybody=False, job=job)
    except SlurmError:
        return []


def _slurm_state(job: str) -> str:
    """Return the state of a job as sacct has it, or where there is none slurmctld; else nothing."""
    accounted = _accounted(job)
    if accounted:
        return accounted[-1].state
    try:
        shown = client.run(["scontrol", "show", "job", job], sources.SACCT_SECONDS)
    except SlurmError:
        return ""
    state = re.search(r"JobState=([A-Z_]+)", shown)
    return state[1] if state is not None else ""


def _output(job: str) -> list[str]:
    """Return the last lines of a job's output, as far as Slurm still knows where it is and they are
    the user's.
    """
    try:
        shown = client.run(["scontrol", "show", "job", job], sources.SACCT_SECONDS)
        named = re.search(r"StdErr=(\S+)", shown)
        if named is None:
            return []
        with Path(named[1]).open("rb") as file:
            file.seek(max(0, Path(named[1]).stat().st_size - _MOST_OUTPUT))
            return file.read(_MOST_OUTPUT).decode(errors="replace").splitlines()
    except (SlurmError, OSError, ValueError):
        return []


def _days(text: str) -> float:
    """Return how many days are meant.

    Raises:
        UsageError: that is no length of time.
    """
    match = re.fullmatch(r"(0*[1-9]\d{0,4})([dw])", text)
    if match is None:
        raise UsageError(f"--since {text}: not of the form 30d or 12w, of a day at least")
    return float(match[1]) * _DAYS[match[2]]
