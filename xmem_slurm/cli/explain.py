"""`xmem-slurm explain`: the last estimate again, in any form, with nothing run; of a job, what it
really used.
"""

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from xmem_slurm.cli.arguments import AsJson, PerfettoFile, SnapshotFile, tell
from xmem_slurm.cli.handing_out import Reports, hand_out, when
from xmem_slurm.cli.wishes import HtmlFile, ReportFile
from xmem_slurm.errors import UsageError
from xmem_slurm.estimating.asked import Estimated
from xmem_slurm.submission import answers

NO_LINES = (
    "that estimate has no lines of the script: xsbatch records them only with a report "
    "(--xmem-html=FILE), `xmem-slurm estimate` always"
)
"""Why an estimate that is kept does not say where in the script memory was asked for."""

_JOB = re.compile(r"\d+(_\d+)?")


def explain(
    script: Annotated[
        str | None,
        typer.Argument(
            help="A script that was estimated, or a job ID; default: the last estimate."
        ),
    ] = None,
    *,
    as_json: AsJson = False,
    as_tree: Annotated[
        bool,
        typer.Option(
            "--tree",
            help="Show what is alive at the peak, by the lines of your script that allocated it.",
        ),
    ] = False,
    report_file: ReportFile = None,
    html_file: HtmlFile = None,
    snapshot_file: SnapshotFile = None,
    perfetto_file: PerfettoFile = None,
) -> None:
    """Show the last estimate again, in full and in any form; or what a job really used."""
    reports = Reports(report_file, html_file, snapshot_file, perfetto_file)
    reports.check()
    if as_tree and as_json:
        raise UsageError("--tree and --json: one of them")
    if script is not None and _JOB.fullmatch(script) and not Path(script).exists():
        if as_tree:
            raise UsageError(
                f"--tree: it is known what job {script} used, not what for; name its script"
            )
        from xmem_slurm.cli.outcomes import explain_job  # noqa: PLC0415 - an estimate is explained without it

        if not explain_job(script, as_json=as_json):
            raise UsageError(
                f"job {script}: nothing is known here of what it used: it was not recorded"
                " (`xsbatch --xmem-record`), used no GPU, or ended before CUDA started;"
                " `xmem-slurm explain SCRIPT` shows the estimate of its script"
            )
        return
    last = last_of(script)
    typed = last.command[1] if last.command[0] == "--wrap" else shlex.join(last.command)
    tell(f"{typed}, in {last.folder}, {when(last.made)}")
    texts = _as_trees(last) if as_tree else last.said
    estimated = Estimated(texts, last.left, last.several, last.sized, last.templates)
    hand_out(estimated, reports, as_json=as_json, verbose=True)


def _as_trees(last: answers.KeptEstimate) -> Mapping[int, answers.Said]:
    """Return what is said of each component, with the tree in place of the lines.

    Raises:
        XmemError: what it is made of cannot be read any more.
    """
    from xmem_slurm.report.tree import tree_lines  # noqa: PLC0415 - what is only said does not wait for it

    sized = last.sized()
    ranks = {number: component.estimate.largest for number, component in sized.items()}
    if not any(site.file for rank in ranks.values() for site in rank.trace.sites):
        tell(NO_LINES)
    trees = {number: tree_lines(rank) for number, rank in ranks.items()}
    return {number: last.said[number]._replace(full=tree) for number, tree in trees.items()}


def _in_vain(unanswered: answers.Unanswered) -> str:
    """Say of which submission there was no estimate, or no job, and why."""
    why = f": {unanswered.why}" if unanswered.why else ""
    typed = shlex.join(unanswered.command)
    outcome = "submitted" if unanswered.refused else "estimated"
    return f"the last submission, {typed} ({when(unanswered.made)}), was not {outcome}{why}"


def last_of(script: str | None) -> answers.KeptEstimate:
    """Return the newest estimate that is kept of a script, of any where it is None; and say if it
    is out of date.

    Raises:
        UsageError: there is none.
    """
    last = next((kept for kept in answers.newest() if script is None or kept.is_of(script)), None)
    unanswered = answers.unanswered(script)
    if last is None:
        which = f" of {script}" if script is not None else ""
        makes = f"`xmem-slurm estimate {script or 'SCRIPT'}` makes one"
        if script is not None and not Path(script).exists():
            makes = "and there is no such file here"
        why = f", as {_in_vain(unanswered)}" if unanswered is not None else f"; {makes}"
        raise UsageError(f"no estimate{which} is kept{why}")
    if unanswered is not None:
        tell(f"{_in_vain(unanswered)}; what follows is an earlier estimate")
    changed = last.outdated_by()
    if changed is not None:
        name = os.path.relpath(changed)
        tell(f"{name} has changed since that estimate; `xmem-slurm estimate` makes it again")
    return last
