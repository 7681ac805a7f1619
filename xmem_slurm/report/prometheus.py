"""What was decided at a site, as a Prometheus textfile: the node exporter's textfile collector picks it up.

Counted from the site's record (`audit`), which its users write: whatever they put there, a label is one of the site's
own names, so that nobody can make series of their own.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from xmem_slurm.report import audit

OTHER = "other"
"""The label of what the site file has no name for."""
MOST_SECONDS = 86_400
"""A line that says more is not believed..."""
MOST_DIGITS = 5
"""...nor one with a longer number of GPUs."""


def text(decisions: Iterable[audit.RecordedLine], types: Collection[str]) -> str:
    """Return the metrics, in Prometheus' text format 0.0.4; `types` are the site's kinds of GPU."""
    jobs, gpus = Counter[str](), Counter[tuple[str, str]]()
    seconds = dict.fromkeys(audit.OUTCOMES, 0.0)
    for each in decisions:
        if each.outcome not in audit.OUTCOMES or not 0 <= each.seconds <= MOST_SECONDS:
            continue
        jobs[each.outcome] += 1
        seconds[each.outcome] += each.seconds
        for before, after in zip(each.before, each.after, strict=False):
            gpus[_kind(before, types), _kind(after, types)] += _count(after)
    return "".join(
        [
            _metric("xmem_jobs_total", "Jobs that were looked at, by what became of them."),
            *(f'xmem_jobs_total{{outcome="{name}"}} {jobs[name]}\n' for name in audit.OUTCOMES),
            _metric("xmem_seconds_total", "Seconds that submissions took with us, by what became of them."),
            *(f'xmem_seconds_total{{outcome="{name}"}} {seconds[name]:.3f}\n' for name in audit.OUTCOMES),
            _metric("xmem_gpus_total", "GPUs, or units of shares, that jobs ask for, by what they asked for before."),
            *(f'xmem_gpus_total{{from="{a}",to="{b}"}} {count}\n' for (a, b), count in sorted(gpus.items())),
        ]
    )


def _metric(name: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} counter\n"


def _kind(entry: str, types: Collection[str]) -> str:
    """Return the kind of an entry such as "gpu:h200:4"; a share is one of its resource."""
    resource, _, rest = entry.partition(":")
    if resource in {"shard", "mps"}:
        return resource
    kind = rest.rpartition(":")[0]
    return kind if kind in types else OTHER


def _count(entry: str) -> int:
    number = entry.rpartition(":")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= MOST_DIGITS else 0
