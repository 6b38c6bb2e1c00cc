"""A small figure: panels with curves in log-log, the corollary's rate next to them. Plain SVG, light and dark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, TOP = 250, 190, 52, 34
ABREAST = 3
COLOURS = ("#3b6fd4", "#d9730d")
STYLE = """text{font:11px sans-serif;fill:#333}
.frame{fill:none;stroke:#999}.guide{stroke:#888;stroke-dasharray:4 3;fill:none}
@media (prefers-color-scheme: dark){text{fill:#ddd}.frame{stroke:#777}}"""


@dataclass(frozen=True)
class Panel:
    title: str
    xs: Sequence[float]
    curves: Mapping[str, Sequence[float]]
    """By their names, as many values as there are xs."""
    exponent: float | None
    """Slope of the dashed line through the first curve's first point; None draws none."""


def figure(panels: Sequence[Panel], label: str) -> str:
    """The panels, `ABREAST` in a row. `label` says in words what is to be seen."""
    across, down = WIDTH + LEFT + 14, HEIGHT + TOP + 58
    width, rows = min(len(panels), ABREAST) * across + 10, -(-len(panels) // ABREAST)
    parts = [
        f'<g transform="translate({index % ABREAST * across},{index // ABREAST * down})">{_panel(panel, LEFT)}</g>'
        for index, panel in enumerate(panels)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {rows * down}" role="img" '
        f'aria-label="{label}"><style>{STYLE}</style>{"".join(parts)}</svg>\n'
    )


def _panel(panel: Panel, left: float) -> str:
    guide = []
    if panel.exponent is not None:
        first = next(iter(panel.curves.values()))[0]
        guide = [first * (x / panel.xs[0]) ** panel.exponent for x in panel.xs]
    values = [value for curve in [*panel.curves.values(), guide] for value in curve]
    low, high = min(values) / 1.15, max(values) * 1.15

    def place(x: float, y: float) -> str:
        across = math.log(x / panel.xs[0]) / math.log(panel.xs[-1] / panel.xs[0])
        up = math.log(y / low) / math.log(high / low)
        return f"{left + 12 + across * (WIDTH - 24):.1f},{TOP + HEIGHT * (1 - up):.1f}"

    parts = [
        f'<text x="{left}" y="{TOP - 12}" font-weight="bold">{panel.title}</text>',
        f'<rect class="frame" x="{left}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>',
        *(_tick(place(x, low), f"{x:g}", 0, 16, "middle") for x in panel.xs),
        _tick(f"{left},{TOP + HEIGHT}", f"{low:.2g}", -5, 0, "end"),
        _tick(f"{left},{TOP}", f"{high:.2g}", -5, 9, "end"),
    ]
    if guide:
        points = " ".join(place(x, y) for x, y in zip(panel.xs, guide, strict=True))
        parts.append(f'<polyline class="guide" points="{points}"/>')
    for number, ((name, curve), colour) in enumerate(zip(panel.curves.items(), COLOURS, strict=False)):
        at = [place(x, y) for x, y in zip(panel.xs, curve, strict=True)]
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(at)}"/>')
        parts += [
            f'<circle cx="{point.split(",")[0]}" cy="{point.split(",")[1]}" r="3" fill="{colour}"/>' for point in at
        ]
        legend = TOP + HEIGHT + 34 + 15 * number
        parts.append(f'<text x="{left + 16}" y="{legend}">{name}</text>')
        parts.append(f'<rect x="{left}" y="{legend - 8}" width="10" height="8" fill="{colour}"/>')
    return "".join(parts)


def _tick(place: str, text: str, right: float, down: float, anchor: str) -> str:
    x, y = (float(number) for number in place.split(","))
    return f'<text x="{x + right:.1f}" y="{y + down:.1f}" text-anchor="{anchor}">{text}</text>'
