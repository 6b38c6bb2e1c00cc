"""The page about CIFAR-10 trained to the end shows what its records hold, and a stopped run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.to_the_end import ROWS, Job, results_table, trials_table
from tests.docs.blocks import REPOSITORY

RESULTS = REPOSITORY / "docs" / "results"


@pytest.mark.parametrize(("mark", "table"), [("results", results_table), ("trials", trials_table)])
def test_the_tables_are_those_of_the_records(mark: str, table: object) -> None:
    page = (RESULTS / "to-the-end.md").read_text()
    shown = page.split(f"<!-- {mark} -->")[1].split("<!-- end -->")[0].strip()
    assert callable(table)
    assert shown == table(RESULTS / "to-the-end" / "runs")


def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    job = Job("growing-0", ROWS[0], 1e-3, 0)
    assert "--overwrite" in job.command(tmp_path)
    (tmp_path / "checkpoint.safetensors").touch()
    assert "--resume" in job.command(tmp_path)
