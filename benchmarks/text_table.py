"""How does a table look as plain text, and in Markdown?"""

from collections.abc import Iterable, Sequence


def text_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return lines with columns aligned: the first to the left, the others to the right."""
    lines = [list(headings), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return [
        "  ".join(
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(pairs)
        )
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    ]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a Markdown table, the first column to the left, the others to the right."""
    rule = ["---", *["---:"] * (len(headings) - 1)]
    return [f"| {' | '.join(line)} |" for line in [list(headings), rule, *map(list, rows)]]
