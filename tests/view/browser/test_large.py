"""500 rounds × 64 devices of a ViT-Base, and 10,000 devices: both open at once, in a file that can be mailed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.view.browser.large import large_view
from tests.view.browser.watched import Watched, page_of, page_of_run
from tests.view.diary import wide_run

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]

SECONDS = 2.0
MEGABYTES = 10
OPENED = "[cos2p.ready, Number(document.documentElement.dataset.complete)]"
LANES = "({...document.querySelector('#fleet .lanes').dataset})"


def test_a_large_run_opens_in_under_two_seconds(visit: Visit, tmp_path: Path) -> None:
    url = page_of(large_view(500, 64), tmp_path)
    size = (tmp_path / "report.html").stat().st_size / 1e6
    first = visit(url)
    first.page.locator("#fleet").scroll_into_view_if_needed()
    first.until("document.querySelector('#fleet .lanes').dataset.drawn > 0")
    shown = first.ask(LANES)
    opened, complete = first.ask(OPENED)
    for _ in range(2):  # the best of three: other work on this machine is not the page's
        again = visit(url).ask(OPENED)
        opened, complete = min(opened, again[0]), min(complete, again[1])
    print(f"\n{shown['tasks']} tasks, {size:.1f} MB: first picture {opened:.0f} ms, all panels {complete:.0f} ms, "
          f"lanes drawn in {shown['drawMs']} ms")  # fmt: skip
    assert int(shown["tasks"]) == 32_000
    assert int(shown["drawn"]) < 64 * 1280  # no more bars than there are pixels
    assert size < MEGABYTES
    assert opened < 1000 * SECONDS

    first.page.locator("#fleet canvas").first.focus()
    for key in ("End", "+", "+", "+", "+", "ArrowUp", "ArrowDown"):
        first.page.keyboard.press(key)
    # Only what is in sight is drawn.
    first.until(f"document.querySelector('#fleet .lanes').dataset.drawn < {shown['drawn']} / 2")


def test_ten_thousand_devices_are_shown_by_groups_a_sample_and_a_search(visit: Visit, tmp_path: Path) -> None:
    url = page_of_run(wide_run(10_000, rounds=10, each=100).write(tmp_path / "run"), tmp_path)
    size = (tmp_path / "report.html").stat().st_size / 1e6
    seen = visit(url)
    opened, complete = seen.ask(OPENED)
    for _ in range(2):
        again = visit(url).ask(OPENED)
        opened, complete = min(opened, again[0]), min(complete, again[1])
    print(f"\n10,000 devices, {size:.1f} MB: first picture {opened:.0f} ms, all panels {complete:.0f} ms")
    assert size < MEGABYTES
    assert opened < 1000 * SECONDS
    assert seen.ask("document.querySelector('#fleet .group-lanes .heat').dataset.rows") == "4"
    assert seen.ask(LANES)["lanes"] == "48"
    rows = "document.querySelectorAll('#devices tbody tr').length"
    assert seen.ask(rows) == 48

    seen.page.get_by_role("searchbox", name="Search a device").fill("pi-12")
    seen.until(f"{rows} === 111")  # pi-12, pi-120 to pi-129, pi-1200 to pi-1299
    seen.page.get_by_role("searchbox", name="Search a device").fill("")
    seen.page.get_by_role("combobox", name="Group of devices").select_option("jetson")
    seen.until("[...document.querySelectorAll('#devices tbody th')].every(th => th.textContent.startsWith('jetson-'))")
    assert "48 of 10,000" in seen.page.locator("#crowd").inner_text()
