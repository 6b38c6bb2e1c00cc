"""The pictures of docs/results: each shows columns of a table on its own page, which tests compare with the records.

python -m tools.result_pictures        writes docs/results/pictures/PAGE.svg
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PICTURES = RESULTS / "pictures"

WIDTH, LABELS, VALUES, ROW, HEAD = 760, 250, 118, 20, 30
COLOURS = ("#3b6fd4", "#d9730d", "#2b8a57", "#b03a8c", "#8a6d1f")
STYLE = """text{font:12px sans-serif;fill:#333}.title{font-weight:bold}.grid{stroke:#ddd}
.other{fill:#8a8f98;stroke:#8a8f98}
@media (prefers-color-scheme: dark){text{fill:#ddd}.grid{stroke:#444}}"""
FIGURE = re.compile(r"(?P<mean>[+−-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?)(?:[^±\d]*± *(?P<half>[\d.]+))?")


@dataclass(frozen=True)
class Panel:
    """Rows of one table of the page, one dot or bar for each of the columns."""

    title: str
    table: int
    columns: tuple[str, ...]
    rows: tuple[str, ...] = ()
    """Titles of the rows to show, in the order of the table; none: all that have a figure."""
    keys: int = 1
    """So many columns at the left name a row."""
    bars: bool = False
    """From nought; otherwise dots with their intervals."""
    ours: str | tuple[str, ...] = "Co-S²P"
    """Rows whose title begins so are the coloured ones where there is one column."""


@dataclass(frozen=True)
class Row:
    title: str
    figures: tuple[tuple[str, float, float] | None, ...]
    """As written, the mean and half of the interval; None where a cell has no figure."""


def tables_of(page: Path) -> list[list[list[str]]]:
    """Every table as lines of cells without marks of Markdown."""
    blocks = re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [
        [[_plain(cell) for cell in line.strip().strip("|").split("|")] for line in one.splitlines()] for one in blocks
    ]


def _plain(cell: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "").replace("**", "").strip()


def rows_of(page: Path, panel: Panel) -> list[Row]:
    headings, _, *lines = tables_of(page)[panel.table]
    places = [headings.index(column) for column in panel.columns]
    rows = []
    for cells in lines:
        title = ", ".join(filter(None, cells[: panel.keys]))
        figures = tuple(_figure(cells[place]) for place in places)
        if any(figures) and (not panel.rows or title in panel.rows):
            rows.append(Row(title, figures))
    missing = set(panel.rows) - {row.title for row in rows}
    if missing or not rows:
        raise ValueError(f"{page.name}, table {panel.table} has no row {', '.join(sorted(missing)) or 'with a figure'}")
    return rows


def _figure(cell: str) -> tuple[str, float, float] | None:
    found = FIGURE.match(cell)
    if found is None:
        return None
    mean = float(found["mean"].replace("−", "-").replace(",", ""))
    return cell.partition(" (")[0].partition(" [")[0], mean, float(found["half"] or 0)


def draw(page: Path, panels: Sequence[Panel]) -> str:
    """The panels, one below the other."""
    parts, words, top = [], [], 6
    for panel in panels:
        rows = rows_of(page, panel)
        parts.append(_panel(panel, rows, top))
        words.append(f"{panel.title}. {'; '.join(_words(panel, row) for row in rows)}")
        top += HEAD + ROW * len(rows) * len(panel.columns) + (18 if len(panel.columns) > 1 else 0) + 26
    label = escape(" ".join(words), {'"': "&quot;"})
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img" aria-label="{label}">'
    return f"{head}<style>{STYLE}</style>{''.join(parts)}</svg>\n"


def _words(panel: Panel, row: Row) -> str:
    several = len(panel.columns) > 1
    shown = (f"{name} {f[0]}" if several else f[0] for name, f in zip(panel.columns, row.figures, strict=True) if f)
    return f"{row.title}: {', '.join(shown)}"


def _panel(panel: Panel, rows: Sequence[Row], top: float) -> str:
    found = [figure for row in rows for figure in row.figures if figure]
    low = min(0.0, *(mean for _, mean, _ in found)) if panel.bars else min(mean - half for _, mean, half in found)
    high = max(mean + half for _, mean, half in found)
    room = (high - low or 1.0) * (0.0 if panel.bars else 0.04)
    low, high = low - room, high + room
    span = WIDTH - LABELS - VALUES

    def x(value: float) -> float:
        return LABELS + span * (value - low) / ((high - low) or 1.0)

    parts = [f'<text class="title" x="0" y="{top + 13}">{escape(panel.title)}</text>']
    y, several = top + HEAD, len(panel.columns) > 1
    if several:
        at = float(LABELS)
        for number, name in enumerate(panel.columns):
            parts.append(f'<rect x="{at:.0f}" y="{y - 2}" width="10" height="10" fill="{COLOURS[number]}"/>')
            parts.append(f'<text x="{at + 15:.0f}" y="{y + 7}">{escape(name)}</text>')
            at += 38 + 7 * len(name)
        y += 18
    for row in rows:
        parts.append(f'<line class="grid" x1="0" x2="{WIDTH}" y1="{y - 3}" y2="{y - 3}"/>')
        middle = y + ROW * len(panel.columns) / 2
        parts.append(f'<text x="0" y="{middle + 1:.1f}">{escape(_short(row.title))}</text>')
        for number, figure in enumerate(row.figures):
            if figure is not None:
                text, mean, half = figure
                centre = y + ROW * number + ROW / 2 - 3
                ours = several or row.title.startswith(panel.ours)
                ink = f'fill="{COLOURS[number]}" stroke="{COLOURS[number]}"' if ours else 'class="other"'
                parts.append(_mark(x, low, mean, half, centre, ink, panel.bars))
                parts.append(f'<text x="{WIDTH}" y="{centre + 4:.1f}" text-anchor="end">{escape(text)}</text>')
        y += ROW * len(panel.columns)
    return "".join(parts)


def _mark(
    x: Callable[[float], float], low: float, mean: float, half: float, centre: float, ink: str, bars: bool
) -> str:
    if bars:
        left, right = sorted((x(max(low, 0.0)), x(mean)))
        return f'<rect x="{left:.1f}" y="{centre - 5:.1f}" width="{max(1.0, right - left):.1f}" height="10" {ink}/>'
    line = (
        f'<line x1="{x(mean - half):.1f}" x2="{x(mean + half):.1f}" y1="{centre}" y2="{centre}" {ink}/>' if half else ""
    )
    return f'{line}<circle cx="{x(mean):.1f}" cy="{centre}" r="4" {ink}/>'


def _short(title: str) -> str:
    return title if len(title) <= 40 else f"{title[:38].rstrip()} …"


_METHODS = (
    "Co-S²P (Async.)", "Co-S²P", "PruneFL", "HeteroFL", "FedAvg+AdaViT", "RA-Fed", "FedRolex", "RAM-Fed",
    "FedAvg (full) *",
)  # fmt: skip

SHOWN: dict[str, tuple[Panel, ...]] = {
    "ablation": (Panel("Top-1 without a part, points to the whole method", 0, ("difference",), ours=""),),
    "attacks": (
        Panel(
            "Top-1 on quickstart with one dishonest device of eight, %",
            0,
            ("seed 0", "seed 2"),
            ("honest, default", "flip:15, default", "drift, no defence", "drift, default", "backdoor, default"),
        ),
    ),
    "automatic": (
        Panel(
            "Test top-1, %, same seeds",
            0,
            ("by memory alone", "set by hand", "full fine-tuning"),
        ),
    ),
    "finetune": (
        Panel("Processor seconds of one task", 1, ("seconds",), bars=True, ours=("FedAvg", "FedLoRA", "Co-S²P")),
        Panel("Its peak memory, MB", 1, ("peak, MB",), bars=True, ours=("FedAvg", "FedLoRA", "Co-S²P")),
    ),
    "comparison": (
        Panel("fashion-mini, server top-1, %", 0, ("server top-1",), _METHODS),
        Panel("cifar10-mini, server top-1, %", 2, ("server top-1",), _METHODS),
    ),
    "demo": (Panel("Test top-1 of handwritten digits", 0, ("test top-1",), bars=True),),
    "depth": (Panel("Server top-1 on trec-depth, %", 4, ("server top-1",)),),
    "fleet": (Panel("Seconds from kill -9 to the first new task", 1, ("seconds to the first new task",), bars=True),),
    "fullsize": (
        Panel(
            "Peak of a device's first task, ViT-Base (Ext.), MB",
            11,
            ("predicted MB", "measured MB"),
            tuple(
                f"E3, {method}, jetson-{board}"
                for board in ("xavier-nx-8gb", "xavier-nx-16gb", "agx-xavier-32gb", "agx-orin-64gb")
                for method in ("cos2p", "fedrolex")
            ),
            bars=True,
        ),
    ),
    "language-models": (
        Panel(
            "Generated answers right, financial news, SmolLM2-135M",
            1,
            ("generated answers right",),
            bars=True,
            ours="F",
        ),
    ),
    "learning-rate": (
        Panel(
            "Test top-1 at fixed rates, one seed",
            0,
            ("1e-4", "3e-4", "1e-3", "2e-3", "3e-3"),
            ("minilm-trec, Co-S²P: test", "minilm-trec, FedLoRA: test"),
            bars=True,
        ),
        Panel(
            'The same with lr = "auto"',
            1,
            ("auto",),
            ("minilm-trec, Co-S²P: test", "minilm-trec, FedLoRA: test"),
            bars=True,
            ours="",
        ),
    ),
    "memory": (Panel("Largest part R of ViT-Base that trains in 600 MB", 0, ("R",), bars=True, ours=""),),
    "official": (
        Panel(
            "Largest difference to the official code",
            0,
            ("largest difference",),
            ("Adan", "PLATON", "FedPM", "RAM-Fed"),
            bars=True,
            ours="",
        ),
    ),
    "privacy": (Panel("Top-1 by budget ε, mean of the seeds, %", 0, ("mean",), bars=True, ours=""),),
    "rival": (
        Panel(
            "A task of Co-S²P over one of FedRolex at the same R; 1 is level",
            0,
            (".25", ".5625"),
            tuple(
                f"{what}: {when}"
                for what in ("processor seconds, whole run", "bytes both ways, whole run", "peak, measured at batch 2")
                for when in ("before", "after")
            ),
        ),
    ),
    "semi-async": (
        Panel("fashion-mini, server top-1, %", 0, ("server top-1",)),
        Panel("fashion-mini, virtual time", 1, ("virtual time",), bars=True),
    ),
    "simulator": (Panel("Processor milliseconds for an update", 0, ("CPU ms an update", "the loop's"), bars=True),),
    "submodel": (
        Panel(
            "Peak memory of a step of ViT-Base, MB",
            2,
            ("predicted MB", "measured MB"),
            ("full, 1", "cut, 0.5625, bottom", "cut, 0.25, bottom", "cut, 0.0625, bottom"),
            bars=True,
        ),
    ),
    "sweeps": (Panel("Server top-1 over how long a round waits, %", 0, ("server top-1",), ours=""),),
    "text": (
        Panel("AG News from scratch, server top-1, %", 0, ("server top-1",)),
        Panel("Financial PhraseBank, server top-1, %", 2, ("server top-1",)),
    ),
    "to-the-end": (
        Panel("Top-1 at the end, %", 0, ("top-1",), bars=True, ours="growing"),
        Panel("Virtual time until FedRolex's last score", 1, ("virtual time",), bars=True, ours="growing"),
    ),
    "traffic": (Panel("Bytes of a run on minilm-trec", 0, ("down, without the cache", "down", "up"), bars=True),),
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name, panels in SHOWN.items():
        (PICTURES / f"{name}.svg").write_text(draw(RESULTS / f"{name}.md", panels), encoding="utf-8")


if __name__ == "__main__":
    main()
