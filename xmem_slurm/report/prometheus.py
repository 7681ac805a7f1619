"""What was decided at a site, as a Prometheus textfile: the node exporter's textfile collector
picks it up.
"""

from xmem_slurm.report import audit
from xmem_slurm.report.totals import Totals


def text(totals: Totals) -> str:
    """Return the metrics, in Prometheus' text format 0.0.4."""
    jobs, seconds, gpus = totals.jobs, totals.seconds, totals.gpus
    return "".join(
        [
            _metric("xmem_jobs_total", "Jobs that were examined, by outcome."),
            *(f'xmem_jobs_total{{outcome="{name}"}} {jobs[name]}\n' for name in audit.OUTCOMES),
            _metric(
                "xmem_seconds_total",
                "Seconds that submissions took with us, by what became of them.",
            ),
            *(
                f'xmem_seconds_total{{outcome="{name}"}} {seconds[name]:.3f}\n'
                for name in audit.OUTCOMES
            ),
            _metric(
                "xmem_gpus_total",
                "GPUs, or units of shares, that jobs ask for, by what they asked for before.",
            ),
            *(
                f'xmem_gpus_total{{from="{a}",to="{b}"}} {count}\n'
                for (a, b), count in sorted(gpus.items())
            ),
        ]
    )


def _metric(name: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} counter\n"
