"""When would Slurm start a job on each of these GPU options, if ever? Asked at once, within
seconds, and fail-open.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from xmem_slurm.cluster import client, limits
from xmem_slurm.errors import SlurmError, UsageError
from xmem_slurm.rewriting import dialect
from xmem_slurm.site.schema import Site
from xmem_slurm.slurm.edit import apply
from xmem_slurm.slurm.submission import Submission

MOST_SECONDS = 5.0
"""What all questions together may take; a slurmctld that is slower has more to do than to rank our
options."""

_AT_ONCE = 4


def expected(
    job: Submission, site: Site, names: Sequence[str], component: int = 0
) -> Mapping[str, float]:
    """Return when Slurm expects to start the job on each option, in seconds since the epoch; of a
    share, on its least.

    Infinity where it would refuse the job, or never start it: more GPUs than there are of that
    kind, in this partition or for this user.

    Of a heterogeneous job, when it would start with this component on the option and the others as
    written.

    Slurm's answer is that of `sbatch --test-only`, with the limits that this does not look at.
    Options about which it does not answer in time are left out, and so are those that the job
    cannot be rewritten to.
    """
    try:
        sbatch, until = client.find_sbatch(job.environ), time.monotonic() + MOST_SECONDS
    except SlurmError:
        return {}
    request = job.request.alone(component)
    gpus = request.gpus_total or (request.gpus_per_node or 1) * (request.nodes or 1)

    def ask(name: str) -> float | None:
        option = site.option[name]
        try:
            edits = dialect.edits(request, option, site.dialect, dialect.least_share(option))
            changed = apply([edit._replace(component=component) for edit in edits], job)
        except UsageError:
            return None
        seconds_left = until - time.monotonic()
        return client.expected_start(sbatch, changed, seconds_left) if seconds_left > 0 else None

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        allowed = pool.submit(limits.most, request, MOST_SECONDS)
        answers = zip(names, pool.map(ask, names), strict=True)
        starts = {name: start for name, start in answers if start is not None}
    whole = [name for name in names if site.option[name].share is None]
    never = [
        name for name in whole if limits.exceeded(gpus, site.option[name].type, allowed.result())
    ]
    return starts | dict.fromkeys(never, float("inf"))
