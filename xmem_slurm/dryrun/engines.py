"""Which engine runs a job dry, and what is said where the first could not answer? The one place
that decides.

The order names it. `auto`, the default, begins with the stand-in CUDA libraries, which take seconds
where real steps on the CPU take minutes (a torch that is no CUDA build cannot load them: the probe
then takes real steps at once). What an assertion of zeros stopped goes on without assertions.

With zeros for losses and scores nothing is ever better than the best so far, and a script that
waits for that ends its training early. So a script that reads some again and again is run a second
time, with those of the other course (Note [Metrics] in `probe/_xmem/values/metrics`). What needs
more of both stands. A condition that went both ways in the two is no doubt any more. A script that
computing with zeros stopped is run with another number in their place, and by the other course.

A script that waits for a time that no dry run comes to, "every half an hour", is run again with a
clock that leaps there (Note [Times] in `probe/_xmem/process/times`). What needs more of both
stands, too.

Real steps follow where the zeros may have led the job astray:

- its script failed by an exception that values can cause, after it had some from the GPU;
- a shape follows from values, or its model reads values in its forward pass, which may decide what
  it does next.

They may need more time or memory than there is. Then the first answer stands, with its doubts and
with what they would have needed.
"""

from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import replace

from xmem_slurm.allocator.replay import Run, replay
from xmem_slurm.doubts import OF_VALUES, Doubt
from xmem_slurm.dryrun.exchange import Orders, SharedBudget
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.trace import CRASH, Noted, Op, ScriptFailure, Trace, fail_on_any_gpu
from xmem_slurm.units import GIB

SHARE = 0.5
"""Of the time that is left, for a second opinion: the rest is for other kinds of GPU. A job that
failed gets it all."""

_CAUSED_BY_VALUES = frozenset(
    f"{name}Error"
    for name in (
        "Runtime",
        "Value",
        "Index",
        "Key",
        "Assertion",
        "ZeroDivision",
        "FloatingPoint",
        "Overflow",
    )
) | {"LinAlgError", "_LinAlgError"}
"""What zeros in place of values can raise. No package, file, network, wrong call: real steps would
miss them, too."""
TURNS = 3
"""In so many turns a script has to read losses or scores for either course to lead anywhere
else."""
USUAL_PATIENCE = 101
"""After more turns than this a script that was never given a better one does not wait for it any
more. By default transformers waits for one (EarlyStoppingCallback), Lightning for 3
(EarlyStopping), YOLO for 100 (`patience` in ultralytics/cfg/default.yaml, 8.3): the longest known,
after a first one."""
EPOCHS_AGAIN = 3
"""So many whole epochs are made once all have been seen: one that begins, one in which the first
better score comes, and one without anything new..."""
LEAST_PART = 0.5
"""...but what is before the first epoch, and after each, is made again, too."""
_ONE_COURSE = (
    "its losses and scores were taken to get no better, and it was not run to an end with others: "
    "if it ends early by them, it may need more (a larger --xmem-budget runs both)"
)
_BY_COMPUTING = ("ZeroDivisionError", "math domain error", "FloatingPointError", "OverflowError")
"""What Python raises that computes with a zero: a loss that is divided by, or whose logarithm is
asked for."""
_BY_THE_HOOK = frozenset({"SystemError", CRASH})
"""How a script ends that has lost an exception: CPython finds a result missing, or uses it."""


def run(order: DryRunOrder) -> Orders[Sequence[Trace]]:
    """Want a job run dry, as often as it takes, and return the traces of the engine that can
    answer.

    Where shapes follow from values that stand-ins do not have, they are as large as they can be;
    another run with the smallest says in a doubt how much hangs on that.

    Raises:
        NoEstimate: there are none.
    """
    budget = SharedBudget(order.budget)
    order, traces = yield from _run(order, budget)
    has_value_shapes = any(trace.has(Doubt.VALUE_SHAPE) for trace in traces)
    if (
        not has_value_shapes
        or any(trace.failed for trace in traces)
        or not budget.left.has_room_for(budget.spent)
    ):
        return traces
    with suppress(NoEstimate):
        smallest = yield from budget.run(replace(order, shapes="least", engine="device"))
        ran = [trace for trace in smallest if trace.recorded and not trace.failed]
        peak = max((trace.recorded["reserved_bytes"] for trace in ran), default=0)
        if peak:
            least_peak = Noted(Doubt.VALUE_SHAPE_LEAST, f"{peak / GIB:.2f} GiB")
            return [replace(trace, doubts=[*trace.doubts, least_peak]) for trace in traces]
    return traces


_Answered = tuple[DryRunOrder, Sequence[Trace]]
"""The order as it was changed for a script to go on, which holds for further runs of it, and the
traces."""


def _run(order: DryRunOrder, budget: SharedBudget) -> Orders[_Answered]:
    """Want the stand-ins' answer, and that of real steps where it is not enough; say which it is,
    and why.
    """
    order, traces = yield from _by_both_clocks(order, budget)
    why = _why_real_steps(traces) if order.engine == "auto" else None
    if why is not None:
        traces = yield from _with_real_steps(order, budget, traces, why)
    return order, traces


def _with_real_steps(
    order: DryRunOrder, budget: SharedBudget, traces: Sequence[Trace], why: str
) -> Orders[Sequence[Trace]]:
    """Want real steps, too; return their traces where they could be taken, else those that there
    are.
    """
    failed, seconds = any(trace.failed for trace in traces), budget.left.seconds
    try:
        allowed = seconds if failed else max(1.0, SHARE * seconds)
        real = yield from budget.run(replace(order, engine="profile"), allowed)
        refusal = next((trace.error for trace in real if trace.failed), None)
    except NoEstimate as error:
        real, refusal = [], str(error)
    if refusal is None:
        return _with_what_comes_later(_with_each(real, f"not run on stand-ins, as {why}"), traces)
    if not failed:
        return _with_each(traces, f"no real steps on the CPU, though {why}: {refusal}")
    if any(trace.error == refusal for trace in traces):
        return traces
    return [_with_refusal(trace, refusal) for trace in traces]


def _with_what_comes_later(real: Sequence[Trace], whole: Sequence[Trace]) -> Sequence[Trace]:
    """Return real first steps with room for what a script needs more later on, as the run on
    stand-ins saw it.

    Everything counts as selected there: it is the most that may come. The first steps are those of
    the real run.
    """
    if all(trace.state == "exit" for trace in real if trace.allocations):
        return real  # they were all that there is
    steps, (_, first) = _steps(real), need(real)
    later = max((_later(trace, steps) for trace in whole if trace.allocations), default=0)
    if not (first and later):
        return real
    doubt = Noted(Doubt.LATER, f"{later / GIB:.2f} GiB", share=later / first)
    return [replace(trace, doubts=[*trace.doubts, doubt]) for trace in real]


def _later(trace: Trace, steps: int) -> int:
    """Return how many bytes more a process allocates at most than in its first steps; 0 if it made
    fewer.
    """
    ends = [mark.allocations for mark in trace.marks if mark.kind == "step"]
    if not 0 < steps <= len(ends):
        return 0
    allocations = [event for event, (op, _) in enumerate(trace.events) if op == Op.ALLOC]
    run = Run(trace)
    run.to_event(allocations[ends[steps - 1] - 1])
    return replay(trace).peak_allocated_bytes - run.allocator.allocated_bytes_peak


def _by_both_clocks(order: DryRunOrder, budget: SharedBudget) -> Orders[_Answered]:
    """Want a run; and one in which time leaps, where the script waits for a time that did not
    come.
    """
    order, traces = yield from _by_both_courses(order, budget)
    waits = [noted for trace in traces for noted in trace.doubts if noted.doubt is Doubt.CLOCK]
    if not waits or _is_enough(order, traces):
        return order, traces
    return order, (yield from _by_leaps_too(order, budget, traces, waits))


def _is_enough(order: DryRunOrder, traces: Sequence[Trace]) -> bool:
    """Whether a run says all that is asked of it, whatever the job does at another time."""
    return order.brief or order.change is not None or order.is_exceeded(traces)


def _by_leaps_too(
    order: DryRunOrder, budget: SharedBudget, traces: Sequence[Trace], waits: Sequence[Noted]
) -> Orders[Sequence[Trace]]:
    """Want a run in which time leaps, after one that waited for times that did not come."""
    again = yield from _if_room(replace(order, clock="leaps"), budget)
    if any(trace.failed for trace in again):
        return traces
    met = _met_both_ways(again)
    if need(again) > need(traces):
        return _without([replace(trace, doubts=[*trace.doubts, *waits]) for trace in again], met)
    if all(trace.came_to_its_end for trace in again if trace.allocations):
        return _without(traces, met)
    return traces


def _by_both_courses(order: DryRunOrder, budget: SharedBudget) -> Orders[_Answered]:
    """Want a run; and one of the other course where the script reads losses and scores, or stopped
    by computing.
    """
    order, traces = yield from _with_or_without_assertions(order, budget)
    failure = next(
        (trace.failure for trace in traces if _had_values(trace) and _is_of_zeros(trace)), None
    )
    if failure is None:
        return order, (yield from _by_turns_too(order, budget, traces, TURNS, _ONE_COURSE))
    return order, (yield from _by_other_numbers(order, budget, traces, failure))


def _by_other_numbers(
    order: DryRunOrder, budget: SharedBudget, traces: Sequence[Trace], failure: ScriptFailure
) -> Orders[Sequence[Trace]]:
    """Want runs with other numbers, after one that computing with zeros stopped."""
    why = f"run with other numbers for values, as with zeros it stops: {failure.words}"
    still = yield from _if_room(replace(order, numbers="still"), budget)
    if _went_on(still, traces):
        return (yield from _by_turns_too(order, budget, still, 0, why))
    again = yield from _if_room(replace(order, numbers="turns"), budget)
    return _with_each(again, why) if _went_on(again, traces) else traces


def _went_on(again: Sequence[Trace], stopped: Sequence[Trace]) -> bool:
    """Whether what stopped got further in another run."""
    return (
        bool(again)
        and not any(trace.failure for trace in again)
        and _steps(again) >= _steps(stopped)
    )


def _by_turns_too(
    order: DryRunOrder,
    budget: SharedBudget,
    traces: Sequence[Trace],
    least_turns: int,
    else_doubt: str,
) -> Orders[Sequence[Trace]]:
    """Want a run of the other course, too, after one that read losses or scores in so many turns.

    What needs more of both stands, with a doubt where the other did not come to its end.
    """
    turns = _turns(traces)
    if turns < least_turns or _is_enough(order, traces):
        return traces
    whole = all(trace.came_to_its_end for trace in traces if trace.allocations)
    other = replace(order, numbers="turns", end_seen=whole)
    again = yield from _if_room(other, budget, _part_run_again(traces))
    used = [trace for trace in again if trace.allocations]
    failed = not used or any(trace.failed for trace in again)
    met = _met_both_ways(again)
    if not failed and (
        need(again) > need(traces) or (_steps(again) > _steps(traces) and not _ended(used))
    ):
        return _without(again, met)
    if not failed and all(trace.came_to_its_end for trace in used):
        return _without(traces, met)
    return traces if turns > USUAL_PATIENCE else _with_each(traces, else_doubt)


def _met_both_ways(traces: Sequence[Trace]) -> set[str]:
    """Return the conditions that went both ways."""
    return {
        noted.detail for trace in traces for noted in trace.doubts if noted.doubt is Doubt.BOTH_WAYS
    }


def _part_run_again(traces: Sequence[Trace]) -> float:
    """Return the share of what a run took that another takes which is cut short once its epochs are
    alike.
    """
    epochs = [trace.seen.epochs for trace in traces if trace.seen is not None]
    whole = max((made for made, _ in filter(None, epochs)), default=0)
    return max(LEAST_PART, min(1.0, EPOCHS_AGAIN / whole)) if whole else 1.0


def _if_room(
    order: DryRunOrder, budget: SharedBudget, part: float = 1.0
) -> Orders[Sequence[Trace]]:
    """Want another run if as much is left as this part of what was spent; return no traces if it is
    not, or it has none.
    """
    if budget.left.has_room_for(budget.spent.part(part)):
        with suppress(NoEstimate):
            return (yield from budget.run(order))
    return ()


def _turns(traces: Sequence[Trace]) -> int:
    """Return in how many turns a script read losses or scores; 0 if several ranks ran, or an end
    was not seen.
    """
    used = [trace for trace in traces if trace.allocations]
    if len({trace.rank for trace in used}) != 1 or not _ended(used):
        return 0
    doubts = (noted for trace in used for noted in trace.doubts)
    return max((noted.count for noted in doubts if noted.doubt is Doubt.METRICS_READ), default=0)


def _ended(traces: Sequence[Trace]) -> bool:
    """Whether all came to their script's own end."""
    return all(
        trace.seen is not None and trace.seen.end and trace.failure is None for trace in traces
    )


def need(traces: Sequence[Trace]) -> tuple[int, int]:
    """Return the most bytes that a process reserves, and allocates."""
    replays = [replay(trace) for trace in traces if trace.allocations]
    return max(
        ((replayed.peak_reserved_bytes, replayed.peak_allocated_bytes) for replayed in replays),
        default=(0, 0),
    )


def _is_of_zeros(trace: Trace) -> bool:
    return trace.failure is not None and any(
        words in trace.failure.words for words in _BY_COMPUTING
    )


def _had_values(trace: Trace) -> bool:
    return bool(OF_VALUES & {noted.doubt for noted in trace.doubts})


def _with_or_without_assertions(order: DryRunOrder, budget: SharedBudget) -> Orders[_Answered]:
    """Want a run; once more without the script's assertions where one of them stops it that zeros
    may have failed.
    """
    order, traces = yield from _with_or_without_origins(order, budget)
    failure = next((trace.failure for trace in traces if _of_values(trace)), None)
    if (
        failure is None
        or not failure.type.endswith("AssertionError")
        or not budget.left.has_room_for(budget.spent)
    ):
        return order, traces
    without = replace(order, assertions=False)
    with suppress(NoEstimate):
        again = yield from budget.run(without)
        if not any(trace.failed for trace in again):
            why = f"run without assertions, as with zeros for values one stops it: {failure.words}"
            return without, _with_each(again, why)
    return order, traces


def _of_values(trace: Trace) -> bool:
    """Whether a script stopped by an exception that zeros in place of values may have caused."""
    if not trace.failed or trace.fails_on_any_gpu or trace.failure is None:
        return False
    return _had_values(trace) and trace.failure.type.rpartition(".")[2] in _CAUSED_BY_VALUES


def _with_or_without_origins(order: DryRunOrder, budget: SharedBudget) -> Orders[_Answered]:
    """Want a run that may be to say which lines asked for each allocation; by other means where it
    stops by that.

    torch's hook for it can cost a script an exception that it handles
    (probe/_xmem/record/sites.py). All the time that is left is for the other run, however little:
    an exception may be met late, as at the end of an epoch.
    """
    traces = yield from budget.run(order)
    broken = any(
        trace.failure is not None and trace.failure.type in _BY_THE_HOOK for trace in traces
    )
    if order.origins != "hook" or not broken:
        return order, traces
    by_frames = replace(order, origins="frames")
    with suppress(NoEstimate):
        again = yield from budget.run(by_frames)
        failed_itself = any(
            trace.failure is not None and trace.failure.type not in {"", *_BY_THE_HOOK}
            for trace in again
        )
        as_far = not any(trace.failed for trace in again) and _steps(again) >= _steps(traces)
        if as_far or (failed_itself and any(trace.failed for trace in traces)):
            return by_frames, again  # what was lost was on the script's way, or its end
    return order, traces


def _steps(traces: Sequence[Trace]) -> int:
    return max((trace.steps for trace in traces), default=0)


def _why_real_steps(traces: Sequence[Trace]) -> str | None:
    """Say why the stand-ins' answer is not enough; None where it is, and where real steps could not
    do better.
    """
    if any(trace.world_size > 1 or trace.has(Doubt.PROFILE_ENGINE) for trace in traces):
        return None
    met = {noted.doubt: noted.detail for trace in traces for noted in trace.doubts}
    if fail_on_any_gpu(traces):
        return None
    for trace in traces:
        if trace.failure is not None and _of_values(trace):
            return f"with zeros for values the script stops: {trace.failure.words}"
    if Doubt.VALUE_SHAPE in met:
        return met[Doubt.VALUE_SHAPE]
    read = met.get(Doubt.FORWARD_READ)
    return None if read is None else f"the model reads values in its forward pass ({read})"


def _without(traces: Sequence[Trace], conditions: Container[str]) -> Sequence[Trace]:
    """Return traces without the doubts about conditions that were taken as false, and in another
    run as true, too.
    """
    return [
        replace(trace, doubts=[noted for noted in trace.doubts if noted.detail not in conditions])
        for trace in traces
    ]


def _with_doubt(trace: Trace, reason: str) -> Trace:
    return replace(trace, doubts=[*trace.doubts, Noted(Doubt.ENGINE, reason)])


def _with_each(traces: Sequence[Trace], reason: str) -> Sequence[Trace]:
    return [_with_doubt(trace, reason) for trace in traces]


def _with_refusal(trace: Trace, refusal: str) -> Trace:
    if trace.failure is None or not trace.failed:
        return trace
    words = f"{trace.failure.words} (real steps on the CPU: {refusal})"
    return replace(trace, failure=replace(trace.failure, words=words))
