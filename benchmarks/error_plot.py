"""What do the errors look like, over what was measured?"""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.scatter_plot import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Dot, scatter_plot

GIB = 2**30
LARGEST_ERROR = 0.20
"""Errors beyond this are drawn at the edge."""


@dataclass(frozen=True)
class Point:
    """One estimate of one run: what was measured (bytes), the signed relative error, whose, and
    which run.
    """

    ground_bytes: int
    error: float
    tool: str
    label: str


def error_plot(points: Sequence[Point]) -> str:
    """Draw the error (percent, upwards too much) over the measured peak (GiB), one colour for each
    tool.
    """
    widest = max([point.ground_bytes for point in points], default=GIB) * 1.03

    def x(size: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * size / widest

    def y(error: float) -> float:
        clipped = max(-LARGEST_ERROR, min(LARGEST_ERROR, error))
        return TOP + (HEIGHT - TOP - BOTTOM) * (LARGEST_ERROR - clipped) / (2 * LARGEST_ERROR)

    axes = []
    for step in range(-4, 5):
        error = step * LARGEST_ERROR / 4
        colour = "#555555" if step == 0 else "#dddddd"
        axes.append(f'<path d="M{LEFT} {y(error):.1f}H{WIDTH - RIGHT}" stroke="{colour}"/>')
        axes.append(
            f'<text x="{LEFT - 6}" y="{y(error) + 4:.1f}" text-anchor="end">{100 * error:+.0f} '
            "%</text>"
        )
    axes += [
        f'<text x="{x(gib * GIB):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{gib}</text>'
        for gib in range(0, int(widest / GIB) + 1, max(2, int(widest / GIB) // 12))
    ]
    dots = [
        Dot(
            x(point.ground_bytes),
            y(point.error),
            point.tool,
            f"{point.label}: {100 * point.error:+.1f} %",
        )
        for point in points
    ]
    return scatter_plot(axes, "measured peak, GiB", dots, radius=3)
