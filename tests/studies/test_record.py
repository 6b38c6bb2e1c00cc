"""A study's record: small, complete, and enough to make its tables again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import RunError
from cos2p.runtime.model_folder import recipe_toml
from cos2p.studies.compare import comparison
from cos2p.studies.folder import write_report
from cos2p.studies.grid import Cell
from cos2p.studies.record import main, read_record, settings, write_record
from cos2p.studies.report import Report, StudyPlan, run_study, to_markdown
from cos2p.studies.tuning import Search
from tests.studies.fakes import FakeExecute, figures, tiny_base


class Writing(FakeExecute):
    """Makes figures up and leaves run folders as a runner does."""

    def __init__(self, study: Path) -> None:
        super().__init__(self.answer_for)
        self.study = study

    def answer_for(self, cell: Cell) -> dict[str, Any] | str:
        folder = self.study / "cells" / cell.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "recipe.toml").write_text(recipe_toml(cell.recipe), encoding="utf-8")
        if cell.recipe.method["name"] == "fedbuff" and cell.seed == 1:
            return "the loss became nan"
        result = figures(0.5 + cell.seed / 100, updates=3 if cell.seed == 0 else 4, chance=0.1)
        (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
        return result


@pytest.fixture
def study(tmp_path: Path) -> tuple[Path, Report]:
    """Three methods, two seeds, a search; one run failed, those of seed 0 ended early, one is of an earlier choice."""
    folder = tmp_path / "study"
    plan = StudyPlan(tiny_base(tmp_path), (0, 1), "cos2p compare")
    asked = comparison(plan, ("fedavg", "fedbuff", "cos2p"), search=Search(lrs=(0.001, 0.002)))
    execute = Writing(folder)
    report = run_study(asked, execute, lambda report: None)
    write_report(report, folder)
    earlier = next(cell for cell in execute.cells if cell.row == "cos2p")
    execute.answer_for(Cell("cos2p-lr0.5-s0", "cos2p", 0, earlier.recipe))
    return folder, report


def lines(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (record / "runs.jsonl").read_text(encoding="utf-8").splitlines()]


def test_the_tables_come_back_from_the_record_alone(study: tuple[Path, Report], tmp_path: Path) -> None:
    folder, report = study
    write_record(folder, tmp_path / "record")
    assert {path.name for path in (tmp_path / "record").iterdir()} == {"runs.jsonl", "recipe.toml", "table.md"}
    again = read_record(tmp_path / "record")
    assert again.tables == report.tables
    assert again.provenance() == report.provenance()
    assert again.failures == report.failures == {"fedbuff-lr0.002-s1": "the loss became nan"}
    text = (tmp_path / "record" / "table.md").read_text(encoding="utf-8")
    assert text == to_markdown(report, linked=False)
    assert "](cells/" not in text, "the folders of the runs are not there"
    assert "fedavg-lr0.002-s0 had 3 of 4 updates" in text


def test_every_run_has_its_figures_and_its_settings(study: tuple[Path, Report], tmp_path: Path) -> None:
    folder, _ = study
    write_record(folder, tmp_path / "record")
    runs = {line["name"]: line for line in lines(tmp_path / "record") if line["kind"] == "run"}
    assert len(runs) == 6 + 1, "also one of an earlier choice, which no table shows"
    base = runs["cos2p-lr0.002-s0"]
    assert (base["method"], base["seed"], base["updates"], base["settings"]) == ("cos2p", 0, 4, {})
    assert base["result"] == json.loads((folder / "cells" / "cos2p-lr0.002-s0" / "result.json").read_text())
    assert runs["cos2p-lr0.002-s1"]["settings"] == {"seed": 1}
    assert runs["fedavg-lr0.002-s0"]["settings"]["method.name"] == "fedavg"
    assert runs["fedbuff-lr0.002-s1"]["result"] is None
    trials = [line for line in lines(tmp_path / "record") if line["kind"] == "trial"]
    assert {(trial["row"], trial["lr"], trial["form"]) for trial in trials} >= {
        ("fedavg", 0.001, ""),
        ("cos2p", 0.002, "scaler"),
    }
    assert all("validation_top1" in trial and "folder" not in trial for trial in trials)


def test_from_the_command_line(study: tuple[Path, Report], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, record = study[0], tmp_path / "record"
    assert main([str(folder), str(record)]) == 0
    written = (record / "table.md").read_bytes()
    (record / "table.md").write_text("old")
    assert main([str(record)]) == 0
    assert (record / "table.md").read_bytes() == written
    assert main([]) == 2
    assert main([str(tmp_path / "nowhere"), str(record)]) == RunError.exit_code
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "nonsense", '{"kind": "study"}', "[]"])
def test_a_damaged_record_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs.jsonl").write_text(text)
    with pytest.raises(RunError, match=r"runs\.jsonl is not a study's record"):
        read_record(tmp_path)


def test_a_study_of_an_earlier_version_is_told(study: tuple[Path, Report], tmp_path: Path) -> None:
    values = json.loads((study[0] / "study.json").read_text(encoding="utf-8"))
    del values["tables"][0]["reference"]
    (study[0] / "study.json").write_text(json.dumps(values))
    with pytest.raises(RunError, match="give the study's command again"):
        write_record(study[0], tmp_path / "record")


def changed(base: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The recipe that the settings are of."""
    recipe = copy.deepcopy(base)
    for path, value in settings.items():
        *tables, field = path.split(".")
        place = recipe
        for table in tables:
            place = place[table]
        if value is None:
            del place[field]
        else:
            place[field] = value
    return recipe


values = st.integers(0, 3) | st.text("xy", max_size=2) | st.lists(st.integers(0, 2), max_size=2)
recipes = st.recursive(values, lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8)


@given(st.dictionaries(st.sampled_from("abc"), recipes), st.dictionaries(st.sampled_from("abc"), recipes))
def test_a_recipe_is_another_one_with_its_settings(base: dict[str, Any], own: dict[str, Any]) -> None:
    assert changed(base, settings(base, own)) == own
