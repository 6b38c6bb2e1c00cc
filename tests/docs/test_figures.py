"""Figures are plain SVG: well formed, described for those who cannot see them, readable on light and dark."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.docs.blocks import REPOSITORY

FIGURES = sorted((REPOSITORY / "docs" / "explanation" / "figures").glob("*.svg"))


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_figure_is_self_contained_and_described(figure: Path) -> None:
    text = figure.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert root.attrib["role"] == "img"
    assert len(root.attrib["aria-label"]) > 20
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_there_are_figures() -> None:
    assert len(FIGURES) == 3
