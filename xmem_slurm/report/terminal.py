"""What a person reads on stderr: the answer first, two lines of it where nobody asks for more.

With all that is known they are at most eight, and one for each reason for less than full
confidence.
"""

import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from xmem_slurm.decision import Decision, Kind, Part, RaisedMemory
from xmem_slurm.doubts import Doubt
from xmem_slurm.dryrun import live_progress
from xmem_slurm.report import decided
from xmem_slurm.report.categories import CATEGORY_NAMES
from xmem_slurm.report.largest import Group
from xmem_slurm.report.options import Failure, OptionOutlook, Remedy
from xmem_slurm.report.seen import seen_words
from xmem_slurm.rewriting.rewrite import Change
from xmem_slurm.sizing import host_memory
from xmem_slurm.sizing.demand import memory_per_node
from xmem_slurm.sizing.estimate import Estimate, RankEstimate
from xmem_slurm.sizing.sizing import Advice, Sizing
from xmem_slurm.slurm.request import Request
from xmem_slurm.units import GIB, human

if TYPE_CHECKING:
    from rich.text import Text

ANSWERS: Mapping[bool | None, str] = {
    True: "fits",
    False: "does not fit",
    None: "not tried: a better one fits",
}
"""A placement's verdict, in words."""

HOW_SURE: Mapping[str, str] = {
    "high": (
        "The script ran to its own end (its later epochs may have been cut short because they "
        "brought nothing new),"
        " and everything it did was seen. Of 130 estimates compared with published runs, none was "
        "more than 1 % too"
        " low, or above what its margin covers."
    ),
    "medium": (
        "Something was not seen: each reason says what, and what it could cost. That widens the "
        "margin, by up to"
        " 20 % of the peak. Most scripts get it, and it does not mean that the figure is wrong. "
        "Read the reasons; if"
        " one applies to your job, act on it."
    ),
}
"""What a confidence means; docs/guide.md has it in the same figures."""

PATIENCE_SECONDS = 0.5
"""What is over sooner needs no progress."""
NEWS_SECONDS = 20.0
"""Between two lines in a log."""
_REFRESHES = 4.0
"""Of the line on a terminal in a second: 0.4 % of a core, where rich's own 12.5 take 1.5 %."""

_reader_seconds: ContextVar[float | None] = ContextVar("reader_seconds", default=None)
"""Between two lines for a program that shows them to somebody; None where there is none."""

_LEAST_PART = 0.01
"""Of the peak: what is less is not worth a word."""

_GROUPS = 3
"""Groups of blocks that one line has room for."""

_MUCH_HOST_BYTES = 1 * GIB
"""Of one process: less is what any of torch holds."""

_SLOWER = 2
"""A GPU so many times slower than the one asked for may not be done within the job's time limit,
which is told."""

_IN_A_COPY = (
    "the job asks Slurm for its script's path, and finds a copy: this can be changed in "
    "the script only"
)

_UNITS = {"shard": "shards", "mps": "units of MPS"}


def brief_line(sizing: Sizing, script: str | None = None) -> str:
    """Say how much GPU memory is needed, margin included, and in a word how sure that is.

    `script` is what the job's was called on the command line: `explain` finds its estimate by that.
    """
    estimate, requested = sizing.estimate, sizing.asked
    failed = _set_up_failed(estimate)
    first = estimate.first_reason
    if failed and first.startswith(_LINE_FAILED):
        first = ""  # `failed` says it, and which torch was found
    reasons = list(filter(None, (first, failed)))
    hint = f" [`{_explain(script)}` says more]" if len(estimate.reasons) > len(reasons) else ""
    why = f":\n{'; '.join(reasons)}{hint}" if reasons else _cut(estimate)
    needed = human(estimate.required_bytes)
    if estimate.largest.trace.world_size > 1:
        needed += " on each GPU"
    if requested is not None:
        has = requested.gpu.total_bytes
        share = f"{estimate.required_bytes / has:.0%} of the {requested.name} asked for"
        more = f"more than the {human(has)} of the {requested.name} asked for"
        needed += f", {more if estimate.required_bytes > has else share}"
    needed += _by_task(estimate)
    return f"GPU memory needed: {needed}{_takes(estimate)}; confidence {estimate.confidence}{why}"


def brief_lines(sizing: Sizing, script: str | None = None) -> list[str]:
    """Say that, and what else whoever submits the job has to know."""
    return [brief_line(sizing, script), *_without_launcher(sizing.estimate)]


def _without_launcher(estimate: Estimate) -> list[str]:
    """Say which launcher the job lacks, where the dry run did without it."""
    name = next(
        (noted.detail for noted in estimate.doubts if noted.doubt is Doubt.NO_LAUNCHER), None
    )
    if name is None:
        return []
    return [f"this job is likely to fail: {name} is not on PATH here (is its module loaded?)"]


def _explain(script: str | None) -> str:
    """Return what shows this estimate again; of what was no file, and is no more, the last one."""
    is_file = script is not None and not script.startswith(("/dev/", "/proc/"))
    return shlex.join(["xmem-slurm", "explain", *([script] if script and is_file else [])])


def _cut(estimate: Estimate) -> str:
    """Say how many epochs were run whole, where those stand for others: what comes late is the
    user's to know.
    """
    progress = estimate.largest.trace.seen
    whole, of = progress.epochs if progress is not None and progress.epochs is not None else (0, 0)
    return f" ({whole:,} of {of:,} epochs run whole)" if of != whole else ""


def _set_up_failed(estimate: Estimate) -> str:
    """Say which line failed that sets up what the job runs in, and which torch was found without
    it, if one did.
    """
    failed = next((noted.detail for noted in estimate.doubts if noted.doubt is Doubt.SET_UP), None)
    if failed is None:
        return ""
    release = estimate.largest.trace.torch_version
    return f"{_LINE_FAILED} ({failed}), so this is for torch {release}"


_LINE_FAILED = "part of the script failed in the dry run"


def _by_task(estimate: Estimate) -> str:
    """Say which task of an array needs that much, where others need less."""
    task = estimate.largest.trace.array_task
    return f", by task {task} of the array" if task is not None else ""


def _takes(estimate: Estimate) -> str:
    """Say what a job left alone takes beyond its need, which whoever looks at the GPU will see.

    What torch.backends.cudnn.benchmark tries is not known: 2.7 GiB for a need of 0.3 on an H200
    (pytorch/examples' dcgan, benchmarks/data/coverage_on_gpu.jsonl). A plan that finds no memory is
    not tried.
    """
    tries = any(noted.doubt is Doubt.CUDNN_TRIALS for noted in estimate.doubts)
    at_first = "more while cudnn.benchmark tries plans" if tries else ""
    if not estimate.uses_more:
        return f"; would use {at_first}" if tries else ""
    return f"; would use up to {human(estimate.uses_up_to_bytes)}{tries * ', and '}{at_first}"


def estimate_lines(
    estimate: Estimate, at_peak: Sequence[Group] = (), host_requested: int = 0
) -> list[str]:
    """Say how much GPU memory is needed, what it is made of, and, where that is known, which lines
    ask for the most; and how much host memory is, of what is requested.
    """
    rank = estimate.largest
    threshold = _LEAST_PART * sum(rank.breakdown.values())
    sizes = (
        (size, CATEGORY_NAMES[category])
        for category, size in rank.breakdown.items()
        if size > threshold
    )
    parts = ", ".join(f"{name} {human(size)}" for size, name in sorted(sizes, reverse=True))
    context = human(rank.outside_allocator_bytes - rank.beside_bytes)
    is_peak = rank.fits_in_bytes == rank.peak_reserved_bytes
    inside = f"{human(rank.fits_in_bytes)} {'peak' if is_peak else 'minimum'}"
    if rank.bound_bytes:
        cases = ["cuDNN chooses larger plans"] if rank.trace.bounds else []
        cases += ["DDP's first buckets are freed late"] if rank.trace.has(Doubt.DDP_BUCKETS) else []
        inside += f" ({human(rank.bound_bytes)} of it in case {', or '.join(cases)})"
    beside = f" + {human(rank.beside_bytes)} beside it" if rank.beside_bytes else ""
    total = f"{inside} + {context} CUDA context + {human(rank.margin_bytes)} margin{beside}"
    return [
        (
            f"GPU memory needed: {human(estimate.required_bytes)} = "
            f"{total}{_by_task(estimate)}{_takes(estimate)}"
        ),
        f"at the peak: {parts}",
        *_largest(at_peak),
        *filter(None, [on_host(estimate, host_requested)]),
        *_without_launcher(estimate),
        f"confidence {estimate.confidence}: {seen_words(rank.trace)}; {promise(rank)}",
        *(f"- {reason}" for reason in estimate.reasons),
    ]


def on_host(estimate: Estimate, requested: int = 0) -> str:
    """Say what host memory processes hold, of what is `requested`; nothing where it is no more than
    any process of torch does, and enough.
    """
    memory = host_memory.of_job(estimate, requested)
    if memory.per_process < _MUCH_HOST_BYTES and not memory.is_short:
        return ""
    ended = estimate.largest.trace.came_to_its_end
    so_far = "" if ended else " when the dry run ended, perhaps more later"
    room = "--mem must have room for it"
    if requested:
        killed = ", and may be killed" if memory.is_short else ""
        room = f"the job asks for {human(requested)}{killed}"
    return (
        f"host memory on each node: {memory.held}{so_far}, and up to {human(memory.for_cuda)} more "
        f"for CUDA; {room}"
    )


def lacks_host_memory(
    estimate: Estimate, request: Request, raised: RaisedMemory | None = None
) -> str:
    """Say that a job asks for less host memory than it holds, or what it asks for instead; nothing
    where it asks for enough.
    """
    if raised is not None and raised.change is not None:
        return f"{_listed([raised.change])}:\n{held_on_host(estimate)}"
    killed = may_be_killed(estimate, memory_per_node(request))
    if not killed or raised is None:
        return killed
    hint = f"; {raised.why_not}" if raised.why_not else " [XMEM_RAISE_MEM=1 raises it]"
    return f"{killed}{hint}"


def may_be_killed(estimate: Estimate, host_requested: int) -> str:
    """Say that a job that asks for so much host memory holds more; nothing where it does not."""
    lacking = host_memory.of_job(estimate, host_requested).lacking
    return f"this job may be killed: it holds {lacking}" if lacking else ""


def held_on_host(estimate: Estimate) -> str:
    """Say what a job's processes held of a node's memory, and what of the raised request is a rule
    of thumb.
    """
    memory = host_memory.of_job(estimate)
    may = "" if estimate.confidence == "high" else ", and may hold more later"
    others = f", and a node has {memory.processes} such processes" if memory.processes > 1 else ""
    return (
        f"in the dry run it held {human(memory.per_process)} of host memory{may}{others}; "
        f"{human(memory.cuda_per_process)} more for each process is for CUDA, whose host memory no "
        "dry run shows"
    )


def _largest(at_peak: Sequence[Group]) -> list[str]:
    groups = ";\n".join(str(group) for group in at_peak[:_GROUPS] if group.line)
    return [f"largest of it: {groups}"] if groups else []


def promise(rank: RankEstimate) -> str:
    """Say what the margin of a process is enough for."""
    margin = rank.margin
    if margin.probability is None:
        return "the margin is a rule of thumb: no runs of this kind were measured"
    if margin.of:
        return f"the margin is enough for {margin.probability:.0%} of {margin.runs} {margin.of}"
    on_one = ", which had one GPU each" if rank.trace.world_size > 1 else ""
    return (
        f"the margin is enough for {margin.probability:.0%} of runs like the {margin.runs} "
        f"measured{on_one}"
    )


def option_lines(
    options: Sequence[OptionOutlook], remedy: Remedy | None, advice: Sequence[Advice] = ()
) -> list[str]:
    """Say of each GPU option whether the job fits, with how much to spare or where it fails, and
    what would help.
    """
    width = max((len(option.name) for option in options), default=0)
    lines = [
        f"{'*' if o.chosen else ' '} {o.name:{width}}  {human(o.gpu.total_bytes):>10}  "
        f"{_outlook(o)}"
        for o in options
    ]
    return (
        lines
        + ([_remedy(remedy)] if remedy is not None else [])
        + [_advice(change) for change in advice]
    )


def _outlook(option: OptionOutlook) -> str:
    """Say whether an option does, and with what to spare, or why not."""
    if option.without_kernels:
        return f"{ANSWERS[False]}: {option.without_kernels}"
    if option.not_taken:
        return f"not taken: {option.not_taken}"
    if option.failure is not None:
        return f"{ANSWERS[option.fits]}: {_no_room(option.failure, option.allocator_bytes)}"
    if option.short_steps:
        steps = f"{option.short_steps} of {option.repeated_steps} steps that only repeat others"
        return f"{ANSWERS[option.fits]}: it would run, but have to free its cache in {steps}"
    if option.fits is False:
        return f"{ANSWERS[False]}, by a dry run on it; not by the trace shown here"
    return f"{ANSWERS[option.fits]}; {human(option.headroom_bytes)} to spare"


def _no_room(failure: Failure, allocator_bytes: int) -> str:
    """Say which request had no room, where torch's allocator may have so many bytes."""
    if not allocator_bytes:
        return "CUDA context and margin alone are more than it has"
    no_room = f"no room for {human(failure.requested_bytes)} in {failure.phase}"
    has = f"{human(failure.allocated_bytes)} allocated of {human(allocator_bytes)}"
    return f"{no_room}, with {has}; the rest is CUDA context and margin"


def _remedy(remedy: Remedy) -> str:
    setting = f"PYTORCH_CUDA_ALLOC_CONF={remedy.setting}"
    if remedy.enough:
        return f"to fit {remedy.option}: export {setting} is enough (replayed)"
    return (
        f"to fit {remedy.option}: {setting} is not enough (replayed); `xmem-slurm plan` looks for "
        "another way to train it"
    )


def _advice(advice: Advice) -> str:
    if advice.estimate is None:
        return f"{advice.change}: not tried: {advice.why_not}"
    answer = "fits" if advice.fits else "does not fit"
    needed = human(advice.estimate.required_bytes)
    return (
        f"with {advice.change}: {needed} needed, {answer} {advice.option} (seen in a dry run "
        "with it)"
    )


def reason(sizing: Sizing) -> str:
    """Say in one line what is needed, and why the chosen option was chosen."""
    return f"{human(sizing.estimate.required_bytes)} of GPU memory needed; {_offer(sizing)}"


def _offer(sizing: Sizing) -> str:
    """Say what the chosen option gives to the job, and what it is the best in.

    It may have less than is said to be needed anywhere (`fit.smallest_capacity`), and be enough by
    a replay on it.
    """
    placement, needed = sizing.placement, sizing.estimate.required_bytes
    chosen = next(verdict for verdict in placement.verdicts if verdict.name == placement.choice)
    units, has = chosen.units, chosen.job_gpu.total_bytes
    spare = f"{human(has - needed)} to spare" if has >= needed else "enough, replayed on it"
    size = f"{human(has)} ({spare}), {_rank(sizing)}"
    if chosen.share is None:
        return f"{chosen.name} has {size}"
    of = f"{chosen.share.per_gpu} {_UNITS[chosen.share.kind]} of {chosen.share.of}"
    return f"{units} of {of} {'has' if units == 1 else 'have'} {size}"


def _slower(sizing: Sizing) -> str:
    """Say how much slower the chosen GPU is than the one that the job asks for; empty where it is
    not, or not much.

    What such a GPU takes is not estimated, and the time limit was chosen for the other.
    """
    placement, asked = sizing.placement, sizing.asked
    chosen = next((each for each in placement.verdicts if each.name == placement.choice), None)
    if chosen is None or asked is None or not (chosen.gpu.speed and asked.gpu.speed):
        return ""
    times = chosen.gpu.speed.times_slower(asked.gpu.speed)
    if times < _SLOWER or chosen.share is not None:
        return ""
    return (
        f"\n{chosen.name} can be {times:.0f} times slower than {asked.name} (data sheets); "
        "the time limit stays"
    )


def _rank(sizing: Sizing) -> str:
    """Say what the chosen option is the best in, of all or of those no smaller, which would be no
    worse, and which were not tried.
    """
    placement = sizing.placement
    count, start = len(placement.verdicts), placement.starts.get(placement.choice or "")
    if placement.order == "memory":
        first = f"of {count} options the one that takes the least GPU memory"
    elif start is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(start))
        first = f"of {count} options the first to start ({when}, as Slurm expects)"
    else:
        cheapest = "cheapest on which it fits"
        if sizing.no_smaller:
            cheapest = "cheapest that is no smaller than what was asked for"
        first = f"of {count} options the {cheapest}" if count > 1 else "the only option"
        first += "; Slurm did not say when each would start" if placement.order == "start" else ""
    if sizing.untried:
        first += f"; {_no_time(sizing)}"
    if not placement.tied:
        return first
    are = "are" if len(placement.tied) > 1 else "is"
    return f"{first}; {', '.join(placement.tied)} {are} no better and no smaller"


def _no_time(sizing: Sizing) -> str:
    return f"no time was left to try {', '.join(sizing.untried)} (a larger --xmem-budget has it)"


def outcome(
    changes: Sequence[Change], sizing: Sizing, *, typed: bool, subject: str = "the request"
) -> str:
    """Say what was changed and why, or that it stays, and of what that is said; `typed` where the
    user had written a type of GPU.
    """
    if not changes:
        return f"{subject} stays as it is:\n{_offer(sizing)}"
    kept = " [XMEM_KEEP_TYPE=1 keeps the type you wrote]" if typed else ""
    return f"{_listed(changes)}:\n{_offer(sizing)}{_slower(sizing)}{kept}"


def advice(changes: Sequence[Change], sizing: Sizing, *, other: bool = False) -> str:
    """Say what would be changed if it were allowed; `other` where something else was."""
    subject = "the rest of the request" if other else "the request"
    if not changes:
        return outcome(changes, sizing, typed=False, subject=subject)
    nothing, offer = "nothing else" if other else "nothing", f"{_offer(sizing)}{_slower(sizing)}"
    return f"{nothing} was changed; this would do:\n{_listed(changes)}:\n{offer}"


def decision_lines(decision: Decision, *, dry_run: bool = False, brief: bool = False) -> list[str]:
    """Say of each component what it needs and what was decided of it; with `dry_run` nothing is
    submitted.
    """
    request, script = decision.written.request, decision.written.command_line.script
    sized = [
        decided.of_component(request, index, line)
        for index, part in sorted(decision.parts.items())
        for line in [
            *filter(None, [runs_out(part.kind, part.sizing)]),
            *filter(
                None,
                [
                    lacks_host_memory(
                        part.sizing.estimate, request.components[index], decision.raised
                    )
                ],
            ),
            *(brief_lines(part.sizing, script) if brief else estimate_lines(part.sizing.estimate)),
            *filter(
                None, (part.sizing.without_kernels, part.sizing.no_share, part.sizing.no_smaller)
            ),
            _decided(
                part,
                request.components[index],
                several=bool(request.other_components),
                dry_run=dry_run,
                raised=decision.raised is not None and decision.raised.change is not None,
            ),
            *([_IN_A_COPY] if part.in_a_copy else []),
        ]
    ]
    return sized + [
        decided.of_component(request, index, f"stays as written: {why}")
        for index, why in sorted(decision.left.items())
    ]


def _decided(part: Part, request: Request, *, several: bool, dry_run: bool, raised: bool) -> str:
    """Say what was decided of a component of a job, which may have `several`, beside host memory
    that was `raised`.
    """
    match part.kind:
        case Kind.NOTHING_FITS:
            why = too_small(part.sizing)
            return (
                f"stays as written: {why}" if several else decided.as_written(why, dry_run=dry_run)
            )
        case Kind.CANNOT_CHANGE:
            return f"stays as written: {part.why}"
        case Kind.ADVISED:
            return advice(part.changes, part.sizing, other=raised)
    if not part.changes:
        return advice((), part.sizing, other=raised)
    return outcome(part.changes, part.sizing, typed=bool(request.gpu_types))


def _listed(changes: Sequence[Change]) -> str:
    places = ", ".join(dict.fromkeys(change.where for change in changes))
    return f"{'; '.join(map(str, changes))} ({places})"


def runs_out(kind: Kind, sizing: Sizing) -> str:
    """Say of a job that stays as it was written that it will run out of GPU memory; nothing where
    it will not.
    """
    requested = sizing.asked
    if kind not in (Kind.NOTHING_FITS, Kind.ADVISED, Kind.CANNOT_CHANGE) or sizing.no_smaller:
        return ""
    needed = human(sizing.estimate.required_bytes)
    will = "is likely to" if sizing.estimate.confidence == "low" else "will"
    if requested is not None and requested.fits is False:
        has = f"{requested.name}, which it asks for, has {human(requested.gpu.total_bytes)}"
        return f"this job {will} run out of GPU memory: it needs {needed}, and {has}"
    verdicts = sizing.placement.verdicts
    if (
        kind is not Kind.NOTHING_FITS
        or not verdicts
        or any(verdict.share is not None for verdict in verdicts)
    ):
        return ""
    if any(sizing.estimate.fits(verdict.gpu) for verdict in verdicts):
        return ""  # it was not tried on every GPU
    largest = human(max(verdict.gpu.total_bytes for verdict in verdicts))
    return (
        f"this job {will} run out of GPU memory: it needs {needed}, and the largest GPU open to "
        f"it has {largest}"
    )


def too_small(sizing: Sizing) -> str:
    """Say why no option was chosen."""
    verdicts = sizing.placement.verdicts
    if verdicts and all(verdict.share is not None for verdict in verdicts):
        return (
            "no share of a GPU that is open to this job is large enough, or nothing would hold "
            "the job to it"
        )
    if sizing.untried:
        return f"no GPU that was tried is large enough; {_no_time(sizing)}"
    largest = max((v.gpu.total_bytes for v in verdicts), default=0)
    if largest:
        return f"no GPU option open to this job is large enough; the largest has {human(largest)}"
    return (
        "the site file has no nodes for this partition, constraint and number of GPUs "
        "(--exclusive: all of a node)"
    )


def tell_every(seconds: float) -> None:
    """Have `progress` say so often where it is, without a terminal: a program reads it."""
    _reader_seconds.set(seconds)


@contextmanager
def progress(
    text: str, seconds: float | None = None, *, verbose: bool = False
) -> Iterator[Callable[[str], None]]:
    """Show what is going on, and where a dry run is, if it lasts `PATIENCE_SECONDS`; yield how to
    change the words.

    On a terminal that is one line, which is gone in the end. Elsewhere there is none, or with
    `verbose` one every `NEWS_SECONDS`, or for a program as often as that wants it (`tell_every`).
    `seconds` is what the dry runs may take.
    """
    every = _reader_seconds.get()
    with live_progress.somebody_waits() as dry_run:
        line = _ProgressLine(text, seconds, dry_run, NEWS_SECONDS if every is None else every)
        if sys.stderr.isatty():
            from rich.console import Console  # noqa: PLC0415 - a batch script's submission has no use for it

            status = Console(stderr=True).status(line, refresh_per_second=_REFRESHES)
            begin, end = status.start, status.stop
        else:
            begin, end = line.print_now_and_then, line.end
        later = threading.Timer(PATIENCE_SECONDS, begin)
        later.daemon = True
        if verbose or every is not None or sys.stderr.isatty():
            later.start()
        try:
            yield line.change
        finally:
            later.cancel()
            end()
            if later.ident is not None:
                later.join()
            end()


class _ProgressLine:
    """The line of progress, as it is now."""

    def __init__(
        self, text: str, seconds: float | None, dry_run: live_progress.Heard, every: float
    ) -> None:
        self._text, self._dry_run = text, dry_run
        self._budget, self._every = seconds, every
        self._began, self._ended = time.monotonic(), threading.Event()

    def change(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        words = self._dry_run.words()  # before what is spent: both come in one message
        if self._budget is None:
            spent = f"{time.monotonic() - self._began:.0f} s"
        else:
            spent = f"{self._dry_run.seconds} of {self._budget:.0f} CPU seconds"
        return f"{self._text}: {spent}, {words}"

    def __rich__(self) -> "Text":
        """Return it no wider than the terminal, less the spinner before it; as text, lest a name
        in brackets is taken for markup.
        """
        from rich.text import Text  # noqa: PLC0415 - only a terminal has a use for it

        return Text(str(self)[: max(20, shutil.get_terminal_size().columns - 3)])

    def print_now_and_then(self) -> None:
        while not self._ended.wait(self._every):
            print(self, file=sys.stderr, flush=True)  # noqa: T201

    def end(self) -> None:
        self._ended.set()
