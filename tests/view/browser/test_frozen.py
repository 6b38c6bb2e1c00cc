"""The frozen page: one file, silent, drawing what the document says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.view.browser.watched import Watched, page_of, page_of_run, sample
from tests.view.diary import two_rounds

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]

POINTS = "key => Number(document.querySelector(`#curves [data-series='${key}']`).dataset.points)"
LANES = "({...document.querySelector('#fleet .lanes').dataset})"


def test_it_loads_without_complaint_and_without_asking_anybody(visit: Visit, tmp_path: Path) -> None:
    url = page_of(sample(), tmp_path)
    seen = visit(url)
    assert seen.requests == [url, "data:,"] or seen.requests == [url]
    assert seen.complaints == []
    assert seen.ask("document.querySelectorAll('section.panel:not([hidden])').length") >= 9
    assert seen.ask("[...document.querySelectorAll('section.panel .why')].every(p => p.textContent.length > 40)")


def test_curves_have_the_right_number_of_points(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    run = view["runs"][0]
    seen = visit(page_of(view, tmp_path))
    evaluations = len(run["evaluations"]["version"])
    assert seen.ask(POINTS, "test") == evaluations
    assert seen.ask(POINTS, "clients") == len(run["rounds"]["version"])
    for depth in run["evaluations"]["exits"]:
        assert seen.ask(POINTS, f"exit-{depth}") == evaluations
    assert seen.ask(POINTS, "loss") == len(run["rounds"]["loss"])
    seen.page.get_by_role("button", name="Time", exact=True).click()
    assert seen.ask(POINTS, "test") == evaluations


def test_lanes_match_the_events(visit: Visit, tmp_path: Path) -> None:
    """Two devices; `a` did two tasks of 10 s each, `b` one of 15 s that came one aggregation late."""
    seen = visit(page_of_run(two_rounds().write(tmp_path / "run"), tmp_path))
    shown = seen.ask(LANES)
    assert (shown["lanes"], shown["tasks"], shown["aggregations"]) == ("2", "3", "2")
    lanes = seen.ask("cos2p.runData.lanes(cos2p.page.view().runs[0])")
    assert [lane["name"] for lane in lanes] == ["a", "b"]
    spans = [[(task["start"], task["end"], task["tau"]) for task in lane["tasks"]] for lane in lanes]
    assert spans == [[(0, 10, 0), (10, 20, 0)], [(0, 15, 1)]]
    assert [(name, end - start) for name, start, end in lanes[0]["tasks"][0]["phases"]] == [
        ("download", 1),
        ("masks", 2),
        ("training", 6),
        ("upload", 1),
    ]


def test_masks_are_read_bit_by_bit(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of_run(two_rounds().write(tmp_path / "run"), tmp_path))
    kept = seen.ask("cos2p.page.view().runs[0].masks.kept[1].map(m => [m.block, [...cos2p.runData.bits(m.units, 8)]])")
    assert kept == [[0, [0, 0, 1, 1, 1, 1, 0, 0]], [1, [0, 0, 0, 0, 0, 0, 0, 1]]]


def test_the_rolling_window_moves_with_its_slider(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    seen = visit(page_of(view, tmp_path))
    last = len(view["runs"][0]["rounds"]["t"]) - 1
    assert seen.ask("cos2p.page.panels.window.state()") == last
    slider = seen.page.get_by_role("slider", name="Round")
    slider.focus()
    seen.page.keyboard.press("ArrowLeft")
    assert seen.ask("cos2p.page.panels.window.state()") == last - 1
    assert f"round {last} of" in (slider.get_attribute("aria-valuetext") or "")
    seen.page.keyboard.press("Home")
    seen.page.get_by_role("button", name="Play").click()
    seen.until("cos2p.page.panels.window.state() >= 2")


def test_every_chart_has_its_figures_as_a_table(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path))
    buttons = seen.page.get_by_role("button", name="Table of")
    for at in range(buttons.count()):
        buttons.nth(at).click()
    panels = "[...document.querySelectorAll('section.panel:not([hidden])')]"
    tables = seen.ask(f"{panels}.map(s => [s.id, s.querySelectorAll('tbody tr').length])")
    assert {name for name, rows in tables if rows == 0} <= {"troubles"}  # none happened in this run


def test_a_run_without_any_event_yet(visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "events.jsonl").touch()
    seen = visit(page_of_run(tmp_path / "run", tmp_path))
    assert seen.page.locator(".pill").text_content() in ("Waiting to start", "Stopped")


@pytest.mark.parametrize(
    ("name", "width", "scheme"), [("light", 1280, "light"), ("dark", 1280, "dark"), ("phone", 360, "light")]
)
def test_pictures_are_kept(visit: Visit, tmp_path: Path, pictures: Path, name: str, width: int, scheme: str) -> None:
    seen = visit(page_of(sample(), tmp_path), width=width, height=800, scheme=scheme)
    assert seen.ask("document.documentElement.dataset.theme") == ("dark" if scheme == "dark" else "light")
    assert seen.ask("document.documentElement.scrollWidth") <= width  # nothing sticks out to the side
    seen.page.screenshot(path=pictures / f"{name}.png", full_page=True)
    assert (pictures / f"{name}.png").stat().st_size > 20_000


def test_the_theme_can_be_chosen(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path), scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = seen.ask(ground)
    seen.page.get_by_role("button", name="Light theme").click()
    assert seen.ask("document.documentElement.dataset.theme") == "light"
    assert seen.ask(ground) != dark


def test_several_runs_stand_beside_each_other(visit: Visit, tmp_path: Path) -> None:
    view: dict[str, Any] = sample()
    other = sample()["runs"][0]
    other["header"]["name"] = "another"
    view["runs"].append(other)
    seen = visit(page_of(view, tmp_path))
    assert seen.ask("[...document.querySelectorAll('#runs .chart')].map(c => c.dataset.series)") == ["2", "2"]
    seen.page.get_by_role("combobox", name="Run shown").select_option(label="another")
    assert "another" in seen.ask("document.title")
