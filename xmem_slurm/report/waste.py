"""What GPU hours went where, as a table: text, JSON, one HTML file."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from xmem_slurm import resources
from xmem_slurm.outcomes.waste import Waste
from xmem_slurm.units import counted


def rows(waste: Waste) -> list[tuple[str, str, str, str]]:
    """Return the table of hours: a line a kind of GPU, as it was asked for, had, and would have
    done; and one of the hours of which that is not known.
    """

    def cell(hours: Mapping[str, float], kind: str) -> str:
        return f"{hours.get(kind, 0):.1f}"

    kinds = sorted({*waste.asked, *waste.had, *waste.done})
    table = [
        (
            kind,
            cell(waste.asked, kind),
            cell(waste.had, kind),
            cell(waste.done, kind) if waste.known_jobs else "-",
        )
        for kind in kinds
    ]
    if waste.unknown:
        table.append(("not known", "-", "-", f"{sum(waste.unknown.values()):.1f}"))
    return table


def words(waste: Waste, days: float) -> list[str]:
    """Return what is said above and below the table."""
    hours, unknown = sum(waste.had.values()), sum(waste.unknown.values())
    known = f"what they used is known for {waste.known_jobs} of them ({hours - unknown:.1f} hours)"
    first = (
        f"{counted(waste.jobs, 'job')} with GPUs in {days:g} days, {hours:.1f} GPU hours; {known}"
    )
    if not waste.known_jobs:
        return [first, "their cost: not known"]
    asked_cost, had_cost, done_cost = (
        f"{cost:.1f}" for cost in (waste.cost_asked, waste.cost_had, waste.cost_done)
    )
    left_out = ""
    if waste.unpriced:
        left_out = f"; {waste.unpriced:.1f} hours are left out, on types without a cost there"
    costs = (
        f"{asked_cost} requested, {had_cost} allocated, {done_cost} would be enough (hours x cost "
        f"of the site file{left_out})"
    )
    return [first, f"cost of the jobs of which it is known: {costs}"]


def host_words(waste: Waste) -> str:
    """Return what is said of host memory; nothing where it is known of no job."""
    if not waste.host_jobs:
        return ""
    share = f"{waste.host_used / waste.host_asked:.0%}" if waste.host_asked else "none"
    return (
        f"host memory: {waste.host_asked:.1f} GiB hours requested, {waste.host_used:.1f} ({share}) "
        f"used, by the peaks of {waste.host_jobs} of {counted(waste.jobs, 'job')}"
    )


def lines(waste: Waste, days: float) -> list[str]:
    """Return the report as text, for one screen."""
    if not waste.jobs:
        return [f"no jobs with GPUs in {days:g} days"]
    summary, priced = words(waste, days)
    table = [("GPU hours", "requested", "allocated", "would be enough"), *rows(waste)]
    width = max(len(row[0]) for row in table)
    shown = [f"{row[0]:{width}}  {row[1]:>9}  {row[2]:>9}  {row[3]:>15}" for row in table]
    hours = sum(waste.had.values()) or 1
    unknown = [
        f"not known: {why}: {spent_hours:.1f} hours ({spent_hours / hours:.0%})"
        for why, spent_hours in waste.unknown.items()
    ]
    scripts = [
        f"  {name}: {spent_hours:.1f} hours"
        + (f", {cost:.1f} of their cost not needed" if cost > 0 else "")
        for name, spent_hours, cost in waste.scripts
    ]
    on_host = [host_words(waste)] if waste.host_jobs else []
    most = ["most hours:", *scripts] if scripts else []
    return [summary, *shown, priced, *on_host, *unknown, *most]


def document(waste: Waste, days: float) -> dict[str, Any]:
    """Return the report as one JSON object; hours, and costs in those of the site file."""
    scripts = [
        {"script": name, "gpu_hours": hours, "cost_not_needed": cost}
        for name, hours, cost in waste.scripts
    ]
    return {"schema_version": 1, "days": days, **asdict(waste), "scripts": scripts}


def page(waste: Waste, days: float, templates: Path | None = None) -> str:
    """Return the report as one HTML file that needs nothing else."""
    hours = sum(waste.had.values()) or 1
    values = {
        "words": [*words(waste, days), host_words(waste)],
        "rows": rows(waste),
        "unknown": [
            (why, f"{spent_hours:.1f}", f"{spent_hours / hours:.0%}")
            for why, spent_hours in waste.unknown.items()
        ],
        "scripts": [
            (name, f"{spent_hours:.1f}", f"{cost:.1f}") for name, spent_hours, cost in waste.scripts
        ],
        "document": document(waste, days),
    }
    return resources.render(
        resources.template_places("report", templates), "waste.html.j2", values, html=True
    )
