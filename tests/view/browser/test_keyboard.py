"""Everything can be reached and moved by keyboard, and has a name for those who listen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.view.browser.watched import Watched, page_of, sample

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]

FLEET = "cos2p.page.panels.fleet.chart.state()"
NAMELESS = """() => [...document.querySelectorAll('a[href], button, select, input, [tabindex="0"]')]
  .filter(e => e.checkVisibility() || e.classList.contains('skip'))
  .filter(e => !(e.getAttribute('aria-label') || e.textContent || '').trim())
  .map(e => e.outerHTML.slice(0, 120))"""
TWICE = """() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  return ids.filter((id, at) => ids.indexOf(id) !== at); }"""
DANGLING = """() => [...document.querySelectorAll('[aria-labelledby], [aria-controls]')]
  .flatMap(e => [e.getAttribute('aria-labelledby'), e.getAttribute('aria-controls')])
  .filter(id => id && !document.getElementById(id))"""


def test_tab_reaches_the_controls_in_the_order_of_the_page(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path))
    places = []
    for _ in range(60):
        seen.page.keyboard.press("Tab")
        places.append(
            seen.ask(
                "(e => [(e.closest('section, header')?.id ?? ''), e.tagName.toLowerCase()])(document.activeElement)"
            )
        )
    assert places[0] == ["", "a"]  # skip to the panels
    rooms = list(dict.fromkeys(room for room, _ in places if room))
    assert rooms[:7] == ["top", "curves", "classes", "fleet", "coverage", "window", "masks"]
    assert ["fleet", "canvas"] in places
    assert ["window", "input"] in places
    assert ["masks", "select"] in places


def test_arrow_keys_select_tasks_and_zoom(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path))
    seen.page.locator("#fleet canvas").first.focus()
    press = seen.page.keyboard.press
    press("ArrowRight")
    assert seen.ask(FLEET)["selected"] == {"lane": 0, "task": 0}
    press("ArrowRight")
    press("ArrowDown")
    assert seen.ask(FLEET)["selected"]["lane"] == 1
    press("End")
    tasks = seen.ask("cos2p.runData.lanes(cos2p.page.view().runs[0])[1].tasks.length")
    assert seen.ask(FLEET)["selected"] == {"lane": 1, "task": tasks - 1}
    name = sample()["runs"][0]["devices"][1]["name"]
    assert name in (seen.page.locator("#fleet-details").text_content() or "")
    whole = seen.ask(FLEET)["range"]
    press("+")
    press("+")
    near = seen.ask(FLEET)["range"]
    assert near[1] - near[0] == pytest.approx(0.36 * (whole[1] - whole[0]))
    press("Shift+ArrowLeft")
    assert seen.ask(FLEET)["range"][0] < near[0]
    press("0")
    assert seen.ask(FLEET)["range"] == whole
    press("Escape")
    assert seen.ask(FLEET)["selected"] is None


def test_pointer_and_wheel_zoom_and_pan(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path))
    seen.page.locator("#fleet canvas").first.scroll_into_view_if_needed()
    box = seen.page.locator("#fleet canvas").first.bounding_box()
    assert box is not None
    mouse = seen.page.mouse
    mouse.move(box["x"] + 600, box["y"] + 40)
    seen.page.keyboard.down("Control")
    mouse.wheel(0, -400)
    seen.page.keyboard.up("Control")
    seen.until(f"{FLEET}.zoomed")
    before = seen.ask(FLEET)["range"]
    mouse.down()
    mouse.move(box["x"] + 500, box["y"] + 40, steps=4)
    mouse.up()
    assert seen.ask(FLEET)["range"][0] > before[0]  # dragged to the left: later times come into sight
    seen.page.get_by_role("button", name="Show the whole run").click()
    assert not seen.ask(FLEET)["zoomed"]


def test_charts_and_heat_maps_speak(visit: Visit, tmp_path: Path) -> None:
    seen = visit(page_of(sample(), tmp_path))
    press = seen.page.keyboard.press
    seen.page.locator("#curves svg.lines").first.focus()
    press("End")
    assert "Round 6" in (seen.page.locator("#curves [role=status]").first.text_content() or "")
    seen.page.locator("#coverage canvas").first.focus()
    press("ArrowRight")
    press("ArrowRight")
    said = seen.page.locator("#coverage [role=status]").first.text_content() or ""
    assert said.startswith("Block 8, head 2. clients ")


def test_every_control_has_a_name(visit: Visit, tmp_path: Path) -> None:
    view = sample()
    view["runs"].append(sample()["runs"][0])
    seen = visit(page_of(view, tmp_path))
    assert seen.ask(NAMELESS) == []
    assert seen.ask(TWICE) == []
    assert seen.ask(DANGLING) == []
    assert seen.ask("document.documentElement.lang") == "en"
    assert seen.ask("document.querySelectorAll('h1').length") == 1


def test_text_can_be_read_on_its_ground(visit: Visit, tmp_path: Path) -> None:
    """WCAG's contrast of 4.5 for every colour of text on every ground it stands on, in both themes."""
    seen = visit(page_of(sample(), tmp_path))
    for theme in ("light", "dark"):
        faint = seen.ask(CONTRAST, theme)
        assert faint == []


CONTRAST = """theme => {
  document.documentElement.dataset.theme = theme;
  const style = getComputedStyle(document.documentElement);
  const channel = c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = hex => [1, 3, 5].map(i => channel(parseInt(hex.slice(i, i + 2), 16)))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const of = name => light(style.getPropertyValue(name).trim());
  const ratio = (a, b) => (Math.max(of(a), of(b)) + 0.05) / (Math.min(of(a), of(b)) + 0.05);
  const pairs = ['--ink', '--ink-soft', '--ink-faint', '--accent', '--warn', '--good']
    .flatMap(ink => ['--ground', '--card', '--well'].map(ground => [ink, ground]))
    .concat(['--accent', '--warn', '--good'].map(ink => [ink, `${ink}-soft`]), [['--ink', '--pressed']]);
  return pairs.filter(([a, b]) => ratio(a, b) < 4.5).map(([a, b]) => `${a} on ${b}: ${ratio(a, b).toFixed(2)}`);
}"""
