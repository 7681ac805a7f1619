"""What is different between two estimates? Need and peaks, categories, lines and modules, and where
each fits.
"""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from xmem_slurm import resources
from xmem_slurm.report.categories import CATEGORY_NAMES
from xmem_slurm.report.json import JsonPart, Rank, Report
from xmem_slurm.report.terminal import ANSWERS
from xmem_slurm.trace import Category
from xmem_slurm.units import human

_Bytes = Annotated[int, Field(ge=0)]
_WIDE = 10_000
"""Columns where nobody looks: each row is a line."""
_MOST_PLACES = 10


class BytesOf(JsonPart):
    """Bytes in the one estimate and in the other."""

    before: _Bytes
    after: _Bytes

    @property
    def difference(self) -> int:
        """How much more there is."""
        return self.after - self.before


class Place(BytesOf):
    """What is alive at the peak and was asked for at one place: a module, and a line outside of
    torch.
    """

    category: Category
    module: str | None
    file: str | None
    line: int | None


class Fit(JsonPart):
    """Whether each fits a GPU option; null where it was not asked, or the option is not there."""

    name: str
    before: bool | None
    after: bool | None


class Comparison(JsonPart):
    """What `xmem-slurm compare --json` prints: of the rank that needs the most in each, largest
    changes first.
    """

    schema_version: Literal[1]
    required_bytes: BytesOf
    peak_allocated_bytes: BytesOf
    peak_reserved_bytes: BytesOf
    margin_bytes: BytesOf
    breakdown: dict[Category, BytesOf]
    places: list[Place]
    options: list[Fit]


class _Site(NamedTuple):
    category: Category
    module: str | None
    file: str | None
    line: int | None


def compare(before: Report, after: Report) -> Comparison:
    """Compare two estimates. Places are those of the largest blocks that each names."""
    largest_before = max(before.ranks, key=lambda rank: rank.required_bytes)
    largest_after = max(after.ranks, key=lambda rank: rank.required_bytes)
    sites = [_sites(rank) for rank in (largest_before, largest_after)]
    places = [
        Place(before=sites[0][site], after=sites[1][site], **site._asdict())
        for site in sites[0] | sites[1]
    ]
    changed = [place for place in places if place.difference]
    changed.sort(key=lambda place: -abs(place.difference))
    fits = [{option.name: option.fits for option in report.options} for report in (before, after)]
    return Comparison(
        schema_version=1,
        required_bytes=BytesOf(before=before.required_bytes, after=after.required_bytes),
        peak_allocated_bytes=BytesOf(
            before=largest_before.peak_allocated_bytes, after=largest_after.peak_allocated_bytes
        ),
        peak_reserved_bytes=BytesOf(
            before=largest_before.peak_reserved_bytes, after=largest_after.peak_reserved_bytes
        ),
        margin_bytes=BytesOf(before=before.margin_bytes, after=after.margin_bytes),
        breakdown={
            category: BytesOf(
                before=largest_before.breakdown[category], after=largest_after.breakdown[category]
            )
            for category in Category
        },
        places=changed[:_MOST_PLACES],
        options=[
            Fit(name=name, before=fits[0].get(name), after=fits[1].get(name))
            for name in fits[0] | fits[1]
        ],
    )


def _sites(rank: Rank) -> Counter[_Site]:
    sizes = Counter[_Site]()
    for group in rank.largest:
        sizes[_Site(group.category, group.module, group.file, group.line)] += (
            group.blocks * group.bytes_each
        )
    return sizes


def lines(comparison: Comparison, names: Sequence[str], columns: int = _WIDE) -> list[str]:
    """Say it in lines for a terminal of so many columns, where what is long goes on below."""
    from rich.console import Console  # noqa: PLC0415 - a page does without
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="none")
    for name in ("", *names, "difference"):
        table.add_column(Text(name), overflow="fold")
    for row in rows(comparison):
        table.add_row(*map(Text, row))
    console = Console(width=columns, color_system=None, file=io.StringIO())
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def rows(comparison: Comparison) -> Iterator[tuple[str, str, str, str]]:
    """Yield what is compared, in the one, in the other, and the difference, in words."""
    yield _row("GPU memory needed", comparison.required_bytes)
    yield _row("margin in it", comparison.margin_bytes)
    yield _row("peak reserved", comparison.peak_reserved_bytes)
    yield _row("peak allocated", comparison.peak_allocated_bytes)
    for category, sizes in sorted(
        comparison.breakdown.items(), key=lambda entry: -abs(entry[1].difference)
    ):
        if sizes.before or sizes.after:
            yield _row(f"  {CATEGORY_NAMES[category]}", sizes)
    for place in comparison.places:
        where = ", ".join(
            filter(
                None, [place.module, place.file and f"{place.file.rpartition('/')[2]}:{place.line}"]
            )
        )
        yield _row(f"  {CATEGORY_NAMES[place.category]} ({where or 'not known where'})", place)
    for option in comparison.options:
        yield (
            option.name,
            ANSWERS[option.before],
            ANSWERS[option.after],
            "" if option.before is option.after else "*",
        )


def _row(label: str, sizes: BytesOf) -> tuple[str, str, str, str]:
    sign = "-" if sizes.difference < 0 else "+"
    return (
        label,
        human(sizes.before),
        human(sizes.after),
        f"{sign}{human(abs(sizes.difference))}" if sizes.difference else "same",
    )


def page(comparison: Comparison, names: Sequence[str]) -> str:
    """Return the table as one HTML file that needs nothing else."""
    values = {
        "names": names,
        "rows": list(rows(comparison)),
        "document": comparison.model_dump(mode="json"),
    }
    return resources.render(
        resources.template_places("report"), "comparison.html.j2", values, html=True
    )
