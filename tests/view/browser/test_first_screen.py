"""The first screen answers: did it work, against what, at what price. Nothing on a phone has to be pushed sideways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.view.browser.watched import Watched, page_of, page_of_run, sample
from tests.view.diary import Diary, two_rounds

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]
STICKS_OUT = """[...document.querySelectorAll('body *')].filter(e => e.clientWidth && !e.closest('thead') && (
  e.getBoundingClientRect().right
  > innerWidth + 1 || (e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX === 'auto')))
  .map(e => `${e.tagName} ${e.id} ${e.className}`)"""


def told_then_trained() -> Diary:
    """Two blocks that are trained whole; in the last round every device only reports sums of features."""
    diary = Diary().started("a").joined(0, "a").task(0, "a#0")
    diary.answered(9, "a#0", blocks={block: ([*range(4)], [*range(8)]) for block in (0, 1)}, loss=1.0)
    diary.aggregated(9, 1, ["a"])
    diary.add("merged", 10, client="a", task="a#1", version=1, staleness=0, window=[2, 2], size=0.0, report={})
    return diary.aggregated(10, 2, ["a"]).finished(11, 2, test=0.8)


def test_the_first_screen_is_a_verdict_with_its_price(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    run = view["runs"][0]
    run["header"] |= {
        "verdict": {"headline": "Training helped: +5.2 points", "outcome": "87.7 → 92.9 %", "reference": "whole"},
        "base": 0.877, "full_memory": 308_000_000,
    }  # fmt: skip
    run["devices"][0] |= {"predicted": 44_000_000, "memory": 60_000_000}
    seen = visit(page_of(view, tmp_path), height=800)
    assert seen.page.locator("#overview h2").inner_text() == "Training helped: +5.2 points"
    assert [p.inner_text() for p in seen.page.locator("#overview > p:visible").all()] == ["87.7 → 92.9 %", "Whole"]  # fmt: skip  # noqa: E501
    tiles = dict(zip(*[iter(seen.ask("[...document.querySelectorAll('.tile dt, .tile dt + dd')].map(e => e.textContent)"))] * 2, strict=True))  # fmt: skip  # noqa: E501
    assert tiles["Memory of a device"] == "44.0 MB of 60.0 MB"
    assert list(tiles) == ["Accuracy", "Memory of a device", "Bytes sent", "Virtual time", "Round"]
    assert "before training 87.7 %" in seen.page.locator(".tile").first.inner_text()
    assert seen.ask("document.querySelector('#overview').getBoundingClientRect().bottom") < 800
    explained = seen.page.locator("#further dl > div")
    assert "RU" in explained.nth(1).inner_text()
    assert all(len(one.inner_text().splitlines()) == 3 for one in explained.all()), "name, figure, meaning"


@pytest.mark.parametrize("width", [360, 390])
def test_nothing_has_to_be_pushed_sideways_on_a_phone(visit: Visit, tmp_path: Path, width: int) -> None:
    view: dict[str, Any] = sample()
    names = view["runs"][0]["devices"]
    names[0]["name"] = "the-first-jetson-orin-nano-in-the-cellar-of-building-14-west-wing-07"
    seen = visit(page_of(view, tmp_path), width=width, height=844)
    buttons = seen.page.get_by_role("button", name="Table of")
    for at in range(buttons.count()):
        buttons.nth(at).click()
    assert seen.ask("document.documentElement.scrollWidth") <= width
    assert seen.ask(STICKS_OUT) == []


def test_a_long_name_loses_its_middle(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    name = "the-first-jetson-orin-nano-in-the-cellar-of-building-14-west-wing-07"
    view["runs"][0]["devices"][0]["name"] = name
    cell = visit(page_of(view, tmp_path)).page.locator("#devices tbody th span").first
    assert cell.inner_text().startswith("the-first")
    assert cell.inner_text().endswith("-wing-07")
    assert len(cell.inner_text()) == 28
    assert cell.get_attribute("title") == name


def test_the_page_explains_the_method_that_ran(visit: Visit, tmp_path: Path) -> None:
    """Devices that train all blocks have no window that moves, and no masks that chose anything; the last round that
    trained is the one that opens."""
    seen = visit(page_of_run(told_then_trained().write(tmp_path / "run"), tmp_path))
    assert seen.page.locator("#window h2").inner_text() == "Trained blocks"
    assert "all blocks at once" in seen.page.locator("#window .why").inner_text()
    assert seen.ask("cos2p.page.panels.window.state()") == 0
    assert not seen.page.locator("#masks").is_visible()


def test_masks_open_at_a_block_where_something_was_left_out(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of_run(two_rounds().write(tmp_path / "run"), tmp_path))
    assert seen.page.locator("#window h2").inner_text() == "The rolling window"
    shown = seen.page.locator("#masks select").input_value()
    masks = seen.ask("cos2p.page.view().runs[0].masks.kept.flat().map(mask => mask.block)")
    assert int(shown) in masks


def test_errors_by_class_and_the_learning_rate_over_time(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    view["runs"][0]["by_class"] = [["cat", 10, 9, 12], ["dog", 10, 2, 4], ["fox", 5, 4, 5]]
    seen = visit(page_of(view, tmp_path))
    rows = [row.inner_text().split() for row in seen.page.locator("#classes tbody tr").all()]
    assert [(row[0], row[2], row[4]) for row in rows] == [("dog", "20.0", "50.0"), ("fox", "80.0", "80.0"), ("cat", "90.0", "75.0")]  # fmt: skip  # noqa: E501
    points = "Number(document.querySelector(\"#curves [data-series='lr']\").dataset.points)"
    assert seen.ask(points) == len(view["runs"][0]["rounds"]["lr"])
