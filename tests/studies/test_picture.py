"""A picture of several frontiers is that of their records."""

from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.studies.frontier import budget_column
from cos2p.studies.tables import Figure, Line, Table
from tools.frontier_picture import joined, picture

RECORDS = Path(__file__).parents[2] / "docs" / "results" / "pretrained"
SMALL, LARGE = RECORDS / "dino-caltech101-frontier-80", RECORDS / "dino-caltech101-frontier"


def table(memory: int, **accuracies: float) -> Table:
    column = budget_column(memory)
    lines = [
        Line(name, name, {column.key: Figure.of({0: value, 1: value + 0.02})}, {}) for name, value in accuracies.items()
    ]
    return Table("by_budget", "", (column,), tuple(lines))


def test_every_method_has_a_line_through_all_budgets_the_smallest_first() -> None:
    whole = joined([table(160, a=0.8, b=0.7), table(80, b=0.5, c=0.4)])
    assert [column.key for column in whole.columns] == ["at_80", "at_160"]
    means = {line.title: [line.figures[column.key].mean for column in whole.columns] for line in whole.lines}
    assert means == {
        "a": [None, pytest.approx(0.81)],
        "b": [pytest.approx(0.51), pytest.approx(0.71)],
        "c": [pytest.approx(0.41), None],
    }


def test_of_two_records_of_the_same_place_the_later_one_is_drawn() -> None:
    (line,) = joined([table(80, a=0.5), table(80, a=0.6)]).lines
    assert line.figures["at_80"].mean == pytest.approx(0.61)


def test_a_picture_of_two_records() -> None:
    assert "80 MB 76.7 ± 2.3, 160 MB 81.5 ± 6.7" in picture([SMALL, LARGE])


def test_what_cannot_stand_in_one_picture_is_refused() -> None:
    with pytest.raises(SystemExit, match="which has no budgets; name frontiers"):
        picture([RECORDS / "dino-caltech101"])
    with pytest.raises(SystemExit, match="dino-caltech101, minilm-trec; a picture is of one recipe"):
        picture([SMALL, RECORDS / "minilm-trec-told-head-frontier"])
