"""How much is added to an estimate, and with what probability is that enough? By what the dry run
could not see.

Where runs were measured on real GPUs, the rule is split conformal prediction: of n shortfalls
(measured / estimated - 1) the k-th smallest, k = ceil((n + 1) x coverage), is enough for the next
run with that probability, if it is like those measured. `python -m benchmarks.margins` takes them
from benchmarks/data and writes site-config/margins.toml; nothing is fitted by hand. What jobs of
one's own or of a site really used (`outcomes.learning`) goes before what ships, for runs of the
same engine, GPU and doubts. Where nothing was measured, a prior stands in, and promises nothing; so
it does for what libraries choose on GPUs of another compute capability than those measured. Source:
Lei et al., "Distribution-Free Predictive Inference for Regression", JASA 113 (2018);
docs/accuracy.md has the figures.
"""

import functools
import tomllib
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from xmem_slurm import resources
from xmem_slurm.allocator.fit import RESOLUTION

FILE = "margins.toml"
LEAST_PROMISE = 0.9
"""The least that a margin promises which ships (site-config/margins.toml): with less an estimate is
not "high"."""


@dataclass(frozen=True)
class Margin:
    """A share of the peak to add. `probability` is that of its being enough; None where it is a
    prior.

    `runs` on a GPU were measured, of `models` models; `held_out` is the share of a model's runs
    that a margin found on all other models covers: how far the promise carries to models that
    nobody measured.
    """

    share: float
    probability: float | None = None
    runs: int = 0
    models: int = 0
    held_out: float | None = None
    of: str = ""
    """Whose jobs the runs were, and until when; empty for those that ship."""


@dataclass(frozen=True)
class MeasuredMargin:
    """The margin of a kind of run: those in which the dry run had no doubts but `unseen`
    (`doubts.Doubt.code`).

    `capabilities` are the compute capabilities of the GPUs that they ran on.
    """

    unseen: frozenset[str]
    capabilities: frozenset[str]
    margin: Margin

    def covers(self, unseen: AbstractSet[str], capability: str) -> bool:
        """Whether a run is like these; where nothing is unseen, its dry run knows what its own GPU
        does otherwise.
        """
        return unseen <= self.unseen and (not unseen or capability in self.capabilities)


@dataclass(frozen=True)
class LearnedMargin:
    """The margin of jobs that were run: of this engine, with just these doubts, on GPUs of these
    names.
    """

    engine: str
    gpus: frozenset[str]
    unseen: frozenset[str]
    margin: Margin

    def covers(self, engine: str, gpu: str, unseen: AbstractSet[str]) -> bool:
        """Whether a run is like these."""
        return engine == self.engine and unseen == self.unseen and gpu in self.gpus


class RanOut(NamedTuple):
    """What is known of a script that ran out of GPU memory: the words, and what it needed at least.

    All of it is in the name of a kept answer (`submission.known.key`): what is learned later makes
    that another one. `share` is what its estimate of then lacked at least, as a share of the peak;
    None where there was none. Then it is `least_bytes`, what torch's allocator could have had.
    """

    words: str
    share: float | None
    least_bytes: int

    def share_of(self, allocator_bytes: int) -> float:
        """Return what to add to an estimate of now, as a share of it: more than was too little, as
        exactly as it is.
        """
        share = self.share if self.share is not None else self.least_bytes / allocator_bytes - 1
        return max(0.0, share) + 1 / RESOLUTION


@dataclass(frozen=True)
class Experience:
    """What earlier jobs showed: margins, the nearest first, and whether this very script ran out of
    memory.
    """

    margins: Sequence[LearnedMargin] = ()
    ran_out: RanOut | None = None

    def of(self, engine: str, gpu: str, unseen: AbstractSet[str]) -> Margin | None:
        """Return the margin of the jobs that a run is like, if there are such."""
        alike = [learned for learned in self.margins if learned.covers(engine, gpu, unseen)]
        return min(alike, key=lambda learned: len(learned.gpus)).margin if alike else None

    def of_another_way(self) -> "Experience":
        """Return what holds for the same job, run in another way: not what it cannot do with as it
        is written.
        """
        only_least = self.ran_out is not None and self.ran_out.share is None
        return replace(self, ran_out=None) if only_least else self


NO_EXPERIENCE = Experience()


@functools.cache
def measured() -> Sequence[MeasuredMargin]:
    """Read what was measured, from site-config/margins.toml."""
    text = (resources.tree("site-config") / FILE).read_text(encoding="utf-8")
    return [_measured(entry) for entry in tomllib.loads(text)["measured"]]


def _measured(entry: Mapping[str, Any]) -> MeasuredMargin:
    figures = {
        name: value
        for name, value in entry.items()
        if name not in ("unseen", "capabilities", "source")
    }
    return MeasuredMargin(
        frozenset(entry["unseen"]), frozenset(entry["capabilities"]), Margin(**figures)
    )


def margin(
    unseen: AbstractSet[str],
    capability: str,
    priors: Mapping[str, float],
    kinds: Sequence[MeasuredMargin] | None = None,
) -> Margin:
    """Return the margin of a run with these doubts on a GPU of this compute capability.

    `priors` has a share for each doubt that can be. Of several kinds that cover the run, the one
    with the fewest doubts counts. Else the widest share of its doubts holds, and at least that of
    every kind of which it has a part.
    """
    candidates = measured() if kinds is None else kinds
    alike = [kind for kind in candidates if kind.covers(unseen, capability)]
    if alike:
        return min(alike, key=lambda kind: len(kind.unseen)).margin
    parts = [kind.margin.share for kind in candidates if not kind.unseen or kind.unseen & unseen]
    return Margin(max([*parts, *(priors[code] for code in unseen)]))
