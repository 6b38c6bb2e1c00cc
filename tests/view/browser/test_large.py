"""500 rounds × 64 devices of a ViT-Base: 32,000 tasks open at once, in a file that can be mailed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.view.browser.large import large_view
from tests.view.browser.watched import Watched, page_of

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
