"""What is said of each row of a source? An estimate, of a job that runs now or ran before, or the
reason for none.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType

from benchmarks.real_runs import checkouts, runs
from benchmarks.real_runs.rows import Row
from benchmarks.real_runs.runs import Result, Run
from xmem_slurm import __version__

NO_JOB = "no job answers this figure (benchmarks/real_runs/sources says which are answered)"


@dataclass(frozen=True)
class Means:
    """What jobs are run with: checkouts, Pythons by release of torch, where results are kept, how
    many at once.
    """

    repositories: Path
    pythons: Mapping[str, str]
    out: Path
    jobs: int


def of_source(rows: Sequence[Row], module: ModuleType | None, means: Means) -> Iterator[Result]:
    """Yield one result for each row of one source, whose `module` is None where nobody knows to run
    it.
    """
    path = means.out / f"{rows[0].source.replace('/', '+')}.jsonl"
    kept = {key: result for key, result in runs.load(path).items() if result.reason is None}
    yield from (
        replace(kept[row.key], ground_bytes=row.ground_bytes) for row in rows if row.key in kept
    )
    missing = sorted((row for row in rows if row.key not in kept), key=lambda row: row.commit)
    if module is None:
        yield from (_without(row, "its repository is not known here") for row in missing)
        return
    for commit, of_commit in groupby(missing, lambda row: row.commit):
        yield from _of_commit(list(of_commit), commit, module, means, path)


def _of_commit(
    rows: Sequence[Row], commit: str, module: ModuleType, means: Means, path: Path
) -> Iterator[Result]:
    """Run what answers these rows of one commit, and yield the results, which are appended to
    `path`, too.
    """
    with TemporaryDirectory(prefix="real-runs-") as data:
        folder = Path(data)
        try:
            checkout = checkouts.at(
                means.repositories, rows[0].source, commit, _made(folder / "checkouts")
            )
        except checkouts.CheckoutError as error:
            yield from (_without(row, str(error)) for row in rows)
            return
        found, refused = _laid_out(module, rows, checkout, folder / "all")
        waiting = {row.key: row for row in rows}
        for _, results in runs.run_missing(found, means.pythons, path, means.jobs):
            for result in results:
                row = waiting.pop(result.key)
                yield (
                    result
                    if result.reason is None
                    else replace(result, reason=_with_data(row, result.reason))
                )
        yield from (_without(row, refused.get(key, NO_JOB)) for key, row in waiting.items())


def _laid_out(
    module: ModuleType, rows: Sequence[Row], checkout: Path, folder: Path
) -> tuple[list[Run], Mapping[str, str]]:
    """Return the jobs for these rows, and by key why there is none for some: one by one where that
    fails for all.
    """
    try:
        return list(module.runs(rows, checkout, _made(folder))), {}
    except Exception as error:
        if len(rows) == 1:
            return [], {rows[0].key: f"its job cannot be laid out: {type(error).__name__}: {error}"}
    found: dict[tuple[str, ...], Run] = {}
    refused: dict[str, str] = {}
    for number, row in enumerate(rows):
        jobs, why = _laid_out(module, [row], checkout, folder.with_name(f"row-{number}"))
        refused |= why
        for job in jobs:
            which = job.key, job.script, job.torch
            before = found[which].rows if which in found else ()
            found[which] = replace(job, rows=[*before, *job.rows])
    return list(found.values()), refused


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _without(row: Row, reason: str) -> Result:
    """Return the result of a row that no job answers."""
    about = (
        row.key,
        row.source,
        row.metric,
        row.ground_bytes,
        time.strftime("%Y-%m-%d", time.gmtime()),
        "",
    )
    return Result(*about, __version__, "", 0, _with_data(row, reason))


def _with_data(row: Row, reason: str) -> str:
    """Return the reason, and what the data themselves say of it."""
    return f"{reason} (the data: {row.not_reproducible})" if row.not_reproducible else reason
