"""The ways of training a job on a site's GPUs that were looked at, for people and for programs."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from xmem_slurm.planning.candidates import Candidate
from xmem_slurm.planning.changes import (
    arguments_for,
    deepspeed_config,
    files_for,
    variables_for,
    what_changes,
)
from xmem_slurm.planning.search import Row, Ways, prices
from xmem_slurm.report import columns
from xmem_slurm.report.json import SCHEMA_VERSION
from xmem_slurm.site.schema import Gpu
from xmem_slurm.slurm import array_numbers
from xmem_slurm.units import counted, human, listed

ANSWERS: Mapping[str, str] = {
    "too large": "does not fit, by a dry run",
    "host": "too little host memory, by a dry run",
    "ruled out": "ruled out by a lower bound",
    "failed": "its dry run gave no answer",
}
"""Why a way is not advised."""
INTERRUPTED = "interrupted: the answer is the best of the ways that were tried so far"
_COLUMNS = 80
"""What a table, and what is printed below it, may be wide."""
_HEAD = ("", "GPUs", "method", "batch", "needed", "time", "cost", "conf.")
_OF_GPU = " of "
"""Between what is needed and what the GPU has."""
_MOST_NAMED = 3
"""Ways of one such reason that are named; all of them are in the JSON object."""


def text(plan: Ways, gpus: Mapping[str, Gpu]) -> str:
    """Return what `xmem-slurm plan` prints: the table and what is said below it, no line of which
    is wider than a terminal, if it can be broken.
    """
    return "\n".join(columns.broken(lines(plan, gpus), _COLUMNS))


def lines(plan: Ways, gpus: Mapping[str, Gpu]) -> list[str]:
    """Return the table of what is advised, best first, what makes each so, and what is not
    advised.
    """
    advised = list(plan.verified)
    times, costs = _multiples(plan, advised)
    body = [
        _cells(number, row, gpus, times.get(number), costs.get(number))
        for number, row in enumerate(advised)
    ]
    shown = _table(body) if advised else []
    changes = dict[tuple[str, ...], list[int]]()
    for number, row in enumerate(advised, 1):
        changes.setdefault(tuple(_change(plan, row)), []).append(number)
    for (first, *further), numbers in changes.items():
        shown += [f"{', '.join(f'{number}.' for number in numbers)} {first}", *further]
    return [*shown, *_not_advised(plan), *_words(plan)]


def _multiples(plan: Ways, rows: Sequence[Row]) -> tuple[Mapping[int, float], Mapping[int, float]]:
    """Return times and costs of these rows as multiples of the least, by their places; none where
    nothing is ranked by speed.
    """
    if plan.not_ranked:
        return {}, {}
    return prices(rows, lambda row: row.seconds), prices(rows, lambda row: row.cost)


def _not_advised(plan: Ways) -> list[str]:
    """Say in a line for each reason which ways are not advised, the most promising first."""
    unadvised = []
    for status, why in ANSWERS.items():
        rows = [row for row in plan.rows if row.status == status]
        if rows:
            named = "; ".join(_named(row) for row in rows[:_MOST_NAMED])
            unnamed = f"; {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
            unadvised.append(f"{why}: {named}{unnamed}")
    return unadvised


def _named(row: Row) -> str:
    """Name a way that is not advised, with what it needs or what it lacks, as far as that is
    known.
    """
    words = _way(row.candidate)
    match row.status:
        case "ruled out" | "too large" if row.bound_bytes:
            return f"{words} (> {human(row.bound_bytes)})"
        case "host" if row.host is not None:
            return f"{words} ({row.host.lacking})"
        case "failed":
            return f"{words} ({row.why})"
    return words if row.estimate is None else f"{words} ({human(row.estimate.required_bytes)})"


def _way(candidate: Candidate) -> str:
    return " ".join(
        filter(None, (_gpus(candidate), _method(candidate), _batch(candidate), *_also(candidate)))
    )


def _cells(
    number: int, row: Row, gpus: Mapping[str, Gpu], time: float | None, cost: float | None
) -> tuple[str, ...]:
    """Return the cells of a way that is advised; time and cost are multiples of the least."""
    of_gpu = human(gpus[row.candidate.option].total_bytes)
    return (
        f"{number + 1}.",
        _gpus(row.candidate),
        _method(row.candidate),
        _batch(row.candidate),
        "" if row.estimate is None else f"{human(row.estimate.required_bytes)}{_OF_GPU}{of_gpu}",
        "" if time is None else f"{time:.1f}x",
        "" if cost is None else f"{cost:.1f}x",
        "" if row.estimate is None else row.estimate.confidence,
    )


def _gpus(candidate: Candidate) -> str:
    return f"{candidate.gpus} x {candidate.option}" + (
        f" on {candidate.nodes} nodes" if candidate.nodes > 1 else ""
    )


def _method(candidate: Candidate) -> str:
    shards = f" of {candidate.shards}" if candidate.method.is_hybrid else ""
    return f"{candidate.method.name}{shards}{_tensor(candidate)}"


def _tensor(candidate: Candidate) -> str:
    return f", tensors on {candidate.tensor}" if candidate.tensor > 1 else ""


def _batch(candidate: Candidate) -> str:
    if not candidate.micro_batch:
        return "as it is"
    return f"{candidate.micro_batch} x {candidate.accumulation}"


def _also(candidate: Candidate) -> list[str]:
    """Return what a way is besides the columns of the table."""
    return ["bf16"] * candidate.bf16 + ["checkpointing"] * candidate.checkpointing


def _table(body: Sequence[Sequence[str]]) -> list[str]:
    """Return the ways in columns; of a table that would be too wide what each GPU has is left out,
    and then room between columns.
    """
    needed = _HEAD.index("needed")
    whole = [_HEAD, *body]
    short = [
        [*row[:needed], row[needed].partition(_OF_GPU)[0], *row[needed + 1 :]] for row in whole
    ]
    forms = (_aligned(whole, "  "), _aligned(short, "  "), narrowest := _aligned(short, " "))
    return next((form for form in forms if max(map(len, form)) <= _COLUMNS), narrowest)


def _aligned(rows: Sequence[Sequence[str]], gap: str) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        gap.join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _change(plan: Ways, row: Row) -> list[str]:
    """Say what makes a way that is advised so, and what of the training itself is another by it."""
    variables = variables_for(plan.base, row.candidate)
    arguments = arguments_for(plan.base, row.candidate)
    words = [f"{name}={shlex.quote(value)}" for name, value in variables.items()]
    words += [f"{name} {value}" for name, value in arguments.items()]
    candidate = row.candidate
    same = (candidate.gpus, candidate.nodes) == (plan.base.ranks, plan.base.nodes)
    words += [] if same else [_processes(candidate)]
    also = f"{', '.join(_also(row.candidate))}: " if _also(row.candidate) else ""
    descriptions = [also + ("; ".join(words) or "as it is written")]
    if plan.base.deepspeed is not None and files_for(plan.base, candidate):
        differences = plan.base.deepspeed.differences(deepspeed_config(plan.base, candidate))
        descriptions.append(f"   in that file, a copy: {', '.join(differences)}")
    lacking = row.host.lacking if row.host is not None else ""
    descriptions += [f"   {lacking}"] if lacking else []
    return descriptions + [
        f"   changes: {change}" for change in what_changes(plan.base, row.candidate)
    ]


def _processes(candidate: Candidate) -> str:
    where = "on one node" if candidate.nodes == 1 else f"on each of {candidate.nodes} nodes"
    return f"{counted(candidate.per_node, 'process', 'processes')} {where}"


def _words(plan: Ways) -> list[str]:
    """Say what the table is, and what it is not."""
    sentences = [f"{counted(plan.dry_runs, 'dry run')}; margins included"]
    sentences += of_array(plan)
    sentences += [_not_tried(plan)] if plan.not_tried else []
    sentences += plan.without_kernels
    if plan.of_another_batch:
        left_out = listed(plan.of_another_batch)
        sentences.append(
            f"not with {left_out} GPUs: a step would not have {plan.base.batch:,} samples "
            "(--any-global-batch)"
        )
    if plan.not_ranked:
        sentences.append(f"not ranked by speed: {plan.not_ranked}")
    elif plan.verified:
        sentences.append(
            "time and cost are per sample, as multiples of the least; within 10 % they are a tie"
        )
        sentences += _without_time(plan.verified)
    if (
        plan.base.training.by in ("transformers", "accelerate", "lightning")
        and not plan.base.training.has_deepspeed
    ):
        sentences.append("the job's Python has no DeepSpeed: ZeRO was not considered")
    if plan.base.not_varied:
        sentences.append(f"--vary batch_size={plan.base.vary} is ignored: {plan.base.not_varied}")
    if plan.base.not_scaled:
        sentences.append(plan.base.not_scaled)
    first = plan.verified[0].estimate if plan.verified else None
    if first is not None and first.reasons:
        sentences.append(f"of the first: {'; '.join(dict.fromkeys(first.reasons))}")
    return sentences


def _without_time(advised: Sequence[Row]) -> list[str]:
    """Say for each reason which rows of a ranked table have no time."""
    numbers = dict[str, list[int]]()
    for number, row in enumerate(advised, 1):
        if row.seconds is None:
            numbers.setdefault(row.why_no_time, []).append(number)
    return [
        f"{listed(lacking)} {'has' if len(lacking) == 1 else 'have'} no time: {why}"
        for why, lacking in numbers.items()
    ]


def of_array(plan: Ways) -> list[str]:
    """Say for which task of an array the plan is, where others may need more; nothing where none
    can.
    """
    count = sum(map(len, array_numbers.ranges(plan.base.job.request.value("array") or "")))
    if count <= len(plan.array_tasks) or not plan.array_tasks:
        return []
    ran = f"of its {count} tasks only {listed(sorted(plan.array_tasks))} ran"
    largest = f"task {plan.task} of the array, which needs the most ({ran})"
    return [f"this is for {largest}; the others may need more, as they can read their number"]


def _not_tried(plan: Ways) -> str:
    """Say how many ways were left, and which of them would have been tried next."""
    were = "was" if plan.not_tried == 1 else "were"
    promising = "; ".join(map(_way, plan.tried_next[:_MOST_NAMED]))
    named = f" (the most promising: {promising})" if promising else ""
    best = ": these are the best of those that were" if plan.verified else ""
    return f"{counted(plan.not_tried, 'other way')} {were} not tried{named}{best}"


def objects(plan: Ways, gpus: Mapping[str, Gpu]) -> dict[str, Any]:
    """Return what `xmem-slurm plan --json` prints; sizes in bytes, null is what is not known."""
    times, costs = _multiples(plan, plan.rows)
    rows = [
        _object(plan, row, gpus[row.candidate.option], times.get(place), costs.get(place))
        for place, row in enumerate(plan.rows)
    ]
    return {
        "schema_version": SCHEMA_VERSION,
        "objective": plan.objective,
        "dry_runs": plan.dry_runs,
        "dry_run_seconds": round(plan.seconds, 1),
        "not_tried": plan.not_tried,
        "not_ranked": plan.not_ranked or None,
        "without_kernels": list(plan.without_kernels),
        "candidates": rows,
    }


def _object(
    plan: Ways, row: Row, gpu: Gpu, time: float | None, cost: float | None
) -> dict[str, Any]:
    """Return one candidate; its time and cost are multiples of the least."""
    candidate = row.candidate
    is_whole = row.status != "failed" and not row.bound_bytes
    estimate = row.estimate if is_whole else None
    return {
        "status": row.status.replace(" ", "-"),
        "option": candidate.option,
        "gpus": candidate.gpus,
        "nodes": candidate.nodes,
        "method": candidate.method.name,
        "shards": candidate.shards,
        "tensor_parallel": candidate.tensor,
        "bf16": candidate.bf16,
        "micro_batch": candidate.micro_batch or None,
        "accumulation": candidate.accumulation,
        "checkpointing": candidate.checkpointing,
        "expandable_segments": candidate.expandable,
        "capacity_bytes": gpu.total_bytes,
        "required_bytes": estimate.required_bytes if estimate is not None else None,
        "margin_bytes": estimate.largest.margin_bytes if estimate is not None else None,
        "lower_bound_bytes": row.bound_bytes or None,
        "confidence": estimate.confidence if estimate is not None else None,
        "relative_time": time,
        "relative_cost": cost,
        "why_no_time": row.why_no_time or None,
        "variables": variables_for(plan.base, candidate),
        "arguments": dict(arguments_for(plan.base, candidate)),
        "files": {
            str(path): content.decode() for path, content in files_for(plan.base, candidate).items()
        },
        "changes": what_changes(plan.base, row.candidate),
        "why": row.why or None,
        "known_after_seconds": round(row.after_seconds, 1),
        "host_bytes_per_process": row.host.per_process if row.host is not None else None,
        "host_bytes_per_node": row.host.needed if row.host is not None else None,
        "node_bytes": row.host.node if row.host is not None else None,
        "host_lacking": (row.host.lacking if row.host is not None else "") or None,
    }
