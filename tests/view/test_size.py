"""500 rounds × 64 devices: 32,000 updates. How large the file is and how long it takes to make."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cos2p.view.build import RunSource
from cos2p.view.frozen import write_report
from tests.view.diary import large_run

MEGABYTE = 1_000_000


@pytest.mark.slow
def test_500_rounds_of_64_devices_stay_small(tmp_path: Path) -> None:
    """3.6 MB and 5 s of processor time when this was written, most of it to read a log of 40 MB."""
    folder = large_run(500, 64).write(tmp_path / "run")
    began = time.process_time()
    size = write_report([folder], tmp_path / "report.html")
    assert size < 5 * MEGABYTE  # 10 is the promise
    assert time.process_time() - began < 30


def test_a_live_look_costs_only_what_is_new(tmp_path: Path) -> None:
    whole = large_run(40, 16)
    folder = whole.write(tmp_path / "run")
    source = RunSource(folder)
    began = time.process_time()
    source.refresh()
    first = time.process_time() - began
    began = time.process_time()
    for _ in range(10):
        assert not source.refresh()
    assert (time.process_time() - began) / 10 < first / 10 + 0.01
