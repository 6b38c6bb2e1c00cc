"""A study's panel: axes that end where figures can end, tables that fit, ways to the runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cos2p.view.frozen import write_report
from tests.docs.blocks import REPOSITORY
from tests.view.browser.watched import Watched, page_of, sample
from tests.view.test_study import write_cell, write_study

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]

FASHION = REPOSITORY / "docs" / "results" / "comparison" / "fashion-mini"
ABLATION = REPOSITORY / "docs" / "results" / "ablation" / "fashion-mini"
TEXTS = "nodes => nodes.map(node => node.textContent)"


def column(key: str) -> dict[str, Any]:
    return {"key": key, "title": key, "unit": "%", "scale": 100.0, "digits": 1, "better": "more", "signed": False}


def study_view(means: list[float], half: float | None, sweep: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Rows with these top-1 and one interval for all, curves that end there; chance is 10 %."""
    rows = [
        {"title": f"row {at}", "over_budget": False, "facts": {}, "runs": {"0": "", "1": ""}, "failures": {},
         "waiting": [],
         "figures": {"top1": {"mean": mean, "half": half, "best": False, "by_seed": {"0": mean, "1": mean}}}}
        for at, mean in enumerate(means)
    ]  # fmt: skip
    band = {"x": [1, 2], "mean": [means[0], means[0]], "half": [half, half]}
    bands = dict.fromkeys(("rounds", "updates", "time"), band)
    table = {"title": "Results", "facts": [], "columns": [column("top1")], "rows": rows,
             "notes": [], "baselines": {"chance": 0.1, "majority": 0.15}}  # fmt: skip
    view = sample()
    view["runs"] = []
    view["studies"] = [{
        "name": "s", "kind": "compare", "title": "S", "recipe": "r", "command": "", "seeds": [0, 1], "updates": [4],
        "done": 2, "cells": 2, "notes": [], "versions": [], "tables": [table], "failures": [], "sweep": sweep or [],
        "links": {},
        "curves": [{"key": "0", "title": "row 0", "seeds": 2, "top1": bands, "client_top1": bands}],
    }]  # fmt: skip
    return view


def axis(seen: Watched, chart: str, anchor: str) -> list[float]:
    """Numbers on an axis: those anchored in the `middle` of their place stand below, at their `end` to the left."""
    texts = seen.page.locator(f"{chart} .grid text[text-anchor='{anchor}']:not(.axis)").evaluate_all(TEXTS)
    return [float(text.replace("−", "-").replace("%", "").strip()) for text in texts]


def test_axes_end_where_shares_end(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(study_view([0.26, 0.4], half=0.78), tmp_path))
    for numbers in (axis(seen, "svg.dots", "middle"), axis(seen, "svg[aria-label^='Curves']", "end")):
        assert (min(numbers), max(numbers)) == (0, 100)
    assert seen.page.locator("svg.dots .whisker").count() == 0, "intervals that are cut have no ends"
    assert seen.page.locator("svg.dots .seed").count() == 4
    assert seen.page.locator("table .best").count() == 0


def test_figures_that_differ_in_their_last_bits_have_a_plain_axis(visit: Visit, tmp_path: Path) -> None:
    line = {"name": "", "x": [0.25, 1.0], "mean": [0.9999999999999998, 1.0000000000000002], "half": [None, None]}
    panels = [{"column": column("ru"), "axis": "mu", "log": False, "lines": [line]}]
    seen = visit(page_of(study_view([0.9999999999999998, 1.0], half=None, sweep=panels), tmp_path))
    chart = "svg[aria-label^='ru']"
    numbers = axis(seen, chart, "end")
    assert max(numbers) == 100
    assert len(set(numbers)) == len(numbers) >= 3
    texts = seen.page.locator(".grid text").evaluate_all(TEXTS)
    assert max(map(len, texts)) < 16, texts
    assert seen.page.locator(f"{chart} .grid text[text-anchor='middle']").evaluate_all(TEXTS) == ["0.25", "1"]


def test_both_axes_of_a_sweep_are_drawn_with_their_values(visit: Visit, tmp_path: Path) -> None:
    line = {"name": "", "mean": [0.2, 0.4], "half": [0.01, 0.01]}
    panels = [
        {"column": column("top1"), "axis": name, "log": log, "lines": [{**line, "x": values}]}
        for name, log, values in (("mu", False, [0.0625, 1.0]), ("lr", True, [1e-05, 0.1]))
    ]
    seen = visit(page_of(study_view([0.2], half=0.01, sweep=panels), tmp_path))
    shown = [
        seen.page.locator(f"svg[aria-label='top1 (%) over {name}'] .grid text[text-anchor='middle']").evaluate_all(
            TEXTS
        )
        for name in ("mu", "lr")
    ]
    assert shown == [["0.0625", "1"], ["0.00001", "0.1"]]


def test_chance_is_drawn_beside_the_accuracies(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(study_view([0.26], half=0.01), tmp_path))
    assert seen.page.locator("svg.dots .baseline").count() == 2
    assert seen.page.locator("[data-series='chance'], [data-series='most frequent class']").count() == 2
    seen.page.get_by_role("button", name="Clients", exact=True).click()
    assert seen.page.locator("[data-series='chance']").count() == 0, "it is the server's"


SIDEWAYS = """[...document.querySelectorAll('body *')].filter(e => !e.closest('thead')
  && e.scrollWidth > e.clientWidth + 1
  && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map(e => e.className)"""


@pytest.mark.parametrize("record", [FASHION, ABLATION], ids=["compare", "ablate"])
def test_no_column_is_cut_off(visit: Visit, tmp_path: Path, pictures: Path, record: Path) -> None:
    write_report([record], tmp_path / "report.html")
    url = (tmp_path / "report.html").as_uri()
    seen = visit(url)
    seen.page.get_by_text("Every run", exact=True).click()
    widths = seen.ask("[...document.querySelectorAll('.scroller')].map(one => [one.scrollWidth, one.clientWidth])")
    assert len(widths) >= 3
    assert all(0 < needed <= there for needed, there in widths), widths
    heights = seen.ask(
        "[...document.querySelectorAll('.whole .scroller')].map(one => [one.scrollHeight, one.clientHeight])"
    )
    assert all(needed <= there for needed, there in heights), "nor a row"
    seen.page.screenshot(path=pictures / f"{record.parent.name}.png", full_page=True)
    phone = visit(url, width=390, scheme="dark")
    assert phone.ask("document.documentElement.scrollWidth") <= 390
    assert phone.page.locator("svg.dots").first.locator(".grid text").count() >= 2, "an axis has a scale"
    words = phone.ask("[...document.querySelectorAll('.figures td:not(.right)')].map(one => one.clientWidth)")
    assert min(words) >= 100, "no column of words is so narrow that they break"
    assert phone.ask(SIDEWAYS) == [], "a row is a card, nothing has to be pushed sideways"
    assert "Highest server top-1: " in phone.page.locator(".study-verdict").first.inner_text()
    phone.page.screenshot(path=pictures / f"{record.parent.name}-phone.png", full_page=True)


def test_the_page_leads_to_its_runs(visit: Visit, tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", {"a": {}, "b": {}})
    for name in ("a-s0", "a-s1", "b-s0", "b-s1"):
        write_cell(folder / "cells" / name, [0.3, 0.5])
    write_report([folder], folder / "report.html")
    seen = visit((folder / "report.html").as_uri())
    hrefs = seen.ask("[...document.querySelectorAll('table .runs a')].map(link => link.href)")
    assert hrefs == [f"{(folder / 'cells' / name).as_uri()}/" for name in ("a-s0", "a-s1", "b-s0", "b-s1")]
    seen.page.get_by_text("Every run", exact=True).click()
    assert seen.page.locator("details tbody tr").count() == 4
    assert seen.page.locator("details tbody a").count() == 4
