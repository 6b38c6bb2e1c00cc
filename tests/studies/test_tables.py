"""Means, intervals, bold and paired differences with numbers that can be checked by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.studies.columns import COLUMNS, TOP1
from cos2p.studies.tables import Table, differences_table, results_table
from tests.studies.fakes import figures, outcomes_of, tiny_grid

T_2 = 12.706204736
"""Student's t at 97.5 % with 1 degree of freedom, for two seeds."""


def table(tmp_path: Path, tops: dict[str, tuple[float, float]], over_budget: frozenset[str] = frozenset()) -> Table:
    """Two seeds per row, with these top-1 scores."""
    grid = tiny_grid(tmp_path, rows=tuple(tops))
    answers = {(row, seed): figures(pair[seed]) for row, pair in tops.items() for seed in (0, 1)}
    return results_table("results", "Results", grid, outcomes_of(grid, answers), over_budget=over_budget)


def bold(made: Table, column: str = "top1") -> list[str]:
    return [line.key for line in made.lines if line.figures[column].best]


def test_mean_and_interval_over_seeds(tmp_path: Path) -> None:
    figure = table(tmp_path, {"a": (0.4, 0.6)}).line("a").figures["top1"]
    assert figure.mean == pytest.approx(0.5)
    # Deviation √(2 · 0.1²) = 0.1414, over √2: 0.1.
    assert figure.half == pytest.approx(0.1 * T_2)
    assert figure.write(TOP1) == "50.0 ± 127.1"
    assert figure.by_seed == {0: 0.4, 1: 0.6}


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("a",), seeds=(0,))
    made = results_table("r", "R", grid, outcomes_of(grid, {("a", 0): figures(0.625)}))
    assert made.line("a").figures["top1"].write(TOP1) == "62.5"
    assert made.line("a").figures["top1"].half is None


def test_the_best_is_bold_by_the_columns_direction(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("slow", "fast"))
    slow, fast = {"virtual_seconds": 600.0, "wall_seconds": 1.0}, {"virtual_seconds": 60.0, "wall_seconds": 2.0}
    answers = {("slow", seed): figures(0.7, **slow) for seed in (0, 1)}
    answers |= {("fast", seed): figures(0.6, **fast) for seed in (0, 1)}
    made = results_table("r", "R", grid, outcomes_of(grid, answers))
    assert bold(made, "top1") == ["slow"]
    assert bold(made, "virtual_seconds") == ["fast"]
    assert bold(made, "wall_seconds") == []
    assert bold(made, "ru") == [], "equal: nobody is better"


def test_nobody_is_bold_where_intervals_overlap(tmp_path: Path) -> None:
    # Half intervals 12.7 · 0.001 = 1.3 points each: three points are clear, two are not.
    clear = {"a": (0.529, 0.531), "b": (0.499, 0.501), "c": (0.1, 0.3)}
    assert bold(table(tmp_path, {"a": (0.529, 0.531), "b": (0.499, 0.501)})) == ["a"]
    assert bold(table(tmp_path, {"a": (0.519, 0.521), "b": (0.499, 0.501)})) == []
    assert bold(table(tmp_path, clear)) == [], "26 ± 78 and the like cannot be excluded to be better"


def test_one_seed_makes_nobody_bold(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("a", "b"), seeds=(0,))
    made = results_table("r", "R", grid, outcomes_of(grid, {("a", 0): figures(0.9), ("b", 0): figures(0.1)}))
    assert bold(made) == []


def test_rows_over_the_budget_are_marked_and_never_bold(tmp_path: Path) -> None:
    made = table(tmp_path, {"bound": (0.9, 0.9), "a": (0.6, 0.6), "b": (0.5, 0.5)}, frozenset({"bound"}))
    assert bold(made) == ["a"]
    assert [line.marks for line in made.lines] == ["*", "", ""]
    assert any("budget" in note for note in made.notes)


def test_a_row_whose_runs_took_more_than_a_device_has_is_marked_too(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("a", "b"), seeds=(0,))
    over = figures(0.9, over_budget={"devices": 1, "needs": 2, "has": 1})
    made = results_table("r", "R", grid, outcomes_of(grid, {("a", 0): over, ("b", 0): figures(0.1)}))
    assert [line.marks for line in made.lines] == ["*", ""]


def test_of_means_that_are_written_alike_none_is_bold(tmp_path: Path) -> None:
    assert bold(table(tmp_path, {"a": (0.5, 0.5), "b": (0.5001, 0.5001), "c": (0.4, 0.4)})) == []


def test_a_row_without_all_seeds_is_marked_and_never_bold(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("a", "b", "c"))
    answers = {(row, seed): figures(0.5) for row in "ab" for seed in (0, 1)}
    answers |= {("a", 0): figures(0.9), ("a", 1): "the loss became nan", ("c", 0): figures(0.95)}
    made = results_table("r", "R", grid, outcomes_of(grid, answers))
    assert [line.marks for line in made.lines] == ["†", "", "†"]
    assert made.line("a").failures == {1: "the loss became nan"}
    assert made.line("c").waiting == (1,)
    assert made.line("a").figures["top1"].by_seed == {0: 0.9}
    assert bold(made) == []  # nobody is left to be better than


def test_a_missing_figure_is_a_dash(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("a",), seeds=(0,))
    made = results_table("r", "R", grid, outcomes_of(grid, {("a", 0): figures(client_f1=None)}))
    column = next(column for column in COLUMNS if column.key == "client_f1")
    assert made.line("a").figures["client_f1"].write(column) == "–"


def test_a_column_that_no_run_has_is_left_out(tmp_path: Path) -> None:
    """Three classes have no top-5."""
    grid = tiny_grid(tmp_path)
    few = {(row, seed): figures(top5=None, client_top5=None) for row in "ab" for seed in (0, 1)}
    made = results_table("compare", "Methods", grid, outcomes_of(grid, few))
    assert "top5" not in {column.key for column in made.columns}
    assert {column.key for column in differences_table("d", "D", made, "a").columns}.isdisjoint({"top5", "client_top5"})
    nothing_yet = results_table("compare", "Methods", grid, {})
    assert "top5" in {column.key for column in nothing_yet.columns}


def test_peak_memory_of_all_and_of_the_weakest(tmp_path: Path) -> None:
    line = table(tmp_path, {"a": (0.4, 0.6)}).line("a")
    assert line.figures["peak_memory"].mean == 9_000_000
    assert line.figures["weak_memory"].mean == 4_000_000


def test_chance_and_majority_stand_beside_the_accuracies(tmp_path: Path) -> None:
    assert table(tmp_path, {"a": (0.4, 0.6)}).baselines == {}, "these runs do not know them"
    grid = tiny_grid(tmp_path, rows=("a", "b"))
    answers = {(row, seed): figures(0.5, chance=0.1, majority=0.12 + 0.02 * seed) for row in "ab" for seed in (0, 1)}
    made = results_table("r", "R", grid, outcomes_of(grid, answers | {("b", 1): figures(0.5)}))
    assert made.baselines == pytest.approx({"chance": 0.1, "majority": 0.38 / 3})
    assert made.notes[-1] == "To compare top-1 with: chance 10.0 %, always the most frequent class 12.7 %."
    assert made.to_dict()["baselines"] == made.baselines


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    results = table(tmp_path, {"ours": (0.5, 0.9), "rival": (0.4, 0.79), "twin": (0.5, 0.8)})
    differences = differences_table("d", "Differences", results, "ours")
    assert [line.key for line in differences.lines] == ["rival", "twin"]
    figure = differences.line("rival").figures["top1"]
    assert figure.by_seed == pytest.approx({0: -0.1, 1: -0.11})
    assert figure.mean == pytest.approx(-0.105)
    # The seeds differ by 40 points, their differences by one: half = t · 0.005.
    assert figure.half == pytest.approx(0.005 * T_2)
    assert figure.best, "the interval does not hold 0"
    assert not differences.line("twin").figures["top1"].best
    column = next(column for column in differences.columns if column.key == "top1")
    assert figure.write(column) == "−10.5 ± 6.4"
    assert column.heading == "server top-1 (points)"


def test_only_seeds_that_both_have_are_paired(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("ours", "rival"))
    answers = {("ours", 0): figures(0.5), ("ours", 1): figures(0.9), ("rival", 0): "failed", ("rival", 1): figures(0.6)}
    results = results_table("r", "R", grid, outcomes_of(grid, answers))
    figure = differences_table("d", "D", results, "ours").line("rival").figures["top1"]
    assert figure.by_seed == pytest.approx({1: -0.3})
    assert figure.half is None


def test_the_machine_readable_table_is_not_rounded(tmp_path: Path) -> None:
    made = table(tmp_path, {"a": (1 / 3, 1 / 3)}).to_dict()
    assert made["rows"][0]["figures"]["top1"]["mean"] == 1 / 3
    assert made["rows"][0]["runs"] == {"0": "cells/a-s0", "1": "cells/a-s1"}
