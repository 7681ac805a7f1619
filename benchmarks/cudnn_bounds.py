"""Do no workspace and a newer cuDNN's plans bound what published runs of a cuDNN that cannot be asked held?

From benchmarks/data alone: the same rows estimated twice, with torch 2.6.0, as they ran (cuDNN 9.1.0, which does not
answer without a GPU: no workspace), and with torch 2.8.0, the oldest whose cuDNN (9.10.2) is asked for its plans on the
row's GPU. `python -m benchmarks.published_runs --python P --out benchmarks/data` appends to the second (`PLANS`).
"""

from collections.abc import Mapping, Sequence

from benchmarks.published_dry_runs import Result
from benchmarks.published_metrics import quantile
from benchmarks.published_rows import Row
from benchmarks.published_runs import DATA
from benchmarks.text_table import markdown_table
from xmem_slurm.units import MIB

PLANS = DATA / "published_runs-2.8.0.jsonl"
HEADINGS = ("model", "optimizer", "batch", "GPU", "ground MiB", "no workspace MiB", "9.10's plans MiB", "the ground is")


def table(rows: Sequence[Row], without: Mapping[str, Result], plans: Mapping[str, Result]) -> list[str]:
    """Return a Markdown table of the rows that have both, and in one line how many lie between."""
    both = [
        (row, (without[row.key].peak_on_gpu_bytes, plans[row.key].peak_on_gpu_bytes))
        for row in sorted(rows, key=lambda row: (row.model, row.batch_size))
        if row.key in plans and row.key in without
    ]
    places = [place(row.ground_bytes, peaks) for row, peaks in both]
    cells = [
        [row.model, row.optimizer, str(row.batch_size), row.gpu.removeprefix("NVIDIA GeForce ")]
        + [f"{size / MIB:.0f}" for size in (row.ground_bytes, *peaks)]
        + [where]
        for (row, peaks), where in zip(both, places, strict=True)
    ]
    apart = quantile([abs(most / least - 1) for _, (least, most) in both], 0.5)
    between = sum(where == "between" for where in places)
    said = f"{between} of {len(both)} lie between the two, which are {100 * apart:.1f} % apart in the median."
    return [*markdown_table(HEADINGS, cells), "", said]


def place(ground: int, peaks: Sequence[int]) -> str:
    """Say where a ground lies of two estimates: between them, or how far below or above both."""
    low, high = min(peaks), max(peaks)
    if low <= ground <= high:
        return "between"
    return f"{100 * (1 - ground / low):.1f} % below" if ground < low else f"{100 * (ground / high - 1):.1f} % above"
