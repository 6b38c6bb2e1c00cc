from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import ConfigError
from cos2p.methods import methods
from cos2p.studies.compare import choose_methods, comparison
from cos2p.studies.grid import Cell, Row
from cos2p.studies.report import Report, StudyPlan, run_study
from cos2p.studies.tuning import Search, is_trial, possible_forms, search_settings
from tests.studies.fakes import FakeExecute, figures, tiny_base

SCORES = {"cos2p": 0.7, "fedavg": 0.9, "cos2p-async": 0.6}


def plan(folder: Path, seeds: tuple[int, ...] = (0, 1), **options: Any) -> StudyPlan:
    asked: dict[str, Any] = {"methods": ("fedavg", "cos2p-async", "cos2p")}
    return comparison(StudyPlan(tiny_base(folder), seeds, "cos2p compare"), **(asked | options))


def by_method(cell: Cell) -> dict[str, Any]:
    return figures(SCORES[cell.recipe.method["name"]] + cell.seed / 1000)


def test_the_papers_table(tmp_path: Path) -> None:
    written: list[Report] = []
    report = run_study(plan(tmp_path), FakeExecute(by_method), written.append)
    results, differences = report.tables
    assert [(line.key, line.marks) for line in results.lines] == [("fedavg", "*"), ("cos2p-async", ""), ("cos2p", "")]
    assert [line.figures["top1"].best for line in results.lines] == [False, False, True]
    assert results.line("cos2p").figures["top1"].mean == pytest.approx(0.7005)
    assert differences.line("cos2p-async").figures["top1"].mean == pytest.approx(-0.1)
    assert [part.done for part in written] == [1, 2, 3, 4, 5, 6]
    assert ("client updates", "4 in every run") in report.provenance()
    assert report.failures == {}


def test_every_method_has_the_same_number_of_updates(tmp_path: Path) -> None:
    execute = FakeExecute(by_method)
    run_study(plan(tmp_path), execute, lambda report: None)
    assert {(cell.recipe.schedule.updates, cell.recipe.schedule.rounds) for cell in execute.cells} == {(4, None)}
    assert [cell.recipe.method["name"] for cell in execute.cells[:3]] == ["fedavg", "cos2p-async", "cos2p"]


def test_the_note_on_rates_is_true(tmp_path: Path) -> None:
    def note(*changes: str) -> str:
        asked = plan(tmp_path)
        asked = replace(asked, base=replace(asked.base, changes=changes))
        return str(run_study(asked, FakeExecute(by_method), lambda report: None).notes[0])

    assert "the recipe's learning rate" in note()
    assert "the recipe's learning rate" in note("training.epochs=2")
    assert note("training.lr=0.1").endswith("0.1: FedAvg (full), Co-S²P (Async.), Co-S²P.")
    assert note("fedavg:training.lr=0.1").endswith("0.004: Co-S²P (Async.), Co-S²P; 0.1: FedAvg (full).")


def test_runs_that_ended_early_are_told(tmp_path: Path) -> None:
    def answer(cell: Cell) -> dict[str, Any]:
        return by_method(cell) | ({"updates": 3, "finished": "no device is left"} if cell.name == "fedavg-s1" else {})

    report = run_study(plan(tmp_path), FakeExecute(answer), lambda report: None)
    assert ("note", "fedavg-s1 had 3 of 4 updates (no device is left)") in report.provenance()


def test_without_the_reference_there_are_no_differences(tmp_path: Path) -> None:
    report = run_study(plan(tmp_path, methods=("fedavg", "cos2p-async")), FakeExecute(by_method), lambda report: None)
    assert [table.name for table in report.tables] == ["results"]


def test_methods_in_the_papers_order() -> None:
    everything = choose_methods("all")
    assert set(everything) == set(methods())
    assert everything[0] == "fedavg" or methods()[everything[0]].over_budget
    assert everything[-1].startswith("cos2p")
    assert choose_methods("cos2p, fedavg") == ("cos2p", "fedavg")
    with pytest.raises(ConfigError, match="did you mean 'fedavg'"):
        choose_methods("fedavgg")
    with pytest.raises(ConfigError, match="names none"):
        choose_methods(",")


# ---------------------------------------------------------------- tuning


def by_rate(cell: Cell) -> dict[str, Any] | str:
    """Full training likes small rates, Co-S²P the recipe's own; 0.016 is too much for all."""
    lr, full = cell.recipe.training.lr, cell.recipe.method["name"] == "fedavg"
    if lr > 0.01:
        return "the loss became nan"
    best = 0.001 if full else 0.004
    return figures(0.5, validation_top1=0.8 if lr == best else 0.3)


def test_tuning_chooses_by_validation_and_the_final_runs_use_it(tmp_path: Path) -> None:
    execute = FakeExecute(by_rate)
    asked = plan(tmp_path, methods=("fedavg", "cos2p"), search=Search())
    report = run_study(asked, execute, lambda report: None)
    (trials, later), (forms, still_later), (finals, _) = execute.batches
    assert (len(trials), later) == (5 + 5, 3 + 4), "Co-S²P has three further forms"
    assert (len(forms), still_later, len(finals)) == (3, 4, 4)
    assert {cell.recipe.training.lr for cell in forms} == {0.004}, "forms are tried at the best rate"
    assert {cell.seed for cell in (*trials, *forms)} == {1000}
    assert {cell.recipe.training.lr for cell in trials} == {0.001, 0.002, 0.004, 0.008, 0.016}
    assert {(cell.row, cell.recipe.training.lr) for cell in finals} == {("fedavg", 0.001), ("cos2p", 0.004)}

    record = dict(report.tuning or {})
    assert (record["score_name"], record["seed"], record["updates"]) == ("validation_top1", 1000, 4)
    assert record["rows"]["fedavg"]["lr"] == 0.001
    assert record["rows"]["fedavg"]["at_edge"]
    assert not record["rows"]["cos2p"]["at_edge"]
    tried = [entry for entry in record["rows"]["cos2p"]["tried"] if not entry["form"]]
    assert [entry["validation_top1"] for entry in tried] == [0.3, 0.3, 0.8, 0.3, None]
    assert tried[-1]["failure"] == "the loss became nan"
    assert tried[0]["folder"] == "cells/tune-cos2p-lr0.001-s1000"

    results = report.tables[0]
    assert [line.facts["lr"] for line in results.lines] == ["0.001 (edge)", "0.004"]
    assert any("edge of the grid for fedavg" in text for _, text in report.provenance())
    assert report.failures == {}, "a rate that was too large is no failure of the study"


def test_another_choice_has_folders_of_its_own(tmp_path: Path) -> None:
    names = []
    for lrs in ((0.001,), (0.001, 0.004)):
        execute = FakeExecute(by_rate)
        asked = plan(tmp_path, methods=("fedavg", "cos2p"), seeds=(0,), search=Search(lrs=lrs))
        run_study(asked, execute, lambda report: None)
        names.append([cell.name for cell in execute.batches[-1][0]])
    assert names == [["fedavg-lr0.001-s0", "cos2p-lr0.001-s0"], ["fedavg-lr0.001-s0", "cos2p-lr0.004-s0"]]


def test_trials_can_be_shorter_and_have_their_own_rates_and_seed(tmp_path: Path) -> None:
    execute = FakeExecute(lambda cell: figures())
    search = Search(lrs=(0.02, 0.01), seed=7, updates=2)
    run_study(plan(tmp_path, methods=("cos2p",), search=search), execute, lambda report: None)
    trials, forms, finals = (cells for cells, _ in execute.batches)
    assert [(cell.recipe.training.lr, cell.seed, cell.recipe.schedule.updates) for cell in trials] == [
        (0.01, 7, 2),
        (0.02, 7, 2),
    ]
    assert {(cell.recipe.training.lr, cell.seed, cell.recipe.schedule.updates) for cell in forms} == {(0.01, 7, 2)}
    assert {cell.recipe.schedule.updates for cell in finals} == {4}
    assert {cell.recipe.training.lr for cell in finals} == {0.01}, "equal scores: the one nearer to the recipe's 0.004"


def test_trials_of_a_slow_method_can_be_shorter_than_the_others(tmp_path: Path) -> None:
    execute = FakeExecute(lambda cell: figures())
    search = Search(lrs=(0.01,), updates=3, updates_of={"ramfed": 2})
    asked = plan(tmp_path, methods=("ramfed", "cos2p"), search=search)
    report = run_study(asked, execute, lambda report: None)
    rates, forms, finals = (cells for cells, _ in execute.batches)
    for trials in (rates, forms):
        lengths = {(cell.recipe.method["name"], cell.recipe.schedule.updates) for cell in trials}
        assert lengths == {("ramfed", 2), ("cos2p", 3)}
    assert {cell.recipe.schedule.updates for cell in finals} == {4}
    assert {row: entry["updates"] for row, entry in (report.tuning or {})["rows"].items()} == {"ramfed": 2, "cos2p": 3}
    assert any("one trial of 3 updates (ramfed: 2 updates) each" in text for _, text in report.provenance())


def slow_starter(cell: Cell) -> dict[str, Any]:
    """In short trials 0.016 is best and 0.002 next; at full length 0.002 is."""
    whole = cell.recipe.schedule.updates == 4
    scores = {0.016: 0.5, 0.002: 0.9 if whole else 0.4}
    return figures(0.5, validation_top1=scores.get(cell.recipe.training.lr, 0.99 if whole else 0.3))


def test_the_best_of_short_trials_are_tried_again_at_full_length_which_decides(tmp_path: Path) -> None:
    execute = FakeExecute(slow_starter)
    search = Search(lrs=(0.002, 0.004, 0.016), updates=2, updates_of={"fedbuff": 3}, finalists=2)
    asked = plan(tmp_path, methods=("fedavg", "fedbuff"), seeds=(0,), search=search)
    report = run_study(asked, execute, lambda report: None)
    rates, finalists, finals = execute.batches
    assert (len(rates[0]), rates[1]) == (6, 2 + 2)
    assert [(cell.name, cell.recipe.training.lr, cell.recipe.schedule.updates) for cell in finalists[0]] == [
        ("tune-whole-fedavg-lr0.016-s1000", 0.016, 4),
        ("tune-whole-fedavg-lr0.002-s1000", 0.002, 4),
    ], "not of a method with a length of its own: it is slow"
    assert all(is_trial(cell.recipe) for cell in finalists[0])
    assert [cell.name for cell in finals[0]] == ["fedavg-lr0.002-s0", "fedbuff-lr0.016-s0"]
    tried = (report.tuning or {})["rows"]["fedavg"]["tried"]
    assert [(entry["lr"], entry["updates"], entry["validation_top1"]) for entry in tried][-2:] == [
        (0.016, 4, 0.5),
        (0.002, 4, 0.9),
    ]
    assert tried[-1]["folder"] == "cells/tune-whole-fedavg-lr0.002-s1000"
    assert any(
        "each, then between the best 2 by one of full length (not for the methods named), seed 1000" in text
        for _, text in report.provenance()
    )


def test_trials_of_full_length_need_no_finalists(tmp_path: Path) -> None:
    execute = FakeExecute(by_rate)
    search = Search(lrs=(0.002, 0.004), finalists=2)
    report = run_study(plan(tmp_path, methods=("fedavg",), search=search), execute, lambda report: None)
    assert len(execute.batches) == 2
    assert not any("full length" in text for _, text in report.provenance())


def test_when_no_rate_works_the_recipes_is_used_and_told(tmp_path: Path) -> None:
    execute = FakeExecute(lambda cell: "nan" if cell.name.startswith("tune") else figures())
    report = run_study(plan(tmp_path, methods=("cos2p",), search=Search()), execute, lambda report: None)
    assert {cell.recipe.training.lr for cell in execute.batches[-1][0]} == {0.004}
    assert report.tables[0].lines[0].facts["lr"] == "0.004 (untuned)"
    assert any("No rate of the grid worked for cos2p" in text for _, text in report.provenance())


def by_form(cell: Cell) -> dict[str, Any]:
    """RAM-Fed is best at 0.002, and better still when it divides by the holders; all else is as good as all else."""
    rate = cell.recipe.method["name"] == "ramfed" and cell.recipe.training.lr == 0.002
    form = rate and cell.recipe.method.get("denominator") == "filled"
    return figures(0.5, validation_top1=0.4 + 0.1 * rate + 0.1 * form)


def test_other_forms_of_a_method_are_tried_at_the_best_rate_and_the_best_one_runs(tmp_path: Path) -> None:
    execute = FakeExecute(by_form)
    search = Search(lrs=(0.002, 0.004, 0.008))
    asked = plan(tmp_path, methods=("ramfed", "cos2p"), search=search)
    report = run_study(asked, execute, lambda report: None)
    rates, others, next_to, finals = (cells for cells, _ in execute.batches)
    trials = [*rates, *others]
    forms = {(c.recipe.method.get("rescale"), c.recipe.method.get("denominator")) for c in trials if "ramfed" in c.name}
    assert forms == {(True, "clients"), (False, "clients"), (True, "filled")}
    assert (len(rates), len(others)) == (3 + 3, 2 + 3)
    assert {cell.recipe.training.lr for cell in others if "ramfed" in cell.name} == {0.002}  # the best of its rates
    assert [(cell.recipe.training.lr, cell.recipe.method["denominator"]) for cell in next_to] == [(0.004, "filled")]
    chosen = {cell.row: (cell.recipe.training.lr, cell.recipe.method.get("denominator")) for cell in finals}
    assert chosen == {"ramfed": (0.002, "filled"), "cos2p": (0.004, None)}
    assert [line.facts["lr"] for line in report.tables[0].lines] == ["0.002 (edge), over holders", "0.004"]
    best = {row: entry["form"] for row, entry in (report.tuning or {})["rows"].items()}
    assert best == {"ramfed": "over holders", "cos2p": ""}
    assert any("ramfed: over holders" in text for _, text in report.provenance())


def test_a_form_that_wins_may_have_another_best_rate(tmp_path: Path) -> None:
    def answer(cell: Cell) -> dict[str, Any]:
        best = 0.008 if cell.recipe.method.get("denominator") == "filled" else 0.004
        return figures(0.5, validation_top1=0.5 + (best == 0.008) * 0.1 - abs(cell.recipe.training.lr - best))

    execute = FakeExecute(answer)
    search = Search(lrs=(0.001, 0.002, 0.004, 0.008))
    run_study(plan(tmp_path, methods=("ramfed",), search=search), execute, lambda report: None)
    _, _, next_to, finals = (cells for cells, _ in execute.batches)
    assert [cell.recipe.training.lr for cell in next_to] == [0.002, 0.008]
    assert {(c.recipe.training.lr, c.recipe.method["denominator"]) for c in finals} == {(0.008, "filled")}


def test_every_form_of_every_method_is_a_valid_recipe(tmp_path: Path) -> None:
    rows = [Row(name, name, method=name) for name in methods()]
    execute = FakeExecute(lambda cell: figures())
    choices = search_settings(tiny_base(tmp_path), rows, Search(lrs=(0.001,)), execute, finals=0)
    assert {setting.form for setting in choices["fedrolex-official"].trials} == {"", "no scaler", "step of one"}
    tried = sum(len(choice.trials) for choice in choices.values())
    assert tried == sum(1 + len(method.forms) for method in methods().values())


def test_forms_that_the_recipe_cannot_have_are_not_tried(tmp_path: Path) -> None:
    row = Row("cos2p", "Co-S²P", method="cos2p")
    assert possible_forms(tiny_base(tmp_path), row) == ["scaler", "wide windows", "growing"]
    whole = replace(row, changes=("method.form=pretrained",))
    assert possible_forms(tiny_base(tmp_path), whole) == []


@pytest.mark.parametrize(
    ("search", "changes", "said"),
    [
        (Search(seed=1), (), "tuning seed 1 is among the final seeds"),
        (Search(lrs=(0.0,)), (), "must be above 0"),
        (Search(updates_of={"ramfedd": 2}), (), "unknown method 'ramfedd'; did you mean 'ramfed'"),
        (Search(updates_of={"ramfed": 2}), (), "--tune-updates ramfed:2: no run of this study is of the method"),
        (Search(updates_of={"cos2p-async": 2}), (), "did you mean 'cos2p'[?] its methods: cos2p$"),
        (Search(), ("data.validation_fraction=0.0",), "keeps no validation samples"),
    ],
)
def test_a_search_that_would_deceive_is_refused(
    tmp_path: Path, search: Search, changes: tuple[str, ...], said: str
) -> None:
    asked = comparison(StudyPlan(tiny_base(tmp_path, *changes), (0, 1), ""), ("cos2p",), search=search)
    execute = FakeExecute(lambda cell: figures())
    with pytest.raises(ConfigError, match=said):
        run_study(asked, execute, lambda report: None)
    assert execute.batches == []
