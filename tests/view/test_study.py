from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import RunError
from cos2p.studies.columns import COLUMNS
from cos2p.view.curves import band
from cos2p.view.study import StudySource
from tests.docs.blocks import REPOSITORY
from tests.view.diary import Diary


def document(folder: Path) -> dict[str, Any]:
    source = StudySource(folder)
    source.refresh()
    return source.document()


def figure(mean: float | None, half: float | None = None, **by_seed: float) -> dict[str, Any]:
    return {"mean": mean, "half": half, "best": False, "by_seed": by_seed}


def write_study(folder: Path, rows: dict[str, dict[str, str]], **changes: Any) -> Path:
    """Rows with their facts; top-1 of row i is i/10, clients' twice that."""
    folder.mkdir(parents=True)
    columns = [column.to_dict() for column in COLUMNS]
    lines = []
    for number, (key, facts) in enumerate(rows.items()):
        figures = {column["key"]: figure(None) for column in columns}
        figures["top1"] = figure(number / 10, 0.01, **{"0": number / 10 - 0.001, "1": number / 10 + 0.001})
        figures["client_top1"], figures["ru"] = figure(number / 5), figure(0.5)
        lines.append({"key": key, "title": key.upper(), "facts": facts, "over_budget": number == 1,
                      "runs": {str(seed): f"cells/{key}-s{seed}" for seed in (0, 1)},
                      "failures": {}, "waiting": [], "figures": figures})  # fmt: skip
    study = {
        "kind": "compare", "title": "Methods", "recipe": "r", "command": "cos2p compare r", "lengths": [100],
        "seeds": [0, 1], "versions": ["cos2p 0"], "notes": ["a note"], "short_runs": ["x-s1 had 3 of 4 updates"],
        "axes": {}, "tuning": None,
        "cells": [{"name": f"{key}-s{seed}", "state": "done"} for key in rows for seed in (0, 1)],
        "rows": [{"key": key, "title": key.upper(), "cells": {str(s): f"{key}-s{s}" for s in (0, 1)}} for key in rows],
        "tables": [{"name": "results", "title": "Results", "facts": sorted({f for v in rows.values() for f in v}),
                    "columns": columns, "rows": lines, "notes": [], "baselines": {"chance": 0.1}}],
    }  # fmt: skip
    (folder / "study.json").write_text(json.dumps(study | changes))
    return folder


def write_cell(folder: Path, scores: list[float]) -> None:
    """One update a round, one round every 10 seconds, each version evaluated."""
    diary = Diary().started("a", rounds=None).joined(0, "a")
    for version, score in enumerate(scores, start=1):
        now = 10.0 * version
        diary.task(now - 10, f"a#{version - 1}", version - 1)
        diary.answered(now, f"a#{version - 1}", local_top1=score, local_samples=4).aggregated(now, version, ["a"])
        diary.evaluated(now, version, test=score)
    diary.write(folder)


def test_tables_and_curves_with_intervals(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", {"x": {"lr": "0.1"}, "y": {}})
    write_cell(folder / "cells" / "x-s0", [0.1, 0.3])
    write_cell(folder / "cells" / "x-s1", [0.3, 0.5, 0.9])
    found = document(folder)
    assert (found["name"], found["kind"], found["done"], found["cells"]) == ("study", "compare", 4, 4)
    assert (found["updates"], found["notes"]) == ([100], ["a note", "x-s1 had 3 of 4 updates"])
    table = found["tables"][0]
    assert table["baselines"] == {"chance": 0.1}
    assert (table["columns"][0]["digits"], table["columns"][0]["signed"]) == (1, False)
    x, y = table["rows"]
    assert (x["over_budget"], y["over_budget"], x["facts"], y["facts"]) == (False, True, {"lr": "0.1"}, {})
    assert y["figures"]["top1"] == {"mean": 0.1, "half": 0.01, "best": False, "by_seed": {"0": 0.099, "1": 0.101}}
    curve, empty = found["curves"]
    assert (curve["seeds"], empty["seeds"], empty["top1"]["time"]["x"]) == (2, 0, [])
    rounds = curve["top1"]["rounds"]
    assert (rounds["x"], rounds["mean"]) == ([1.0, 2.0], [0.2, 0.4])  # as far as both seeds go
    assert rounds["half"][0] == pytest.approx(12.706 * 0.1, rel=1e-3)  # Student's t with one degree of freedom
    assert curve["top1"]["time"]["x"] == [10.0, 20.0]
    assert curve["client_top1"]["updates"]["mean"] == [0.2, 0.4]


def test_a_sweep_over_two_axes(tmp_path: Path) -> None:
    rows = {f"mu={mu},lr={lr}": {"mu": mu, "lr": lr} for mu in ("1", "0.5") for lr in ("0.001", "1")}
    axes = {
        "mu": {"path": "schedule.mu", "values": ["1", "0.5"]},
        "lr": {"path": "training.lr", "values": ["0.001", "1"]},
    }
    found = document(write_study(tmp_path / "study", rows, kind="sweep", axes=axes))
    panels = found["sweep"]
    assert [(panel["axis"], panel["column"]["key"], panel["log"]) for panel in panels] == [
        ("mu", "top1", False), ("mu", "client_top1", False), ("mu", "ru", False),
        ("lr", "top1", True), ("lr", "client_top1", True), ("lr", "ru", True),
    ]  # fmt: skip
    assert panels[0]["lines"][0] == {"name": "lr 0.001", "x": [0.5, 1.0], "mean": [0.2, 0.0], "half": [0.01, 0.01]}


def test_words_on_an_axis_stay_words(tmp_path: Path) -> None:
    axes = {"rule": {"path": "method.rule", "values": ["paper", "uniform"]}}
    found = document(write_study(tmp_path / "s", {"a": {"rule": "paper"}, "b": {"rule": "uniform"}}, axes=axes))
    assert found["sweep"][0]["lines"][0]["x"] == ["paper", "uniform"]
    assert not found["sweep"][0]["log"]


def test_what_is_no_finite_number_is_a_word_on_an_axis(tmp_path: Path) -> None:
    axes = {"ratio": {"path": "method.window.ratio", "values": ["1", "inf"]}}
    found = document(write_study(tmp_path / "s", {"a": {"ratio": "1"}, "b": {"ratio": "inf"}}, axes=axes))
    assert found["sweep"][0]["lines"][0]["x"] == [1.0, "inf"]


def test_a_published_study_is_read_from_its_record() -> None:
    found = document(REPOSITORY / "docs" / "results" / "semi-async" / "cifar10-mini")
    row = found["tables"][0]["rows"][0]
    assert (row["title"], found["seeds"], found["done"], found["updates"]) == ("Co-S²P", [0, 1, 2], 12, [320])
    assert row["figures"]["top1"]["mean"] == pytest.approx(0.308, abs=5e-4)
    assert list(row["runs"]) == ["0", "1", "2"]
    assert found["links"] == {}, "the runs' folders are not there"


def test_a_page_leads_to_the_runs(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", {"a b": {}})
    for seed in (0, 1):
        write_cell(folder / "cells" / f"a b-s{seed}", [0.5])
    (folder / "cells" / "a b-s1" / "report.html").touch()
    source = StudySource(folder)
    source.refresh()

    def links(next_to: Path | None) -> list[str]:
        found = source.document(next_to)
        return [found["links"][run] for run in found["tables"][0]["rows"][0]["runs"].values()]

    assert links(folder) == ["./cells/a%20b-s0/", "./cells/a%20b-s1/report.html"]
    assert links(tmp_path / "elsewhere")[0] == "./../study/cells/a%20b-s0/"
    assert links(None) == ["", ""], "a live page serves no folders"


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"tables": [{}], "seeds": []}', '{"tables": 3}'])
def test_a_damaged_study_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(RunError, match=r"study\.json is not"):
        document(tmp_path)


def test_nothing_done_yet(tmp_path: Path) -> None:
    (tmp_path / "cells").mkdir()
    with pytest.raises(RunError, match=r"no study\.json yet"):
        document(tmp_path)
    assert StudySource(tmp_path, may_be_empty=True).document()["tables"] == []  # live, it waits


def test_runs_that_do_not_overlap_have_no_mean() -> None:
    assert band([[(0, 0, 0, 0.1), (1, 0, 0, 0.2)], [(5, 0, 0, 0.1)]], 0)["x"] == []


def test_long_curves_are_thinned() -> None:
    runs = [[(x + shift, 0, 0, x / 1000) for x in range(1000)] for shift in (0, 0.5)]
    found = band(runs, 0)
    assert len(found["x"]) == 120
    assert found["mean"] == sorted(found["mean"])
