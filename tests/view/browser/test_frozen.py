"""The frozen page: one file, silent, drawing what the document says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cos2p.tracking.files import StopNote, write_stop_note
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
    assert seen.ask(POINTS, "chance") == 2
    assert seen.ask(POINTS, "loss") == len(run["rounds"]["loss"])
    seen.page.get_by_role("button", name="Exits", exact=True).click()
    exits = run["evaluations"]["exits"]
    assert [seen.ask(POINTS, f"exit-{depth}") for depth in exits] == [evaluations] * len(exits)
    strokes = (
        "[...document.querySelectorAll(\"#curves [data-series^='exit-'] .line\")].map(l => l.getAttribute('stroke'))"
    )
    assert len(set(seen.ask(strokes))) == len(exits)  # no two in one colour
    seen.page.get_by_role("button", name="Server and clients", exact=True).click()
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


def test_a_round_that_only_told_sums_of_features_trained_nothing(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    updates = view["runs"][0]["updates"]
    first = updates["round"].count(0)
    updates["start"][:first] = updates["top"][:first]
    seen = visit(page_of(view, tmp_path))
    seen.page.locator("#window input[type=range]").fill("0")
    assert "reported sums of its features, nothing trained" in seen.page.locator("#window output").inner_text()
    seen.page.locator("#window").get_by_role("button", name="Table").click()
    reported = seen.page.locator("#window table td", has_text="reported sums of features")
    assert reported.count() == first


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
    assert {name for name, rows in tables if rows == 0} <= {"troubles", "further"}  # none happened; a list


def test_the_page_says_what_the_run_is_of_and_what_an_accuracy_is_worth(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    view["runs"][0]["header"]["best_exit"] = {
        "depth": 6,
        "top1": 0.78,
        "deepest": 8,
        "deepest_top1": 0.74,
        "part": "test",
    }
    seen = visit(page_of(view, tmp_path))
    facts = seen.ask("[...document.querySelectorAll('#about dt')].map(dt => dt.textContent)")
    assert facts == [name for name, _ in view["runs"][0]["about"]]
    assert "chance 10 %" in seen.page.locator("#overview .tile").first.inner_text()
    assert "Exit 6 is better than the deepest: 78.0 % against 74.0 %" in seen.page.locator("#curves").inner_text()


def test_block_1_is_at_the_bottom_of_every_panel(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path))
    seen.page.locator("#window .heat canvas").focus()
    seen.page.keyboard.press("ArrowRight")
    assert "block 8" in seen.page.locator("#window [role=status]").inner_text()
    seen.page.locator("#coverage .heat canvas").first.focus()
    seen.page.keyboard.press("ArrowRight")
    assert "Block 8" in seen.page.locator("#coverage [role=status]").first.inner_text()


@pytest.mark.parametrize(("failed", "words"), [(True, "The run did not start: no such file x.csv."), (False, "Nobody is at work on this run: no such file x.csv.")])  # fmt: skip  # noqa: E501
def test_a_run_that_stopped_says_why(visit: Visit, tmp_path: Path, failed: bool, words: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".cos2p-run").touch()
    write_stop_note(tmp_path / "run", StopNote(failed, "no such file x.csv"))
    seen = visit(page_of_run(tmp_path / "run", tmp_path))
    assert seen.page.locator(".banner[role=alert]").inner_text().startswith(words)
    assert seen.ask("document.querySelectorAll('section.panel:not([hidden])').length") == 0


def test_no_column_is_cut_off_at_1280(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path))
    tables = "[...document.querySelectorAll('section.panel:not([hidden]) .scroller')]"
    assert seen.ask(f"{tables}.filter(t => t.scrollWidth > t.clientWidth + 1).map(t => t.ariaLabel)") == []


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
