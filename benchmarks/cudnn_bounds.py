"""Do a newer cuDNN's plans bound what published runs of a cuDNN that cannot be asked held, and is
their need enough?

From benchmarks/data alone: the rows of CNNs estimated with torch 2.8.0, the oldest whose cuDNN
(9.10.2) is asked for its plans on the row's GPU; they ran with torch 2.6.0 and cuDNN 9.1.0, which
does not answer without a GPU. `python -m benchmarks.published_runs --python P --out
benchmarks/data` appends to these estimates (`PLANS`).
"""

from collections.abc import Mapping, Sequence

from benchmarks.published_dry_runs import Result
from benchmarks.published_metrics import quantile
from benchmarks.published_rows import Row
from benchmarks.published_runs import DATA
from benchmarks.text_table import markdown_table
from xmem_slurm.units import MIB

PLANS = DATA / "published_runs-2.8.0.jsonl"
HEADINGS = (
    "model", "runs", "peak over ground, least % .. most %", ("ground is at most that with the "
                                                            "largest plans"),
    "need over ground, median %", "lives on its need", "not known", "dies on it",
)  # fmt: skip
BEYOND = ("run", "ground MiB", "first plans MiB", "largest plans MiB")


def table(rows: Sequence[Row], plans: Mapping[str, Result]) -> list[str]:
    """Return a Markdown table, a line for each model, of runs that did not end in OOM."""
    known = [(row, plans[row.key]) for row in rows if not row.real_oom and row.key in plans]
    models = sorted({row.model for row, _ in known})
    lines = [_line(model, [each for each in known if each[0].model == model]) for model in models]
    return markdown_table(HEADINGS, [*lines, _line("all", known)])


def beyond(rows: Sequence[Row], plans: Mapping[str, Result]) -> list[str]:
    """Return a Markdown table of the runs whose ground is above what the largest plans make of
    it.
    """
    found = [
        [f"{row.model} {row.optimizer} {row.batch_size}"]
        + [
            f"{size / MIB:.0f}"
            for size in (row.ground_bytes, result.peak_on_gpu_bytes, result.at_most_on_gpu_bytes)
        ]
        for row, result in (
            (row, plans[row.key]) for row in rows if not row.real_oom and row.key in plans
        )
        if row.ground_bytes > at_most(result)
    ]
    return markdown_table(BEYOND, sorted(found))


def at_most(result: Result) -> int:
    """Return what is reserved on the row's GPU, with first or largest plans: a larger one may find
    a better place.
    """
    return max(result.peak_on_gpu_bytes, result.at_most_on_gpu_bytes)


def _line(name: str, known: Sequence[tuple[Row, Result]]) -> list[str]:
    """Say of these runs how they are bounded, and whether they are known to live on their need,
    margin and all.
    """
    errors = [100 * (result.peak_on_gpu_bytes / row.ground_bytes - 1) for row, result in known]
    needs = [(row, result.fits_in_bytes + result.margin_bytes) for row, result in known]
    dies = [row.dies_when_capped_at(need) for row, need in needs]
    held = sum(row.ground_bytes <= at_most(result) for row, result in known)
    return [
        name,
        str(len(known)),
        f"{min(errors):+.1f} .. {max(errors):+.1f}",
        f"{held} of {len(known)}",
        f"{quantile([100 * (need / row.ground_bytes - 1) for row, need in needs], 0.5):+.1f}",
        *(str(dies.count(outcome)) for outcome in (False, None, True)),
    ]
