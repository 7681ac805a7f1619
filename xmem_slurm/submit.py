"""Submit a job: size it if it asks for a GPU, change its request if that is allowed, and become the real sbatch.

Whatever goes wrong on the way, the job is submitted as it was written, with one line on stderr that says why. stdout,
exit code and signals are sbatch's own, because the last act is exec. Imports here are few: a job without a GPU must not
wait for pydantic or jinja2.
"""

import contextlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from xmem_slurm import handover
from xmem_slurm.errors import NoEstimate, Refused, UnusedGpu, UsageError, XmemError
from xmem_slurm.slurm import client
from xmem_slurm.slurm.edit import Job
from xmem_slurm.slurm.refusal import refusal
from xmem_slurm.slurm.request import Request
from xmem_slurm.slurm.script import Script

if TYPE_CHECKING:
    from xmem_slurm import trace
    from xmem_slurm.site.schema import Gpu, Site
    from xmem_slurm.sizing import Sizing

MOST_SCRIPT_BYTES = 16 << 20
"""A longer script is not looked at: Slurm takes 4 MiB unless a site allows more (slurm.conf(5), max_script_size)."""

ENGINES = ("auto", "device", "profile")
"""How a job can be run dry (`engines`)."""

OWN_WORDS = ("off", "keep-type", "whole", "on")
"""What an #XMEM line can say; "on" is for the filter in every sbatch."""

_AS_WRITTEN = "submitted as written"
_UNASKED = "this job asks for no GPU, and would use one: ask for it with --gres=gpu:1"
_UNUSED = "this job asks for a GPU, and its dry run used none: it would start sooner without"
_ALL_THE_SAME = "XMEM_OFF=1 submits it all the same"


class Wishes(NamedTuple):
    """What the user wants of xsbatch itself: its options, XMEM_* variables and the script's #XMEM lines."""

    off: bool = False
    dry_run: bool = False
    keep_type: bool = False
    advise: bool = False
    budget_seconds: float = 60.0
    site: str | None = None
    report: str | None = None
    fresh: bool = False
    policy: str | None = None
    whole: bool = False
    engine: str | None = None
    ranks: str | None = None


class _Ready(NamedTuple):
    """What sbatch will be given, and what is told on stderr first; `fault` where we failed."""

    job: Job
    lines: Sequence[str] = ()
    fault: str | None = None


def submit(argv: Sequence[str], environ: Mapping[str, str], wishes: Wishes) -> NoReturn:
    """Submit as `sbatch *argv` would, with the GPU request made right; does not return.

    Raises:
        SlurmError: there is no sbatch to hand the job to.
    """
    sbatch = client.find_sbatch(environ)
    written = Job(tuple(argv), environ, None)
    if "XMEM_ACTIVE" in environ or (wishes.off and not wishes.dry_run):
        _hand_over(sbatch, written)
    with handover.clearing_up():
        try:
            written = _read(written, sbatch)
            ready = _prepare(written, wishes)
            if not wishes.dry_run:
                ready = ready._replace(job=_with_script_kept(ready.job, written))
            if ready.job != written:
                client.check_accepted(sbatch, _on_stdin(ready.job) if wishes.dry_run else ready.job)
        except Refused as error:
            tell([f"not submitted: {error}"])
            raise SystemExit(1) from None
        except XmemError as error:
            ready = _Ready(written, fault=str(error))
        except Exception as error:  # a fault of ours must not cost the user a job
            ready = _Ready(written, fault=f"{type(error).__name__}: {error}")
    quiet = written.command_line().has("quiet")
    would = "would be " if wishes.dry_run else ""
    told = [would + line if line.startswith(_AS_WRITTEN) else line for line in ready.lines]
    lines = [] if quiet else [*_unknown_words(written), *told]
    tell(lines if ready.fault is None else [*lines, f"{would}{_AS_WRITTEN}: {ready.fault}"])
    if wishes.dry_run:
        _show(ready.job, written, quiet=quiet)
    _hand_over(sbatch, ready.job)


def change(job: Job, wishes: Wishes, name: str) -> tuple[Job, Sequence[str]]:
    """Return what `submit` would give sbatch for a job whose script is read, and the lines for stderr.

    The answer is kept under `name` (`cache`).

    Raises:
        XmemError: the job goes as it was written; the message says why.
    """
    ready = _prepare(job, wishes, name)
    return ready.job, ready.lines


def _read(job: Job, sbatch: Path) -> Job:
    """Return the job with its script's bytes; None of them for --wrap, and for what need not or cannot be read.

    Where an option is not sbatch's own, the site's plugins are asked for theirs: its value may look like the script.
    """
    if job.command_line().unknown:
        job = job._replace(plugins=client.plugin_options(sbatch))
    command_line = job.command_line()
    if command_line.wrap is not None:
        return job
    if command_line.reads_stdin:
        return job._replace(script=_read_stdin(job))
    path = client.find_script(command_line, job.environ)
    if path is None or not _is_readable(path):
        return job
    job = job._replace(script=path.read_bytes())
    script = job.parsed_script() if refusal(job) is None else None
    if script is not None and script.unknown and not job.plugins:
        job = job._replace(plugins=client.plugin_options(sbatch))
    return job


def _read_stdin(job: Job) -> bytes | None:
    """Read the script; None where nobody could, or where sbatch will refuse the options before a user has typed it."""
    if sys.stdin is None:
        return None
    if sys.stdin.isatty() and (job.command_line().unknown or refusal(job) is not None):
        return None
    return sys.stdin.buffer.read()


def _is_readable(path: Path) -> bool:
    """Whether there is a script of reasonable size to be read; where not, sbatch has its own words for it."""
    status = path.stat()
    if stat.S_ISFIFO(status.st_mode):
        return True
    return stat.S_ISREG(status.st_mode) and status.st_size <= MOST_SCRIPT_BYTES and os.access(path, os.R_OK)


def _prepare(job: Job, wishes: Wishes, name: str | None = None) -> _Ready:
    """Size the job and change its request; as it is where it asks for no GPU, or where sbatch will refuse it anyway."""
    if (job.script is None and job.command_line().wrap is None) or refusal(job) is not None:
        return _Ready(job)
    request = job.request()
    words = _own_words(job.parsed_script()) if request.asks_for_gpu else {}
    if wishes.off or "off" in words:
        return _Ready(job)
    if not request.asks_for_gpu:
        return _unasked(job, wishes, name)
    keep_type = wishes.keep_type or "keep-type" in words
    whole = wishes.whole or "whole" in words
    return _answer(job, request, wishes._replace(keep_type=keep_type, whole=whole), name)


def _answer(job: Job, request: Request, wishes: Wishes, name: str | None) -> _Ready:
    """Return what is known of this submission, or size it; `name` is what it is known under, if not by the wishes.

    Raises:
        NoEstimate: nothing of it can be estimated.
    """
    if request.foreign is not None:
        raise NoEstimate(f"its #{request.foreign} lines are translated by sbatch alone; say the same in #SBATCH lines")
    refused = _refused(request)
    _check_any_left(request, refused)
    from xmem_slurm import cache  # noqa: PLC0415

    name = name or cache.key(job, wishes)
    kept = cache.look_up(name, job) if wishes.report is None and not wishes.fresh else None
    return _Ready(*kept) if kept is not None else _size(job, refused, wishes, name)


def _unasked(job: Job, wishes: Wishes, name: str | None) -> _Ready:
    """Say of a job that asks for no GPU that it would use one, where the site wants that, and as far as it is seen.

    Raises:
        Refused: it would, and the site wants no such job.
    """
    from xmem_slurm.site import unasked  # noqa: PLC0415

    stance = unasked.stance(wishes.site, job.environ)
    if stance == "leave" or job.request().others or "off" in _own_words(job.parsed_script()):
        return _Ready(job)
    asking = job._replace(argv=("--gres=gpu:1", *job.argv))
    seconds = min(wishes.budget_seconds, unasked.MOST_SECONDS)
    try:
        brief = wishes._replace(advise=True, budget_seconds=seconds)
        lines = _answer(asking, asking.request(), brief, f"{name}-asking" if name else None).lines
    except XmemError:
        return _Ready(job)
    if any(line.startswith((_AS_WRITTEN, _UNUSED)) for line in lines):
        return _Ready(job)
    if stance == "refuse" and not wishes.advise:
        raise Refused(f"{_UNASKED}; {lines[0]}; {_ALL_THE_SAME}")
    return _Ready(job, [_UNASKED, *lines])


def _own_words(script: Script | None) -> Mapping[str, int]:
    """Return the words of the #XMEM lines, and the line of each."""
    return {word: line.line for line in (script.own if script is not None else ()) for word in line.words}


def _unknown_words(job: Job) -> list[str]:
    if job.script is None or b"#XMEM" not in job.script or refusal(job) is not None:
        return []
    words = _own_words(job.parsed_script())
    return [f"line {n} of the script: #XMEM {word}: no such word" for word, n in words.items() if word not in OWN_WORDS]


def _refused(request: Request) -> Mapping[int, str]:
    """Return why components that ask for GPUs cannot be estimated, by their number; an ordinary job is its only one."""
    reasons = {index: _why_not(request, request.components[index]) for index in request.with_gpus}
    return {index: why for index, why in reasons.items() if why is not None}


def _why_not(job: Request, component: Request) -> str | None:
    resources = {each.resource for each in component.accelerators}
    if resources - {"gpu"}:
        several = len(component.accelerators) > 1 or component.ntasks > 1 or (component.nodes or 1) > 1
        if several or job.others:
            return f"a request for {' and '.join(sorted(resources))} is changed for one process only"
        return None
    return "how many GPUs the job gets is left to the scheduler" if component.gpus_total is None else None


def _check_any_left(request: Request, refused: Mapping[int, str]) -> None:
    """Make sure that there is something to change.

    Raises:
        NoEstimate: every component that asks for GPUs is `refused`.
    """
    if len(refused) == len(request.with_gpus):
        same = len(set(refused.values())) == 1
        told = [next(iter(refused.values()))] if same else [_of(request, *each) for each in sorted(refused.items())]
        raise NoEstimate("; ".join(told))


def _of(request: Request, component: int, text: str) -> str:
    """Say of which component of a heterogeneous job something is said."""
    return f"component {component}: {text}" if request.others else text


def _size(job: Job, refused: Mapping[int, str], wishes: Wishes, name: str) -> _Ready:
    """Run dry, estimate and place each component that is not `refused`, rewrite, and keep the answer under `name`.

    Everything heavy is imported here, where a GPU job waits seconds anyway.
    """
    from xmem_slurm import cache, sizing, starts  # noqa: PLC0415
    from xmem_slurm.dryrun import runner  # noqa: PLC0415
    from xmem_slurm.report import terminal  # noqa: PLC0415
    from xmem_slurm.site import loading, places  # noqa: PLC0415

    request, site_file = job.request(), places.site_file(wishes.site, job.environ)
    site = loading.load_site(site_file).ordered_by(wishes.policy)
    site = site.without_shares() if wishes.whole else site
    basis = _basis(job, request, site_file, site.templates)
    gpus = loading.option_gpus(site, loading.load_catalogue())
    with terminal.progress("running the job dry to see how much GPU memory it needs"):
        answers = sizing.size_components(
            _to_run_dry(job, wishes),
            [index for index in request.with_gpus if index not in refused],
            site,
            gpus,
            runner.Budget(seconds=wishes.budget_seconds),
            starts=lambda names, component: starts.expected(
                client.find_sbatch(job.environ), job, site, names, component
            ),
        )
    sized = {index: each for index, each in answers.items() if isinstance(each, sizing.Sizing)}
    failed = {**refused, **{index: str(answers[index]) for index in answers.keys() - sized.keys()}}
    try:
        _check_any_left(request, failed)
    except NoEstimate as error:
        seen = [each.files for each in answers.values() if isinstance(each, NoEstimate)]
        told = [f"{_AS_WRITTEN}: {error} [--xmem-fresh tries again]"]
        unused = not refused and all(isinstance(each, UnusedGpu) for each in answers.values())
        if unused and site.policy.unused != "leave":
            if site.policy.unused == "refuse" and not wishes.advise:
                raise Refused(f"{_UNUSED}; {_ALL_THE_SAME}") from error
            told = [f"{_UNUSED} (as far as torch's use is seen)"]
        if basis is not None and None not in seen:
            read = [file for files in seen for file in files or ()]
            cache.keep(name, job, cache.Answer(job, told), [*basis, *read], cache.DAYS_WITHOUT_ESTIMATE)
        if not told[0].startswith(_AS_WRITTEN):
            return _Ready(job, told)
        raise
    ready = _decide(job, wishes, site, gpus, sized)
    left = [_of(request, index, f"stays as written: {why}") for index, why in sorted(failed.items())]
    ready = ready._replace(lines=[*ready.lines, *left, *_report(wishes, sized, site)])
    ranks = [rank.trace for each in sized.values() for rank in each.estimate.ranks]
    lasting = site.policy.order != "start"  # the queue is another one each time
    if basis is not None and lasting and not failed and all(trace.files and not trace.growing for trace in ranks):
        read = [file for trace in ranks for file in trace.files]
        cache.keep(name, job, cache.Answer(ready.job, ready.lines), [*basis, *read])
    return ready


def _report(wishes: Wishes, sized: "Mapping[int, Sizing]", site: "Site") -> list[str]:
    """Write the report that is asked for; return the line that says why there is none."""
    from xmem_slurm import report  # noqa: PLC0415

    try:
        if wishes.report is not None:
            report.write(Path(wishes.report), sized, site.templates)
    except (OSError, XmemError) as error:
        return [f"no report: {error}"]
    return []


def _to_run_dry(job: Job, wishes: Wishes) -> Job:
    """Return the job that is run dry; the one that is submitted knows nothing of engines and of ranks that are run."""
    told = {"XMEM_ENGINE": wishes.engine, "XMEM_RANKS": wishes.ranks}
    return job._replace(environ={**job.environ, **{name: value for name, value in told.items() if value is not None}})


def _basis(job: Job, request: Request, site_file: Path, templates: Path | None) -> "list[trace.File] | None":
    """Return what the answer rests on beside what Python reads, as it is now; None where that cannot be told.

    The site file and those that would go before it, the GPU catalogue, the template of a changed script (in the site's
    own folder `templates`, too), and what the batch script names.
    """
    from xmem_slurm import cache, jobsteps, resources, scriptfiles  # noqa: PLC0415
    from xmem_slurm.site import places  # noqa: PLC0415

    try:
        folder = Path(request.chdir or ".").absolute()
        shell = jobsteps.is_for_a_shell(job)  # a Python script says itself what it reads
        named = scriptfiles.named_files(jobsteps.text(job), folder, job.environ) if shell else set()
    except (scriptfiles.Unknown, OSError):
        return None
    facts = {site_file.absolute(), *resources.tree("site-config").glob("*.toml"), *places.site_places()}
    facts |= {place / "batch.sh.j2" for place in resources.template_places(own=templates)}
    return [cache.as_it_is(path) for path in facts | named]


def _decide(job: Job, wishes: Wishes, site: "Site", gpus: "Mapping[str, Gpu]", sized: "Mapping[int, Sizing]") -> _Ready:
    """Change each component's request to the option that was chosen, if that is allowed.

    Components of a heterogeneous job that get the same option are changed together: one place may set it for them.

    Raises:
        UsageError: an ordinary job's request cannot be changed.
    """
    from xmem_slurm import rewrite, sharing  # noqa: PLC0415
    from xmem_slurm.report import terminal  # noqa: PLC0415

    request, ready = job.request(), job
    lines = {index: terminal.estimate_lines(each.estimate) for index, each in sized.items()}
    together: dict[str, list[int]] = {}
    for index, each in sized.items():
        typed, choice = request.components[index].gpu_types, each.placement.choice
        if choice is None:
            nothing = f"stays as written: {terminal.too_small(each)}" if request.others else terminal.nothing_fits(each)
            lines[index].append(nothing)
        elif wishes.advise or not site.policy.rewrite or (typed and (wishes.keep_type or site.policy.keep_type)):
            lines[index].append(terminal.advice(each))
        else:
            together.setdefault(choice, []).append(index)
    for choice, indexes in together.items():
        option, units = site.option[choice], sized[indexes[0]].placement.units
        granted = sharing.grant(option, gpus[choice], units, job.environ) if option.share is not None else None
        reason = "; ".join(_of(request, index, terminal.reason(sized[index])) for index in indexes)
        try:
            ready, changes = rewrite.rewrite(
                ready, option, reason, granted, indexes, spelled=site.dialect, templates=site.templates
            )
        except UsageError as error:
            if not request.others:
                raise
            for index in indexes:
                lines[index].append(f"stays as written: {error}")
            continue
        for index in indexes:
            own = [c for c in changes if c.component == index or (c.command and index == indexes[0])]
            lines[index].append(terminal.outcome(own, sized[index]))
    return _Ready(ready, [_of(request, index, line) for index, told in sorted(lines.items()) for line in told])


def tell(lines: Sequence[str], prefix: str = "xsbatch: ") -> None:
    """Write on stderr, if there is one and somebody still reads it: a job is not lost over that."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            sys.stderr.writelines(f"{prefix}{line}\n" for line in lines)
            sys.stderr.flush()


def _show(job: Job, written: Job, *, quiet: bool) -> NoReturn:
    """Print a script that plain sbatch makes the same job of; on stderr what is changed in it, and how to submit it."""
    import shlex  # noqa: PLC0415

    from xmem_slurm import folding  # noqa: PLC0415

    refused = refusal(written)
    if refused is not None or (job.script is None and job.command_line().wrap is None):
        tell([f"sbatch would refuse this job: {refused or 'its script cannot be read'}"])
        raise SystemExit(1)
    folded = folding.fold(job, written.environ)
    if not quiet:
        tell(folding.differences(written, job, folded), prefix="")
        why = f" ({folded.reason})" if folded.reason is not None else ""
        tell([f"nothing was submitted; as {folding.FILE} this is submitted by: {shlex.join(folded.words)}{why}"])
    handover.die_of_broken_pipe()
    sys.stdout.buffer.write(folded.script)
    sys.stdout.flush()
    raise SystemExit(0)


def _on_stdin(job: Job) -> Job:
    """Return the job as sbatch would be given it without a file of its script."""
    return job._replace(argv=job.argv[: job.command_line().script_index])


def _with_script_kept(job: Job, written: Job) -> Job:
    """Let a script file that was changed go by a copy of its own name: the user's file is never touched.

    So does one in a named pipe, whose content is gone from there. One that is named by its descriptor (`/dev/fd/63`, as
    a shell writes `<(command)`) is put back there, by `_hand_over`.
    """
    index = job.command_line().script_index
    if index is None or job.script is None or _descriptor(job) is not None:
        return job
    if job.script == written.script and not _is_pipe(job):
        return job
    from xmem_slurm import kept  # noqa: PLC0415

    return _with_path(job, str(kept.keep(job.argv[index].rpartition("/")[2], job.script)))


def _with_path(job: Job, path: str) -> Job:
    index = job.command_line().script_index
    assert index is not None
    return job._replace(argv=(*job.argv[:index], path, *job.argv[index + 1 :]))


def _hand_over(sbatch: Path, job: Job) -> NoReturn:
    """Become sbatch, with a script that can be read only once put back where it was read."""
    if job.script is not None:
        descriptor = _descriptor(job)
        if descriptor is None and _is_pipe(job):  # there was nowhere to keep it: the job takes its name from /dev/fd
            descriptor = os.memfd_create("xsbatch")
            job = _with_path(job, f"/dev/fd/{descriptor}")
        if descriptor is not None:
            handover.replay(job.script or b"", descriptor)
    handover.become(sbatch, job.argv, client.guarded(job.environ, sbatch))


def _descriptor(job: Job) -> int | None:
    """Return the descriptor of ours from which sbatch reads the script; None where it reads a file of that name."""
    line = job.command_line()
    if line.reads_stdin or line.script == "/dev/stdin":
        return 0
    folder, _, number = (line.script or "").rpartition("/")
    return int(number) if folder in ("/dev/fd", "/proc/self/fd") and number.isdecimal() else None


def _is_pipe(job: Job) -> bool:
    path = client.find_script(job.command_line(), job.environ)
    return path is not None and path.is_fifo()
