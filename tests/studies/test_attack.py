from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.errors import ConfigError
from cos2p.studies.attack import ATTACKS, DEFENCES, attack, attack_rows, chosen
from cos2p.studies.grid import Base
from cos2p.studies.report import StudyPlan, run_study
from tests.studies.fakes import TINY, FakeExecute, figures


def test_honest_rows_come_along_and_first() -> None:
    assert [row.key for row in attack_rows(("flip",), ("none", "median"))] == [
        "honest+none", "honest+median", "flip+none", "flip+median",
    ]  # fmt: skip
    assert "attack.kind=flip" in attack_rows(("flip",), ("none",), malicious=2)[1].changes
    assert "attack.count=2" in attack_rows(("flip",), ("none",), malicious=2)[1].changes


def test_unknown_names_are_told_with_the_known_ones() -> None:
    assert chosen("--attacks", "all", ATTACKS) == ATTACKS
    with pytest.raises(ConfigError, match="--defences 'luck': there is no 'luck'; known: all, none, default"):
        chosen("--defences", "luck", tuple(DEFENCES))


def test_every_row_is_a_run_and_differences_are_to_the_honest_one(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    execute = FakeExecute(lambda cell: figures(0.3 if cell.recipe.attack.kind == "flip" else 0.7))
    base = Base(str(tmp_path / "tiny.toml"), updates=8).checked()
    plan = attack(StudyPlan(base, (0, 1), "cos2p attack"), ("flip",), ("none", "standing"))
    report = run_study(plan, execute, lambda _: None)
    assert report.kind == "attack"
    recipes = {row: report.grid.where[row, 0] for row in ("honest+none", "flip+standing")}
    assert len(set(recipes.values())) == 2
    results, differences = report.tables
    assert results.line("flip+none").title == "flip, none"
    assert differences.reference == "honest+none"
