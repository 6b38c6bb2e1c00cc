"""Plots of a sweep over one or two axes, as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from cos2p.studies.columns import CLIENT_TOP1, RU, TOP1, Column
from cos2p.studies.report import Report
from cos2p.studies.sweep import Axis
from cos2p.studies.tables import Line

PANELS = (TOP1, CLIENT_TOP1, RU)
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A")
"""Okabe and Ito's, told apart by colour-blind readers on light and dark ground."""
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "triangle-up", "star")
GREY = "#888888"
LOG_SPAN = 50.0
"""An axis of positive numbers whose largest is this many times the smallest is drawn to a logarithmic scale."""


def sweep_plots(report: Report, axes: Sequence[Axis]) -> str:
    """The page; empty for more than two axes, which a plane cannot show."""
    if len(axes) > 2:
        return ""
    from plotly.offline import get_plotlyjs  # five megabytes of script: only when there is something to plot

    figures = [_figure(report.tables[0].lines, axes)]
    if len(axes) == 2:
        figures.append(_figure(report.tables[0].lines, (axes[1], axes[0])))
    title = escape(report.title)
    plots = "\n".join(
        figure.to_html(full_html=False, include_plotlyjs=False, div_id=f"plot-{number}", default_height="26rem")
        for number, figure in enumerate(figures)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>:root {{ color-scheme: light dark }} body {{ font: 15px/1.5 system-ui, "
        "sans-serif; margin: 1rem auto; max-width: 80rem; padding: 0 1rem }</style>\n"
        f"<script>{get_plotlyjs()}</script>\n</head>\n<body>\n<h1>{title}</h1>\n"
        '<p>Means with their 95 % intervals over seeds; <a href="table.html">the table</a>.</p>\n'
        f"{plots}\n</body>\n</html>\n"
    )


def curves(lines: Sequence[Line], axes: Sequence[Axis], column: Column) -> list[dict[str, Any]]:
    """Per value of the second axis one curve over the first: x, mean and half interval in the column's unit."""
    along, across = axes[0], axes[1] if len(axes) > 1 else None
    found = []
    for value in across.values if across else ("",):
        points = []
        for line in lines:
            figure = line.figures[column.key]
            if figure.mean is None or (across and line.facts[across.name] != value):
                continue
            text = line.facts[along.name]
            half = None if figure.half is None else figure.half * column.scale
            points.append((float(text) if along.numbers else text, figure.mean * column.scale, half))
        if along.numbers:
            points.sort(key=lambda point: point[0])
        found.append(
            {
                "name": f"{across.name} {value}" if across else column.title,
                "x": [point[0] for point in points],
                "y": [point[1] for point in points],
                "half": [point[2] for point in points],
            }
        )
    return found


def _figure(lines: Sequence[Line], axes: Sequence[Axis]) -> Any:
    from plotly import graph_objects
    from plotly.subplots import make_subplots

    figure = make_subplots(rows=1, cols=len(PANELS), subplot_titles=[panel.heading for panel in PANELS])
    for place, panel in enumerate(PANELS, start=1):
        for number, curve in enumerate(curves(lines, axes, panel)):
            colour = COLOURS[number % len(COLOURS)]
            figure.add_trace(
                graph_objects.Scatter(
                    x=curve["x"],
                    y=curve["y"],
                    name=escape(curve["name"]),
                    mode="lines+markers",
                    line={"color": colour},
                    marker={"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 8},
                    error_y={"type": "data", "array": [half or 0.0 for half in curve["half"]], "thickness": 1},
                    legendgroup=str(number),
                    showlegend=place == 1 and len(axes) > 1,
                ),
                row=1,
                col=place,
            )
    figure.update_xaxes(title_text=escape(axes[0].name), gridcolor="rgba(136,136,136,.25)", zeroline=False)
    figure.update_xaxes(**_scale(axes[0]))
    figure.update_yaxes(gridcolor="rgba(136,136,136,.25)", zeroline=False)
    figure.update_layout(
        template="none",
        font={"color": GREY},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 40, "r": 20, "t": 50, "b": 50},
        legend={"orientation": "h", "y": -0.2},
    )
    return figure


def _scale(axis: Axis) -> dict[str, Any]:
    """Numbers to scale, words side by side."""
    if axis.numbers is None:
        return {"type": "category"}
    low, high = min(axis.numbers), max(axis.numbers)
    return {"type": "log" if low > 0 and high / low >= LOG_SPAN else "linear", "tickvals": list(axis.numbers)}
