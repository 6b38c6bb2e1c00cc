"""The page about fine-tuning shows what its records hold; `python -m benchmarks.finetune_page` writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.finetune_page import job_table, task_tables
from tests.docs.blocks import REPOSITORY

RECORDS = REPOSITORY / "docs" / "results" / "finetune"


@pytest.mark.parametrize(("mark", "table"), [("job", job_table), ("tasks", task_tables)])
def test_the_tables_are_those_of_the_records(mark: str, table: Callable[[Path], str]) -> None:
    page = RECORDS.with_suffix(".md").read_text(encoding="utf-8")
    assert page.split(f"<!-- {mark} -->")[1].split("<!-- end -->")[0].strip() == table(RECORDS)
