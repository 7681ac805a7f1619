"""How often does an estimate fail, and how far is it off? The paper's plot of both, a point for each tool and model."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.error_plot import BOTTOM, COLOURS, HEIGHT, LEFT, RIGHT, TOP, WIDTH

LARGEST_ERROR = 0.60
"""Errors beyond this are drawn at the edge."""
COLOURS_OF_MANY = (*COLOURS, "#a33b3b", "#6b6b6b", "#2f8f8f", "#b08900", "#333399")
SPLIT = 0.20
"""Where the quadrants meet: errors and failures of a fifth."""


@dataclass(frozen=True)
class Point:
    """One tool on the runs of one model: median relative error and probability of estimation failure, as shares."""

    error: float
    failure: float
    tool: str
    label: str


def quadrant_plot(points: Sequence[Point]) -> str:
    """Draw the probability of failure over the median relative error: the best is at the lower left."""
    tools = list(dict.fromkeys(point.tool for point in points))

    def x(error: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(error, LARGEST_ERROR) / LARGEST_ERROR

    def y(failure: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * failure

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<path d="M{LEFT} {y(SPLIT):.1f}H{WIDTH - RIGHT}M{x(SPLIT):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#999999"/>',
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#555555" fill="none"/>',
    ]
    parts += [
        f'<text x="{LEFT - 6}" y="{y(percent / 100) + 4:.1f}" text-anchor="end">{percent} %</text>'
        for percent in range(0, 101, 20)
    ]
    parts += [
        f'<text x="{x(percent / 100):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{percent} %</text>'
        for percent in range(0, round(100 * LARGEST_ERROR) + 1, 10)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">median relative error (MRE)</text>')
    parts.append(f'<text x="{LEFT + 6}" y="{TOP + 12}">probability of estimation failure (PEF)</text>')
    for number, tool in enumerate(tools):
        colour, place = COLOURS_OF_MANY[number % len(COLOURS_OF_MANY)], LEFT + 88 * number
        parts.append(f'<circle cx="{place + 6}" cy="16" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{place + 14}" y="20">{escape(tool)}</text>')
        parts += [
            f'<circle cx="{x(point.error):.1f}" cy="{y(point.failure):.1f}" r="5" fill="{colour}" fill-opacity="0.6">'
            f"<title>{escape(tool)}, {escape(point.label)}: {100 * point.error:.1f} %, {100 * point.failure:.0f} %"
            "</title></circle>"
            for point in points
            if point.tool == tool
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
