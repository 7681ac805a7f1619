"""Which engine runs a job dry, and what is said where the first could not answer? The one place that decides.

The order names it. `auto`, the default, begins with the stand-in CUDA libraries, which take
seconds where real steps on the CPU take minutes (a torch that is no CUDA build cannot load them: the probe then takes
real steps at once). Real steps follow where the stand-ins' zeros may have led the job astray:

- its script failed by an exception that values can cause, after it had some from the GPU;
- a shape follows from values, or its model reads values in its forward pass, which may decide what it does next.

They may need more time or memory than there is. Then the first answer stands, with its doubts and with what they would
have needed.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from xmem_slurm.doubts import OF_VALUES, Doubt
from xmem_slurm.dryrun import runner, spending
from xmem_slurm.dryrun.order import DryRunOrder
from xmem_slurm.errors import NoEstimate
from xmem_slurm.trace import Noted, Trace, fail_on_any_gpu
from xmem_slurm.units import GIB

SHARE = 0.5
"""Of the time that is left, for a second opinion: the rest is for other kinds of GPU. A job that failed gets it all."""

_CAUSED_BY_VALUES = re.compile(
    r"(\w+\.)*(Runtime|Value|Index|Key|Assertion|ZeroDivision|FloatingPoint|Overflow|_?LinAlg)Error\b"
)
"""What zeros in place of values can raise. No package, file, network, wrong call: real steps would miss them, too."""
_BY_THE_HOOK = re.compile(r"SystemError\b|a crash or a kill")
"""How a script ends that has lost an exception: CPython finds a result missing, or uses it."""


def run(order: DryRunOrder) -> Sequence[Trace]:
    """Run a job dry on this machine, and return the traces of the engine that can answer.

    Where shapes follow from values that stand-ins do not have, they are as large as they can be; another run with the
    smallest says in a doubt how much hangs on that.

    Raises:
        SandboxError, NoEstimate: as `runner.run` does.
    """
    started = spending.now()
    traces = _run(order, started)
    left, took = order.budget.since(started), spending.now().since(started)
    most = any(trace.has(Doubt.VALUE_SHAPE) for trace in traces)
    if not most or any(trace.failed for trace in traces) or not left.has_room_for(took):
        return traces
    with suppress(NoEstimate):
        least = replace(order, shapes="least", engine="device", budget=left)
        ran = [trace for trace in runner.run(least).traces if trace.recorded and not trace.failed]
        peak = max((trace.recorded["reserved_bytes"] for trace in ran), default=0)
        if peak:
            found = Noted(Doubt.VALUE_SHAPE_LEAST, f"{peak / GIB:.2f} GiB")
            return [replace(trace, doubts=[*trace.doubts, found]) for trace in traces]
    return traces


def _run(order: DryRunOrder, started: spending.Moment) -> Sequence[Trace]:
    traces = _with_or_without_origins(order, started)
    why = _why_real_steps(traces) if order.engine == "auto" else None
    if why is None:
        return traces
    left = order.budget.since(started)
    failed = any(trace.failed for trace in traces)
    allowed = left if failed else replace(left, seconds=max(1.0, SHARE * left.seconds))
    try:
        real = runner.run(replace(order, engine="profile", budget=allowed)).traces
        refusal = next((trace.error for trace in real if trace.failed), None)
    except NoEstimate as error:
        real, refusal = [], str(error)
    if refusal is None:
        return [_with_doubt(trace, f"not run on stand-ins, as {why}") for trace in real]
    if not failed:
        return [_with_doubt(trace, f"no real steps on the CPU, though {why}: {refusal}") for trace in traces]
    if any(trace.error == refusal for trace in traces):
        return traces
    return [_with_refusal(trace, refusal) for trace in traces]


def _with_or_without_origins(order: DryRunOrder, started: spending.Moment) -> Sequence[Trace]:
    """Run a job that may be to say which line asked for each allocation; without that where it stops by it.

    torch's hook for it can cost a script an exception that it handles (probe/_xmem/record/sites.py).
    """
    traces = runner.run(order).traces
    broken = any(trace.error is not None and _BY_THE_HOOK.match(trace.error) for trace in traces)
    left = order.budget.since(started)
    if not order.origins or not broken or not left.has_room_for(spending.now().since(started)):
        return traces
    with suppress(NoEstimate):
        again = runner.run(replace(order, origins=False, budget=left)).traces
        if not any(trace.failed for trace in again):
            return again
    return traces


def _why_real_steps(traces: Sequence[Trace]) -> str | None:
    """Say why the stand-ins' answer is not enough; None where it is, and where real steps could not do better."""
    if any(trace.world_size > 1 or trace.has(Doubt.PROFILE_ENGINE) for trace in traces):
        return None
    met = {noted.doubt: noted.detail for trace in traces for noted in trace.doubts}
    if fail_on_any_gpu(traces):
        return None
    if OF_VALUES & met.keys():
        errors = [trace.error or "" for trace in traces if trace.failed and not trace.fails_on_any_gpu]
        for caused in filter(_CAUSED_BY_VALUES.match, errors):
            return f"with zeros for values the script stops: {caused}"
    if Doubt.VALUE_SHAPE in met:
        return met[Doubt.VALUE_SHAPE]
    read = met.get(Doubt.FORWARD_READ)
    return None if read is None else f"the model reads values in its forward pass ({read})"


def _with_doubt(trace: Trace, reason: str) -> Trace:
    return replace(trace, doubts=[*trace.doubts, Noted(Doubt.ENGINE, reason)])


def _with_refusal(trace: Trace, refusal: str) -> Trace:
    return replace(trace, error=f"{trace.error} (real steps on the CPU: {refusal})") if trace.failed else trace
