"""What do the errors look like? A scatter plot as one SVG file, with no script and nothing fetched."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

GIB = 2**30
WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 44
LARGEST_ERROR = 0.20
"""Errors beyond this are drawn at the edge."""
COLOURS = ("#1668b0", "#c2701b", "#4f8a3c", "#8a4f8a")


@dataclass(frozen=True)
class Point:
    """One estimate of one run: what was measured (bytes), the signed relative error, whose, and which run."""

    ground_bytes: int
    error: float
    tool: str
    label: str


def error_plot(points: Sequence[Point]) -> str:
    """Draw the error (percent, upwards too much) over the measured peak (GiB), one colour for each tool."""
    widest = max([point.ground_bytes for point in points], default=GIB) * 1.03
    tools = list(dict.fromkeys(point.tool for point in points))

    def x(size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * size / widest

    def y(error: float) -> float:
        clipped = max(-LARGEST_ERROR, min(LARGEST_ERROR, error))
        return TOP + (HEIGHT - TOP - BOTTOM) * (LARGEST_ERROR - clipped) / (2 * LARGEST_ERROR)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for step in range(-4, 5):
        error = step * LARGEST_ERROR / 4
        colour = "#555555" if step == 0 else "#dddddd"
        parts.append(f'<path d="M{LEFT} {y(error):.1f}H{WIDTH - RIGHT}" stroke="{colour}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(error) + 4:.1f}" text-anchor="end">{100 * error:+.0f} %</text>')
    parts += [
        f'<text x="{x(gib * GIB):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{gib}</text>'
        for gib in range(0, int(widest / GIB) + 1, 2)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">measured peak, GiB</text>')
    for number, tool in enumerate(tools):
        colour, place = COLOURS[number % len(COLOURS)], LEFT + 120 * number
        parts.append(f'<circle cx="{place + 6}" cy="16" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{place + 16}" y="20">{escape(tool)}</text>')
        parts += [
            f'<circle cx="{x(point.ground_bytes):.1f}" cy="{y(point.error):.1f}" r="3" fill="{colour}" '
            f'fill-opacity="0.6"><title>{escape(point.label)}: {100 * point.error:+.1f} %</title></circle>'
            for point in points
            if point.tool == tool
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
