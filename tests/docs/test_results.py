"""The tables of docs/results that come from studies are made from their records, to the digit shown."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cos2p.older_python import tomllib
from cos2p.studies.columns import COLUMNS, Column
from cos2p.studies.record import read_record
from cos2p.studies.report import Report, to_markdown
from cos2p.studies.tables import Figure, Line
from tests.docs.blocks import REPOSITORY
from tools.frontier_picture import picture
from tools.result_pictures import PICTURES, SHOWN, draw

RESULTS = REPOSITORY / "docs" / "results"
RECORDS = sorted(path.parent for path in RESULTS.rglob("runs.jsonl"))

BY_HEADING = {column.title: column for column in COLUMNS}
TOP1 = BY_HEADING["server top-1"]
FIGURE = re.compile(r"(?P<mean>[+−]?[\d.,]+)(?: ± (?P<half>[\d.]+))?(?: (?:min|MB))?")

PAGES = [
    ("comparison.md", 0, "comparison/fashion-mini", "results"),
    ("comparison.md", 1, "comparison/cifar10-mini", "results"),
    ("ablation.md", 0, "ablation/fashion-mini", "paper"),
    ("ablation.md", 1, "ablation/fashion-mini", "own"),
    ("semi-async.md", 0, "semi-async/fashion-mini", "results"),
    ("semi-async.md", 1, "semi-async/cifar10-mini", "results"),
    ("sweeps.md", 0, "sweeps/mu", "results"),
    ("attacks.md", 3, "attacks/quickstart", "results"),
    ("attacks.md", 4, "attacks/fashion-mini", "results"),
    ("rival.md", 6, "rival/fashion-mini", "own"),
    ("rival.md", 7, "rival/wire", "own"),
    ("text.md", 0, "text/agnews-mini", "results"),
    ("depth.md", 0, "depth/trec-depth", "results"),
    ("text.md", 1, "text/fpb-mini", "results"),
    ("pretrained.md", 2, "pretrained/dino-caltech101", "results"),
    ("pretrained.md", 8, "pretrained/minilm-trec-told-head", "results"),
    ("pretrained.md", 10, "pretrained/minilm-banking77-told-head", "results"),
    ("trained-heads.md", 0, "pretrained/minilm-trec", "results"),
    ("trained-heads.md", 7, "pretrained/minilm-banking77", "results"),
    ("trained-heads.md", 9, "pretrained/dino-caltech101-56px", "results"),
]
"""A page, which of its tables, and the record and the table that it was written from."""

OTHER_WORDS = {
    "all parts": "Co-S²P with all parts",
    "as the recipe has it": "Co-S²P as the recipe has it",
    "semi-asynchronous alone (neither masks nor exits)": "semi-asynchronous alone",
    "KL(teacher‖student) instead of KL(student‖teacher)": "KL(teacher‖student)",
    "wide windows and the rivals' rescaling": "wide windows and rescaling",
    "Co-S²P, synchronous": "Co-S²P (Sync.)",
    "Co-S²P, asynchronous": "Co-S²P (Async.)",
    "FedAvg on the full model (over every device's budget)": "FedAvg (full)",
    "FedAvg on the full model (over every device's rate)": "FedAvg (full)",
    "μ 0.5, T_clk 10 s (the recipe)": "mu 0.5, t_clk 10",
    "μ 1 (any T_clk)": "mu 1, t_clk 0",
}
"""Rows that a page calls by other words than the study."""


def tables_of(page: Path) -> list[list[list[str]]]:
    """Every table as lines of cells, bold or not; of one that stands in two parts, with the same rows, the whole."""
    tables: list[list[list[str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8"), re.MULTILINE):
        table = [
            [cell.strip().strip("*").strip() for cell in line.removeprefix("|").removesuffix("|").split("|")]
            for line in block.splitlines()
        ]
        if tables and [row[0] for row in tables[-1]] == [row[0] for row in table]:
            tables[-1] = [[*row, *more[1:]] for row, more in zip(tables[-1], table, strict=True)]
        else:
            tables.append(table)
    return tables


def assert_shows(text: str, figure: Figure, column: Column) -> None:
    """The text is the figure, rounded to as many digits as it has."""
    match = FIGURE.fullmatch(text)
    assert match is not None, text
    for shown, value in ((match["mean"], figure.mean), (match["half"], figure.half)):
        if shown is not None:
            assert value is not None
            digits = len(shown.partition(".")[2])
            signed = replace(column, digits=digits, signed=shown[0] in "+−")
            assert signed.write(value) == shown, f"{column.title}: {text} is shown for {value * column.scale}"


def line_of(report: Report, table: str, title: str) -> Line:
    (found,) = [one for one in report.tables if one.name == table]
    wanted = OTHER_WORDS.get(title) or re.sub(r"μ (\S+), T_clk (\S+) s", r"mu \1, t_clk \2", title)
    (line,) = [one for one in found.lines if one.title == wanted]
    return line


@pytest.mark.parametrize("record", RECORDS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_table_is_made_from_its_runs(record: Path) -> None:
    assert {path.name for path in record.iterdir()} == {"runs.jsonl", "recipe.toml", "table.md"}
    assert tomllib.loads((record / "recipe.toml").read_text(encoding="utf-8"))["name"]
    assert to_markdown(read_record(record), linked=False) == (record / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("page", "number", "record", "table"), PAGES)
def test_a_page_shows_the_figures_of_its_record(page: str, number: int, record: str, table: str) -> None:
    headings, _, *rows = tables_of(RESULTS / page)[number]
    report = read_record(RESULTS / record)
    differences = "differences" if table == "results" else f"{table}-differences"
    checked = 0
    for title, *cells in rows:
        title = title.removesuffix("*").strip()
        line = line_of(report, table, title)
        for heading, text in zip(headings[1:], cells, strict=True):
            if heading == "chosen":
                assert text == line.facts["lr"]
            elif heading == "lr":
                assert float(text) == float(line.facts["lr"].split()[0])
            elif heading == "difference" and text:
                assert_shows(text, line_of(report, differences, title).figures["top1"], TOP1)
            elif text:
                assert_shows(text, line.figures[BY_HEADING[heading].key], BY_HEADING[heading])
            checked += bool(text)
    assert checked >= 28


def test_one_block_beside_eight() -> None:
    _, _, *rows = tables_of(RESULTS / "comparison.md")[2]
    assert len(rows) == 3
    for title, *cells in rows:
        recipe, heading = title.split(", ")
        column = BY_HEADING[heading]
        whole = read_record(RESULTS / "comparison" / recipe)
        small = read_record(RESULTS / "comparison" / f"{recipe}-one-block")
        lines = [line_of(small, "results", "FedAvg (full)"), line_of(whole, "results", "FedAvg (full)"),
                 line_of(whole, "results", "Co-S²P")]  # fmt: skip
        for text, line in zip(cells, lines, strict=True):
            assert_shows(text, line.figures[column.key], column)


@pytest.mark.parametrize(
    ("number", "studies"),
    [
        (1, {"paper-shape": "Co-S²P", "one-block-by-rate": "FedRolex", "one-block": "FedAvg (full)"}),
        (2, {"growing": "Co-S²P", "one-block-five-seeds": "FedRolex", "two-blocks": "FedRolex"}),
        (4, {"heterofl": "HeteroFL", "growing": "Co-S²P", "growing-bytes": "Co-S²P"}),
    ],
)
def test_what_the_depth_page_compares_with(number: int, studies: dict[str, str]) -> None:
    headings, _, *rows = tables_of(RESULTS / "depth.md")[number]
    growing = depth_line("growing", "Co-S²P").figures["top1"]
    for (study, title), (_, *cells) in zip(studies.items(), rows, strict=True):
        line = depth_line(study, title)
        for heading, text in zip(headings[1:], cells, strict=True):
            if "ahead" not in heading:
                assert_shows(text, line.figures[BY_HEADING[heading].key], BY_HEADING[heading])
            elif text:
                seeds = line.figures["top1"].by_seed
                assert_shows(text, Figure.of({seed: growing.by_seed[seed] - seeds[seed] for seed in seeds}), TOP1)


def depth_line(study: str, title: str) -> Line:
    return line_of(read_record(RESULTS / "depth" / f"trec-depth-{study}"), "results", title)


@pytest.mark.parametrize(
    ("number", "whole", "frontier", "budget", "methods"),
    [
        (3, "dino-caltech101", "dino-caltech101-frontier", "160 MB", 5),
        (4, "dino-caltech101", "dino-caltech101-frontier-savings", "160 MB", 3),
        (5, "dino-caltech101", "dino-caltech101-frontier-80", "80.0 MB", 5),
        (7, "dino-caltech101", "dino-caltech101-frontier-factors", "120 MB", 1),
        (9, "minilm-trec-told-head", "minilm-trec-told-head-frontier", "58.0 MB", 4),
    ],
)
def test_what_fits_a_quarter_is_that_of_its_record(
    number: int, whole: str, frontier: str, budget: str, methods: int
) -> None:
    headings, _, *rows = tables_of(RESULTS / "pretrained.md")[number]
    report = read_record(RESULTS / "pretrained" / frontier)
    full = line_of(read_record(RESULTS / "pretrained" / whole), "results", "FedAvg (full)").figures["top1"]
    for title, *cells in rows:
        line = line_of(report, "results", f"{title}, {budget}")
        own = line.figures["top1"]
        for heading, text in zip(headings[1:], cells, strict=True):
            if heading == "takes":
                assert text == line.facts["takes"]
            elif heading.startswith("to full"):
                gaps = {seed: own.by_seed[seed] - full.by_seed[seed] for seed in own.by_seed}
                assert_shows(text, Figure.of(gaps), TOP1)
            elif heading.startswith("virtual"):
                assert text == f"{line.figures['virtual_seconds'].mean:.0f}"
            else:
                assert_shows(text, line.figures[BY_HEADING[heading].key], BY_HEADING[heading])
    assert len(rows) == methods


def test_the_page_of_pretrained_models_begins_with_figures_of_its_records() -> None:
    _, _, *rows = tables_of(RESULTS / "pretrained.md")[0]
    places = [
        ("dino-caltech101", "Co-S²P", "dino-caltech101", "FedRolex"),
        ("dino-caltech101-frontier", "Co-S²P, 160 MB", "dino-caltech101-frontier", "FedRolex, 160 MB"),
        ("dino-caltech101-frontier-savings", "Co-S²P, 160 MB", "dino-caltech101-frontier-savings", "FedRolex, 160 MB"),
        ("dino-caltech101-factors", "Co-S²P", "dino-caltech101", "FedRolex"),
        ("dino-caltech101-frontier-factors", "Co-S²P, 120 MB", "dino-caltech101-frontier", "FedRolex, 160 MB"),
        ("dino-caltech101-frontier-80", "Co-S²P, 80.0 MB", "dino-caltech101-frontier-80", "FedRolex, 80.0 MB"),
    ]
    full = pretrained_top1("dino-caltech101", "FedAvg (full)")
    for (_, *cells), (study, title, other, rival) in zip(rows, places, strict=True):
        own, rolex = pretrained_top1(study, title), pretrained_top1(other, rival)
        gaps = [
            Figure.of({seed: own.by_seed[seed] - one.by_seed[seed] for seed in own.by_seed}) for one in (full, rolex)
        ]
        for text, figure in zip(cells, (own, *gaps), strict=True):
            assert_shows(text.strip("*"), figure, TOP1)


def pretrained_top1(study: str, title: str) -> Figure:
    return line_of(read_record(RESULTS / "pretrained" / study), "results", title).figures["top1"]


def test_the_picture_of_both_budgets_is_that_of_their_records() -> None:
    """`python -m tools.frontier_picture` draws it."""
    studies = ("dino-caltech101-frontier-80", "dino-caltech101-frontier")
    drawn = picture([RESULTS / "pretrained" / study for study in studies])
    assert (RESULTS / "pretrained-caltech101.svg").read_text(encoding="utf-8") == drawn


def test_at_equal_time_is_what_the_page_says() -> None:
    report = read_record(RESULTS / "pretrained/minilm-trec-told-head-frontier")
    page = (RESULTS / "pretrained.md").read_text(encoding="utf-8")
    (table,) = [one for one in report.tables if one.name == "by_budget_time"]
    for title in ("FedLoRA", "top window", "FedRolex"):
        (line,) = [one for one in table.lines if one.title == title]
        (figure,) = line.figures.values()
        assert figure.mean is not None
        assert figure.half is not None
        assert f"{100 * figure.mean:.1f} ± {100 * figure.half:.1f}" in page, title


def test_the_frontier_shows_the_figures_of_its_record() -> None:
    headings, _, *rows = tables_of(RESULTS / "trained-heads.md")[1]
    (table,) = [
        one for one in read_record(RESULTS / "pretrained/minilm-trec-frontier").tables if one.name == "by_budget"
    ]
    columns = {column.title: column for column in table.columns}
    for title, *cells in rows:
        (line,) = [one for one in table.lines if one.title == title.removesuffix(", discriminant")]
        for heading, text in zip(headings[1:4], cells, strict=False):
            figure = line.figures[columns[heading].key]
            if text == "not run":
                assert figure.mean is None
            else:
                assert_shows(text, figure, columns[heading])
    assert len(rows) == len(table.lines) == 8


def test_equal_updates_and_equal_time_are_those_of_the_record() -> None:
    headings, _, *rows = tables_of(RESULTS / "trained-heads.md")[2]
    tables = {one.name: one for one in read_record(RESULTS / "pretrained/minilm-trec-frontier-tuned").tables}
    shown = {"at equal updates": "by_budget", "at equal virtual time": "by_budget_time"}
    for title, *cells in rows:
        for heading, name in shown.items():
            (line,) = [one for one in tables[name].lines if one.title == title]
            (column,) = tables[name].columns
            assert_shows(cells[headings.index(heading) - 1], line.figures[column.key], column)
    assert len(rows) == 3


def test_heads_at_every_depth_are_those_of_the_record() -> None:
    _, _, *rows = tables_of(RESULTS / "trained-heads.md")[4]
    results = [
        outcome.result or {} for outcome in read_record(RESULTS / "pretrained/minilm-trec-told").outcomes.values()
    ]
    assert [depth for depth, *_ in rows] == list(results[0]["exits"])
    assert {result["best_exit"] for result in results} == {5}
    for depth, _, text in rows:
        assert_shows(text, Figure.of({result["seed"]: result["exits"][depth] for result in results}), TOP1)


def test_every_table_of_a_study_is_checked() -> None:
    shown = {
        page: len(tables_of(RESULTS / page))
        for page in ("comparison.md", "ablation.md", "semi-async.md", "sweeps.md", "attacks.md")
    }
    assert shown == {"comparison.md": 3, "ablation.md": 2, "semi-async.md": 2, "sweeps.md": 1, "attacks.md": 7}
    assert len(RECORDS) == 54


WRITTEN = sorted(RESULTS.rglob("*.md"))
PAGES_OF_RESULTS = [page for page in WRITTEN if page.name != "table.md"]


@pytest.mark.parametrize("page", PAGES_OF_RESULTS, ids=lambda page: str(page.relative_to(RESULTS)))
def test_every_page_begins_with_words_and_a_picture(page: Path) -> None:
    """What was asked and what came out, plainly; then one picture. Pages of trials, and tables, have words alone."""
    _, first, second, *_ = page.read_text(encoding="utf-8").split("\n\n")
    assert not first.startswith(("```", "    ", "|", "#", "- ", "!")), first
    assert 12 <= len(first.split()) <= 70
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", first)
    crowded = [one for one in re.split(r"(?<=[.:!?])\s", prose) if len(re.findall(r"\d+(?:[.,]\d+)*", one)) > 2]
    assert crowded == []
    if page.parent == RESULTS:
        picture = re.fullmatch(r"!\[[^\]]{20,}\]\(([^)]+)\)", second)
        assert picture is not None, second
        assert (RESULTS / picture[1]).is_file()


@pytest.mark.parametrize("page", PAGES_OF_RESULTS, ids=lambda page: str(page.relative_to(RESULTS)))
def test_no_table_is_wider_than_a_page(page: Path) -> None:
    rows = [line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert [row for row in rows if len(row.strip().strip("|").split("|")) > 6] == []


def test_pictures_show_what_the_tables_of_their_pages_say() -> None:
    """`python -m tools.result_pictures` draws them."""
    drawn = {f"{name}.svg": draw(RESULTS / f"{name}.md", panels) for name, panels in SHOWN.items()}
    assert drawn == {path.name: path.read_text(encoding="utf-8") for path in PICTURES.iterdir()}
    for one in drawn.values():
        root = ElementTree.fromstring(one)
        assert len(root.attrib["aria-label"]) > 40
