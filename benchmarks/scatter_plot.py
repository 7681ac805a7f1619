"""Dots of several tools in one frame, as one SVG file with no script and nothing fetched."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 34, 44
LEGEND_STEP = 120
COLOURS = (
    "#1668b0",
    "#c2701b",
    "#4f8a3c",
    "#8a4f8a",
    "#a33b3b",
    "#6b6b6b",
    "#2f8f8f",
    "#b08900",
    "#333399",
)


@dataclass(frozen=True)
class Dot:
    """One dot: its place in the picture, whose it is, and what is said of it where the pointer
    rests.
    """

    x: float
    y: float
    tool: str
    title: str


def scatter_plot(axes: Sequence[str], x_title: str, dots: Sequence[Dot], radius: int) -> str:
    """Draw `dots` over `axes`, SVG elements, in one colour for each tool, with a legend in a line
    above.
    """
    tools = list(dict.fromkeys(dot.tool for dot in dots))
    step = min(LEGEND_STEP, (WIDTH - LEFT - RIGHT) / max(1, len(tools)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<style>text { font: 12px sans-serif }</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *axes,
        (
            f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" '
            f'text-anchor="middle">{escape(x_title)}</text>'
        ),
    ]
    for number, tool in enumerate(tools):
        colour, place = COLOURS[number % len(COLOURS)], LEFT + step * number
        parts.append(f'<circle cx="{place + 6:.1f}" cy="16" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{place + 14:.1f}" y="20">{escape(tool)}</text>')
        parts += [
            f'<circle cx="{dot.x:.1f}" cy="{dot.y:.1f}" r="{radius}" fill="{colour}" '
            'fill-opacity="0.6">'
            f"<title>{escape(dot.title)}</title></circle>"
            for dot in dots
            if dot.tool == tool
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
