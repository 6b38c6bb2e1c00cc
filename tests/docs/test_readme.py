"""README is short, and its picture is of the records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import REPOSITORY
from tools.front_picture import PANELS, figures

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_it_has_at_most_700_words() -> None:
    assert len(README.split()) <= 700


def test_no_sentence_has_more_than_two_figures() -> None:
    prose = re.sub(r"```.*?```|^\|.*$", "", README, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    crowded = [one for one in re.split(r"(?<=[.:!?])\s", prose) if len(re.findall(r"\d+(?:\.\d+)?", one)) > 2]
    assert crowded == []


@pytest.mark.parametrize("panel", PANELS)
def test_the_picture_is_made_of_runs_that_are_there(panel: str) -> None:
    for points in PANELS[panel].values():
        for record, method, _ in points:
            assert 0 < figures(record, method)[0] <= 100


def test_the_table_has_the_figures_of_the_records() -> None:
    mean, half, _ = figures("dino-caltech101-frontier-factors", "cos2p")
    assert f"{mean:.1f} ± {half:.1f} %" in README
    automatic = (REPOSITORY / "docs" / "results" / "automatic.md").read_text(encoding="utf-8")
    (row,) = [line for line in automatic.splitlines() if line.startswith("| minilm-trec, 30 MB | 3")]
    assert f"{row.split(' | ')[3]} %" in README
    assert Path(REPOSITORY / "docs" / "images" / "memory.svg").is_file()
