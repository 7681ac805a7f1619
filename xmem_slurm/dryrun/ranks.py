"""Which ranks of a job are run dry? Rank 0, and with it, all at once, those that it cannot stand for.

What rank 0 sees of the others says which those are (`Trace.peers`): the stages of a pipeline, ranks that it sends
tensors to, larger shards of the optimizer's state. A user can ask for ranks, too (XMEM_RANKS: "all", "last", "0,3";
what was decided stands there as "0,3/4"). Where those are many a sample is run: first, last, and evenly between. Ranks
that run together tell each other what decides shapes (`probe/_xmem/ranks/peers.py`), so each goes the way that it
would go among all of them.
"""

from collections.abc import Sequence
from dataclasses import replace

from xmem_slurm.dryrun import cpu_node, runner, spending
from xmem_slurm.dryrun.job import Job
from xmem_slurm.site.schema import DryRuns, Gpu
from xmem_slurm.trace import Doubt, Trace, fail_on_any_gpu

MOST = 8
"""So many ranks are run at once: each takes 0.5 GB of host memory and more, and all share a few CPUs."""


def run(job: Job, gpu: Gpu, budget: runner.Budget, where: DryRuns) -> Sequence[Trace]:
    """Run a job dry and return the traces of rank 0 and of the ranks that it cannot stand for.

    Raises:
        XmemError: as `elsewhere.run` does.
    """
    started = spending.now()
    traces = cpu_node.run(job, gpu, budget, where)
    together = None if fail_on_any_gpu(traces) else with_others(job, traces)
    if together is not None:
        traces = cpu_node.run(together, gpu, budget.since(started), where)
    ran = {trace.rank for trace in traces}
    return [_with_missing(trace, ran) for trace in traces]


def _with_missing(trace: Trace, ran: set[int]) -> Trace:
    """Say so in a trace if ranks that it does not stand for were not run."""
    missing = sorted(set(trace.peers) - ran)
    if not missing:
        return trace
    named = f"ranks {', '.join(map(str, missing[:MOST]))}{', ...' if len(missing) > MOST else ''} of {trace.world_size}"
    if len(ran) > 1:
        doubt = Doubt("ranks", named, len(missing))
    else:
        doubt = Doubt("rank-alone", f"only rank {trace.rank} was run, and {named} are not like it", len(missing))
    return replace(trace, doubts=[*trace.doubts, doubt])


def with_others(job: Job, traces: Sequence[Trace]) -> Job | None:
    """Return the job with the ranks named that are to be run beside rank 0, or None where that is enough.

    `traces` are those of rank 0. In a heterogeneous job each component's first rank stands for it.
    """
    wish, _, decided = job.environ.get("XMEM_RANKS", "").partition("/")
    if len(job.gpus) > 1 or decided:
        return None
    world = max((trace.world_size for trace in traces), default=1)
    found = {rank for trace in traces if trace.world_size == world for rank in trace.peers}
    chosen = sample(sorted(found | set(asked(wish, world))))
    if not set(chosen) - {0}:
        return None
    return replace(job, environ={**job.environ, "XMEM_RANKS": f"{','.join(map(str, chosen))}/{world}"})


def asked(text: str, world: int) -> list[int]:
    """Return the ranks that a user asks for, of so many: "all", "last", or numbers such as "0,3"."""
    words = {"": [], "all": list(range(world)), "last": [world - 1]}
    numbers = words[text] if text in words else [int(word) for word in text.split(",") if word.isdecimal()]
    return [number for number in numbers if number < world]


def sample(ranks: Sequence[int]) -> list[int]:
    """Return rank 0 and at most `MOST` of these in all: all, or the last and some evenly between."""
    found = sorted({0, *ranks})
    if len(found) <= MOST:
        return found
    return [found[index * (len(found) - 1) // (MOST - 1)] for index in range(MOST)]
