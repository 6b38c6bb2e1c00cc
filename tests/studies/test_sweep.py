from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.errors import ConfigError, RecipeError
from cos2p.studies.grid import Cell
from cos2p.studies.report import Report, StudyPlan, run_study
from cos2p.studies.sweep import SHORT_NAMES, Axis, parse_axes, sweep, sweep_rows
from tests.studies.fakes import FakeExecute, figures, tiny_base


def test_axes_are_given_together_or_apart() -> None:
    together = parse_axes(["mu=0.125,0.5,1,t_clk=0,10"])
    assert together == parse_axes(["mu=0.125,0.5,1", "t_clk=0,10"])
    assert together == (
        Axis("mu", "schedule.mu", ("0.125", "0.5", "1")),
        Axis("t_clk", "schedule.t_clk", ("0", "10")),
    )


def test_short_names_are_fields_of_the_recipe(tmp_path: Path) -> None:
    base = tiny_base(tmp_path)
    for name, path in SHORT_NAMES.items():
        value = base.load(sweep_rows(parse_axes([f"{name}=0.5"]))[0]).model_dump()
        for key in path.split("."):
            value = value[key]
        assert value == 0.5, name


def test_any_field_by_its_full_path() -> None:
    (axis,) = parse_axes(["fleet.devices.0.rate=0.25,0.5"])
    assert axis.path == "fleet.devices.0.rate"


@pytest.mark.parametrize(
    ("over", "said"),
    [
        (["mu"], "write name=value,value"),
        (["mu=0.5,"], "write name=value,value"),
        (["=1"], "has no name"),
        (["mu=1", "mu=0.5"], "mu is there twice"),
        (["mu=1,1"], "a value is there twice"),
        (["nu=1"], "no such axis; known: mu"),
        (["seed=1,2"], "given by --seeds"),
        ([], "at least one axis"),
    ],
)
def test_axes_that_cannot_be_read(over: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_axes(over)


def test_two_names_for_one_field() -> None:
    with pytest.raises(ConfigError, match="same field"):
        sweep_rows(parse_axes(["mu=0.5", "schedule.mu=1"]))


def report_over(folder: Path, *over: str, seeds: tuple[int, ...] = (0, 1)) -> tuple[Report, tuple[Axis, ...]]:
    """Top-1 is μ/2, plus one point for the second seed."""

    def answer(cell: Cell) -> dict[str, object]:
        return figures(cell.recipe.schedule.mu / 2 + cell.seed / 100)

    axes = parse_axes(over)
    plan = sweep(StudyPlan(tiny_base(folder), seeds, "cos2p sweep"), axes)
    return run_study(plan, FakeExecute(answer), lambda report: None), axes


def test_every_combination_is_a_row(tmp_path: Path) -> None:
    report, _ = report_over(tmp_path, "mu=0.5,1", "t_clk=0,10")
    (table,) = report.tables
    assert table.facts == ("mu", "t_clk")
    assert [tuple(line.facts.values()) for line in table.lines] == [
        ("0.5", "0"),
        ("0.5", "10"),
        ("1", "0"),
        ("1", "10"),
    ]
    assert list(report.grid.places)[:2] == ["mu=0.5_t_clk=0-s0", "mu=0.5_t_clk=10-s0"]
    assert report.to_dict()["axes"]["mu"] == {"path": "schedule.mu", "values": ["0.5", "1"]}


def test_a_value_that_cannot_work_is_told_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"mu=2: .*schedule\.mu"):
        report_over(tmp_path, "mu=0.5,2")
