"""Which ranks of a job are run dry? Rank 0, and with it, all at once, those that it cannot stand
for.

What rank 0 sees of the others says which those are (`Trace.peers`): the stages of a pipeline, ranks
that it sends tensors to, larger shards of the optimizer's state. A user can ask for ranks, too.
Where those are many a sample is run: first, last, and evenly between. Ranks that run together tell
each other what decides shapes (`probe/_xmem/ranks/peers.py`), so each goes the way that it would go
among all of them.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun.budget import Spent
from xmem_slurm.dryrun.engines import need
from xmem_slurm.dryrun.exchange import Orders, SharedBudget
from xmem_slurm.dryrun.order import DryRunOrder, RunRanks
from xmem_slurm.errors import NoEstimate, UnusedGpu
from xmem_slurm.trace import Noted, Trace, fail_on_any_gpu

MOST = 8
"""So many ranks are run at once: each takes 0.5 GB of host memory and more, and all share a few
CPUs."""
_AND_ANOTHER = 2
"""Beside other ranks rank 0 is run again, and as much as one takes is left for another kind of
GPU."""
_ALIKE = 1.01
"""Needs that differ by less are as good as the same, as where data decide; the larger counts."""


def run(order: DryRunOrder, budget: SharedBudget) -> Orders[Sequence[Trace]]:
    """Want a job run dry, and return the traces of rank 0 and of the ranks that it cannot stand
    for.

    Raises:
        NoEstimate: there are none.
    """
    traces = yield from budget.run(order)
    together = None if fail_on_any_gpu(traces) else with_others(order, traces)
    if together is not None:
        traces = yield from budget.run(together)
    ran = {trace.rank for trace in traces}
    return [_with_missing(trace, ran) for trace in traces]


def why_not_started(order: DryRunOrder, world: int, budget: SharedBudget) -> Orders[str]:
    """Want the last of so many ranks started, as far as its first collective; return why it cannot
    be, "" where it can, or where that is not known.

    It differs from rank 0 in what starting hangs on: its number, its GPU's, and its node's. What
    Python and torch raise there, they raise in the job. A start for which there was no time, or
    that waits for what only another rank would say, shows nothing.
    """
    last = replace(
        order,
        engine="device",
        run_ranks=RunRanks((world - 1,), world),
        brief=True,
        starts=True,
    )
    try:
        traces = yield from budget.run(last)
    except UnusedGpu:
        return ""
    except NoEstimate as error:
        return str(error) if error.fails or (error.on_any_gpu and not error.busy) else ""
    failed = [trace for trace in traces if trace.failed and trace.rank == world - 1]
    return next((trace.error for trace in failed if trace.error), "")


def compared(
    order: DryRunOrder, traces: Sequence[Trace], budget: SharedBudget, took: Spent
) -> Orders[Sequence[Trace]]:
    """Want other ranks run beside rank 0, which has these traces and `took` so much; say if the
    last needs no more.

    Those between are then taken to need no more, too, as the tasks of an array between its ends
    are. Where batches differ, the longest text may be any rank's: all are run, if they are no more
    than `MOST`. An answer that is nothing new, as one did not come to its end or there was no time
    for it, leaves the traces as they are.
    """
    world = max((trace.world_size for trace in traces), default=1)
    if world == 1 or {trace.rank for trace in traces} != {0} or not _is_open(order):
        return traces
    batches_differ = any(trace.has(Doubt.OTHER_BATCHES) for trace in traces)
    other_ranks = range(1, world) if batches_differ and world <= MOST else [world - 1]
    alike = order.ranks_alike
    if not alike and budget.left.has_room_for(took.part(len(other_ranks) + _AND_ANOTHER)):
        with suppress(NoEstimate):
            together = yield from budget.run(
                replace(order, run_ranks=RunRanks((0, *other_ranks), world))
            )
            beside = [trace for trace in together if trace.rank and trace.allocations]
            needed, needs = need(beside)[0], need(traces)[0]
            ended = bool(beside) and all(trace.came_to_its_end for trace in beside)
            alike = ended and needed <= _ALIKE * needs
            traces = together if needed > needs or (batches_differ and ended) else traces
    if not alike or batches_differ:
        return traces
    noted = Noted(Doubt.RANKS_ALIKE, f"rank {world - 1} of {world} needs no more than rank 0")
    return [replace(trace, doubts=[*trace.doubts, noted]) for trace in traces]


def whole(traces: Sequence[Trace]) -> Sequence[Trace]:
    """Return the traces without a doubt about other ranks' batches, where all ranks were run."""
    used = [trace for trace in traces if trace.allocations]
    if {trace.rank for trace in used} != set(
        range(max((trace.world_size for trace in used), default=0))
    ):
        return traces
    settled = Doubt.OTHER_BATCHES
    return [
        replace(trace, doubts=[noted for noted in trace.doubts if noted.doubt is not settled])
        for trace in traces
    ]


def on_another_gpu(order: DryRunOrder, traces: Sequence[Trace]) -> DryRunOrder:
    """Return the order for another kind of GPU, with what these traces show of the ranks."""
    if any(trace.has(Doubt.RANKS_ALIKE) for trace in traces):
        return replace(order, ranks_alike=True)
    ran = sorted({trace.rank for trace in traces if trace.allocations})
    if len(ran) > 1 and _is_open(order):
        return replace(order, run_ranks=RunRanks(ran, max(trace.world_size for trace in traces)))
    return order


def _is_open(order: DryRunOrder) -> bool:
    """Whether it is not decided which ranks are run; in a heterogeneous job each component's first
    stands for it.
    """
    return order.run_ranks is None and len(order.job.gpus) <= 1


def _with_missing(trace: Trace, ran: set[int]) -> Trace:
    """Say so in a trace if ranks that it does not stand for were not run."""
    missing = sorted(set(trace.peers) - ran)
    if not missing:
        return trace
    named = (
        f"ranks {', '.join(map(str, missing[:MOST]))}{', ...' if len(missing) > MOST else ''} "
        f"of {trace.world_size}"
    )
    if len(ran) > 1:
        noted = Noted(Doubt.RANKS, named, len(missing))
    else:
        alone = f"only rank {trace.rank} was run, and {named} are not like it"
        noted = Noted(Doubt.RANK_ALONE, alone, len(missing))
    return replace(trace, doubts=[*trace.doubts, noted])


def with_others(order: DryRunOrder, traces: Sequence[Trace]) -> DryRunOrder | None:
    """Return the order with the ranks named that are to be run beside rank 0, or None where that is
    enough.

    `traces` are those of rank 0.
    """
    if not _is_open(order):
        return None
    world = max((trace.world_size for trace in traces), default=1)
    peers = {rank for trace in traces if trace.world_size == world for rank in trace.peers}
    chosen = sample(sorted(peers | set(wanted(order, world))))
    if not set(chosen) - {0}:
        return None
    return replace(order, run_ranks=RunRanks(chosen, world))


def wanted(order: DryRunOrder, world: int) -> list[int]:
    """Return the ranks that a user asks for, of so many."""
    if order.wanted_ranks == "all":
        return list(range(world))
    if order.wanted_ranks == "last":
        return [world - 1]
    return [rank for rank in order.wanted_ranks if rank < world]


def sample(ranks: Sequence[int]) -> list[int]:
    """Return rank 0 and at most `MOST` of these in all: all, or the last and some evenly
    between.
    """
    wanted = sorted({0, *ranks})
    if len(wanted) <= MOST:
        return wanted
    return [wanted[index * (len(wanted) - 1) // (MOST - 1)] for index in range(MOST)]
