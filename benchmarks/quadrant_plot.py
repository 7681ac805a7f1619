"""How often does an estimate fail, and how far is it off? The paper's plot of both, a point for
each tool and model.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.scatter_plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Dot, scatter_plot

LARGEST_ERROR = 0.60
"""Errors beyond this are drawn at the edge."""
SPLIT = 0.20
"""Where the quadrants meet: errors and failures of a fifth."""


@dataclass(frozen=True)
class Point:
    """One tool on the runs of one model: median relative error and probability of estimation
    failure, as shares.
    """

    error: float
    failure: float
    tool: str
    label: str


def quadrant_plot(points: Sequence[Point]) -> str:
    """Draw the probability of failure over the median relative error: the best is at the lower
    left.
    """

    def x(error: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(error, LARGEST_ERROR) / LARGEST_ERROR

    def y(failure: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * failure

    axes = [
        (
            f'<path d="M{LEFT} {y(SPLIT):.1f}H{WIDTH - RIGHT}M{x(SPLIT):.1f} {TOP}V{HEIGHT - BOTTOM}" '
            'stroke="#999999"/>'
        ),
        f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" stroke="#555555" fill="none"/>',
        f'<text x="{LEFT + 6}" y="{TOP + 12}">probability of estimation failure (PEF)</text>',
    ]
    axes += [
        f'<text x="{LEFT - 6}" y="{y(percent / 100) + 4:.1f}" text-anchor="end">{percent} %</text>'
        for percent in range(0, 101, 20)
    ]
    axes += [
        f'<text x="{x(percent / 100):.1f}" y="{HEIGHT - BOTTOM + 16}" '
        f'text-anchor="middle">{percent} %</text>'
        for percent in range(0, round(100 * LARGEST_ERROR) + 1, 10)
    ]
    dots = [
        Dot(
            x(point.error),
            y(point.failure),
            point.tool,
            f"{point.tool}, {point.label}: {100 * point.error:.1f} %, {100 * point.failure:.0f} %",
        )
        for point in points
    ]
    return scatter_plot(axes, "median relative error (MRE)", dots, radius=5)
