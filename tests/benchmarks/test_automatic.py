"""The page about automatic choices shows what its records hold; `python -m benchmarks.automatic tables` writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.automatic import plans_tables, rates_tables
from tests.docs.blocks import REPOSITORY

RECORDS = REPOSITORY / "docs" / "results" / "automatic"


@pytest.mark.parametrize(("mark", "tables"), [("plans", plans_tables), ("rates", rates_tables)])
def test_the_tables_are_those_of_the_records(mark: str, tables: Callable[[Path], str]) -> None:
    page = RECORDS.with_suffix(".md").read_text(encoding="utf-8")
    assert page.split(f"<!-- {mark} -->")[1].split("<!-- end -->")[0].strip() == tables(RECORDS)
