"""What does a sizing start from? All that is known of it before its first dry run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xmem_slurm.dryrun.budget import Budget
from xmem_slurm.dryrun.evidence import Evidence
from xmem_slurm.dryrun.job import from_submission
from xmem_slurm.dryrun.order import Asked, DryRunOrder
from xmem_slurm.site.schema import DryRuns, Gpu, Site
from xmem_slurm.sizing.margins import NO_EXPERIENCE, Experience
from xmem_slurm.slurm.submission import Submission

_NOTHING = Asked()


@dataclass(frozen=True)
class Premises:
    """What the sizing of a job starts from.

    `gpus` are those of the `site`'s options; where `site` is None, one of the catalogue alone.
    `budget` is for all dry runs of the sizing together, within what the site allows. `basis` is
    what the answer rests on beside what its dry runs read, as it was before the first of them; None
    where that cannot be told.
    """

    site: Site | None
    gpus: Mapping[str, Gpu]
    budget: Budget
    run_options: Asked = _NOTHING
    experience: Experience = NO_EXPERIENCE
    basis: Sequence[Evidence] | None = None

    @property
    def rules(self) -> DryRuns:
        """Where dry runs are made, and how many at once."""
        return DryRuns() if self.site is None else self.site.dry_run

    @property
    def shown(self) -> Mapping[str, Gpu]:
        """The GPUs as jobs are shown them: smaller by what the site's policy wants spared."""
        return self.gpus if self.site is None else spared(self.gpus, self.site.policy.spare)

    def order(self, job: Submission) -> DryRunOrder:
        """Return the order of a dry run of the job, on the first of the GPUs."""
        gpu = next(iter(self.shown.values()))
        return DryRunOrder.of(from_submission(job), gpu, self.budget, self.run_options)


def spared(gpus: Mapping[str, Gpu], share: float) -> dict[str, Gpu]:
    """Return the GPUs with this share of each one's memory left out."""
    return {
        name: gpu.model_copy(update={"total_bytes": int(gpu.total_bytes * (1 - share))})
        for name, gpu in gpus.items()
    }
