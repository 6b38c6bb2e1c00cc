"""Every string of a run may come from a stranger's device: it is shown, never obeyed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.view.browser.watched import Watched, page_of, sample

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]

EVIL = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'><b>{}</b>"


def poison(value: Any) -> Any:
    """The document with markup in every text that may come from a run or its study."""
    if isinstance(value, dict):
        kept = (
            "kind",
            "status",
            "part",
            "exits_part",
            "heads",
            "units",
            "phases",
            "outcomes",
            "version",
            "unit",
            "better",
        )
        return {key: item if key in kept else poison(item) for key, item in value.items()}
    if isinstance(value, list):
        return [poison(item) for item in value]
    return EVIL.format(value) if isinstance(value, str) else value


def test_markup_in_names_and_reasons_stays_text(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    view["runs"] = [poison(run) for run in view["runs"]]
    troubles = {"t": [1.0], "kind": ["refused"], "client": [-1], "name": [EVIL], "task": [EVIL], "reason": [EVIL]}
    view["runs"][0]["troubles"] = {"total": 1, **troubles}
    view["runs"].append(poison(sample()["runs"][0]))
    view["studies"] = [study()]
    url = page_of(view, tmp_path)
    seen = visit(url)
    for button in seen.page.get_by_role("button", name="Table of").all():
        button.click()
    seen.page.locator("#fleet canvas").first.focus()
    seen.page.keyboard.press("ArrowRight")
    seen.page.locator("#masks canvas").first.focus()
    seen.page.keyboard.press("ArrowRight")
    assert "onerror" in (seen.page.locator("#fleet-details").text_content() or "")
    assert "onerror" in (seen.page.locator(".tip").text_content() or "")
    assert EVIL in (seen.page.locator("#troubles table").text_content() or "")
    assert seen.ask("window.hacked") is None
    assert (
        seen.ask("document.querySelectorAll('main img, main script, header img, header script, main b b').length") == 0
    )
    assert set(seen.requests) <= {url, "data:,"}


def study() -> dict[str, Any]:
    column = {"key": "top1", "title": EVIL, "unit": "%", "scale": 100.0, "digits": 1, "better": "more", "signed": False}
    figure = {"mean": 0.5, "half": 0.1, "best": True, "by_seed": {"0": 0.4, EVIL: 0.6}}
    row = {"title": EVIL, "over_budget": True, "facts": {EVIL: EVIL}, "runs": {"0": EVIL}, "failures": {"1": EVIL}}
    row |= {"waiting": [], "figures": {"top1": figure}}
    table = {"title": EVIL, "facts": [EVIL], "columns": [column], "rows": [row], "notes": [EVIL]}
    table |= {"baselines": {"chance": 0.1, "majority": None}}
    band = {"x": [1, 2], "mean": [0.2, 0.5], "half": [0.1, 0.1]}
    bands = {"rounds": band, "updates": band, "time": band}
    curve = {"key": "a", "title": EVIL, "seeds": 2, "top1": bands, "client_top1": bands}
    line = {"name": EVIL, "x": [0.1, 1.0], "mean": [0.4, 0.5], "half": [0.1, None]}
    return {
        "name": EVIL, "kind": "sweep", "title": EVIL, "recipe": EVIL, "command": EVIL, "seeds": [0, 1], "updates": [4],
        "done": 2, "cells": 2, "links": {EVIL: "javascript:window.hacked=1"},
        "notes": [EVIL], "versions": [EVIL], "tables": [table], "curves": [curve],
        "sweep": [{"column": column, "axis": EVIL, "log": True, "lines": [line]}], "failures": [[EVIL, EVIL]],
    }  # fmt: skip


def test_a_study_has_its_table_its_interval_and_its_curves(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    view["runs"], view["studies"] = [], [study()]
    seen = visit(page_of(view, tmp_path))
    panel = seen.page.locator("#studies section")
    assert panel.locator("table .best").text_content() == "50.0 ± 10.0"
    assert panel.locator("[data-series='a']").get_attribute("data-points") == "2"
    assert panel.locator(".band").count() == 2  # the curve's and the sweep's
    assert panel.locator("table a").count() == 0  # a link that leads elsewhere is none
    assert "1 failed" in (panel.locator("table .runs").first.text_content() or "")
