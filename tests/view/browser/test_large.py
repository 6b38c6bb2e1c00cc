"""500 rounds × 64 devices: 32,000 tasks open at once, and scroll and zoom without a stutter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.view.browser.watched import Watched, page_of_run
from tests.view.diary import large_run

pytestmark = pytest.mark.browser
Visit = Callable[..., Watched]

SECONDS = 2.0
MEGABYTES = 10


def test_a_large_run_opens_in_under_two_seconds(
    visit: Visit, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    url = page_of_run(large_run(500, 64).write(tmp_path / "run"), tmp_path)
    size = (tmp_path / "report.html").stat().st_size / 1e6
    # The best of three: other work on the machine is not the page's.
    opened = min(visit(url).ask("cos2p.ready") for _ in range(3)) / 1e3
    seen = visit(url)
    tasks = int(seen.ask("document.querySelector('#fleet .lanes').dataset.tasks"))
    frame = seen.ask("Number(document.querySelector('#fleet .lanes').dataset.drawMs)")
    print(f"\n{tasks:,} tasks, {size:.1f} MB: open after {opened:.2f} s, lanes drawn in {frame:.0f} ms")
    record_property("opened_seconds", opened)
    assert tasks >= 32_000
    assert size < MEGABYTES
    assert opened < SECONDS
