"""The page that chooses a method can be read in a minute."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "choose-a-method.md"


def test_it_begins_with_five_lines_and_its_cells_are_short() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line.startswith("- ") and "→" in line for line in lines[2:7]] == [True] * 5
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) > 8
    for cell in (cell for row in rows for cell in row.split("|")):
        words = re.sub(r"\]\([^)]*\)", "", cell).split()
        assert len(words) <= 25, cell
