"""A frontier as a picture: accuracy against bytes per device, with intervals. Plain SVG, light and dark."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

from cos2p.studies.tables import Table

WIDTH, HEIGHT, LEFT, TOP, LEGEND = 560, 320, 48, 34, 190
COLOURS = ("#3b6fd4", "#d9730d", "#2b8a57", "#b03a8c", "#8a6d1f", "#5b5fc7", "#c0392b", "#16818f", "#6b7280", "#111827")
STYLE = """text{font:11px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}.frame{fill:none;stroke:#999}
@media (prefers-color-scheme: dark){text{fill:#ddd}.grid{stroke:#444}.frame{stroke:#777}}"""


def plot(title: str, table: Table) -> str:
    """One line for each method of a table by budget (`studies.frontier`), whiskers for the intervals."""
    budgets = [float(column.key.removeprefix("at_")) for column in table.columns]
    scale = _Scale(budgets, table)
    parts = [_frame(table, budgets, scale)]
    for number, line in enumerate(table.lines):
        colour = COLOURS[number % len(COLOURS)]
        figures = [line.figures[column.key] for column in table.columns]
        points = [(b, f.mean, f.half or 0.0) for b, f in zip(budgets, figures, strict=True) if f.mean is not None]
        parts.append(_line(points, scale, colour))
        y = TOP + 12 + 18 * number
        shown = escape(line.title) + ("" if points else " (absent)")
        parts.append(f'<rect x="{LEFT + WIDTH + 14}" y="{y - 8}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + WIDTH + 30}" y="{y}">{shown}</text>')
    words = escape(_words(title, table), {'"': "&quot;"})
    size = f"{LEFT + WIDTH + LEGEND} {max(TOP + HEIGHT + 44, TOP + 30 + 18 * len(table.lines))}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" aria-label="{words}">'
    shown_title = f'<text class="title" x="{LEFT}" y="{TOP - 14}">{escape(title)} (%)</text>'
    return f"{head}<style>{STYLE}</style>{shown_title}{''.join(parts)}</svg>\n"


class _Scale:
    """Budgets on a logarithmic axis, shares on a plain one that holds all intervals."""

    def __init__(self, budgets: list[float], table: Table) -> None:
        self.least, self.most = min(budgets), max(budgets)
        figures = [figure for line in table.lines for figure in line.figures.values()]
        means = [(figure.mean, figure.half or 0.0) for figure in figures if figure.mean is not None]
        ends = [mean + side * half for mean, half in means for side in (-1, 1)] or [0.0, 1.0]
        self.low = max(0.0, math.floor(20 * min(ends)) / 20)
        self.high = min(1.0, math.ceil(20 * max(ends)) / 20)
        if self.high - self.low < 0.05:
            self.low, self.high = max(0.0, self.low - 0.05), min(1.0, self.high + 0.05)

    def x(self, budget: float) -> float:
        if self.most == self.least:
            return LEFT + WIDTH / 2
        return LEFT + 14 + (WIDTH - 28) * math.log(budget / self.least) / math.log(self.most / self.least)

    def y(self, share: float) -> float:
        inside = min(self.high, max(self.low, share))
        return TOP + HEIGHT * (self.high - inside) / (self.high - self.low)


def _frame(table: Table, budgets: list[float], scale: _Scale) -> str:
    steps = 5
    parts = [f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}"/>']
    for step in range(steps + 1):
        share = scale.low + (scale.high - scale.low) * step / steps
        y = scale.y(share)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f}</text>')
    for column, budget in zip(table.columns, budgets, strict=True):
        place = f'x="{scale.x(budget):.1f}" y="{TOP + HEIGHT + 16}"'
        parts.append(f'<text {place} text-anchor="middle">{escape(column.title)}</text>')
    parts.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 34}" text-anchor="middle">memory per device</text>')
    return "".join(parts)


def _line(points: list[tuple[float, float, float]], scale: _Scale, colour: str) -> str:
    places = " ".join(f"{scale.x(budget):.1f},{scale.y(mean):.1f}" for budget, mean, _ in points)
    parts = [f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{places}"/>']
    for budget, mean, half in points:
        x = scale.x(budget)
        ends = f'y1="{scale.y(mean - half):.1f}" y2="{scale.y(mean + half):.1f}"'
        parts.append(f'<line stroke="{colour}" x1="{x:.1f}" x2="{x:.1f}" {ends}/>')
        parts.append(f'<circle fill="{colour}" cx="{x:.1f}" cy="{scale.y(mean):.1f}" r="3.5"/>')
    return "".join(parts)


def _words(title: str, table: Table) -> str:
    """The picture for those who cannot see it."""
    lines = []
    for line in table.lines:
        figures = [f"{c.title} {line.figures[c.key].write(c)}" for c in table.columns]
        lines.append(f"{line.title}: {', '.join(figures)}")
    return f"{title}. {'; '.join(lines)}"
