from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.errors import DataError
from cos2p.recipe import Recipe
from cos2p.runtime.model_folder import recipe_toml
from cos2p.runtime.simulation import run
from cos2p.tracking.figure_parts import MOST_KINDS, tiers
from cos2p.tracking.files import STOP_NOTE, StopNote, read_stop_note, write_stop_note
from cos2p.view.build import RunSource
from tests.view.diary import Diary, two_rounds, wide_run


def document(folder: Path) -> dict[str, str]:
    source = RunSource(folder)
    source.refresh()
    return dict(source.document()["about"])


def test_what_a_run_is_of(tmp_path: Path) -> None:
    folder = two_rounds().write(tmp_path / "run")
    (folder / "recipe.toml").write_text(recipe_toml(Recipe.load("quickstart")), encoding="utf-8")
    facts = document(folder)
    assert facts["Recipe"].startswith("quickstart: 8 unequal devices")
    assert facts["Split over the devices"] == "dirichlet, alpha 1.5"
    assert facts["Devices"].startswith("2 devices: 1 × jetson-xavier-nx-8gb (R 0.0625), 3 × ")
    assert "jetson-agx-orin-64gb (R 0.5625)" in facts["Devices"], "as the recipe has it"
    assert facts["Ends"] == "after 30 rounds"
    assert facts["Method"] == "Co-S²P"
    assert "Head" not in facts
    assert facts["Model"].startswith("vit-nano · 2 blocks of width 16 · 4 heads and 8 units each")


def test_what_was_decided_for_the_user_is_said(tmp_path: Path) -> None:
    diary = two_rounds()
    diary.events[0]["notes"] = ["model.pooling = 'mean' was chosen"]
    assert document(diary.write(tmp_path / "run"))["Note"] == "model.pooling = 'mean' was chosen"


def test_a_run_over_the_budget_says_so(tmp_path: Path) -> None:
    """The diary's devices have 1,000 bytes, their tasks take 900."""
    diary = two_rounds()
    assert "Memory" not in document(diary.write(tmp_path / "within"))
    for entry in diary.events:
        if entry["kind"] == "dispatched":
            entry["peak_memory"] = 2000
    assert document(diary.write(tmp_path / "over"))["Memory"].startswith("over the budget: needs 2.00 kB of 1.00 kB")


def test_a_form_that_is_not_the_papers_is_named_and_one_round_is_one(tmp_path: Path) -> None:
    folder = two_rounds().write(tmp_path / "run")
    recipe = Recipe.load("quickstart", ["schedule.rounds=1", "method.form=pretrained"])
    (folder / "recipe.toml").write_text(recipe_toml(recipe), encoding="utf-8")
    facts = document(folder)
    assert (facts["Method"], facts["Ends"]) == ("Co-S²P, form pretrained", "after 1 round")


@pytest.mark.parametrize(("finish", "dips"), [("as-start", True), ("trained", False)])
def test_a_head_in_closed_form_explains_its_curve(tmp_path: Path, finish: str, dips: bool) -> None:
    folder = two_rounds().write(tmp_path / "run")
    changes = ["method.exits.start=discriminant", f"method.exits.finish={finish}"]
    (folder / "recipe.toml").write_text(recipe_toml(Recipe.load("quickstart", changes)), encoding="utf-8")
    assert ("dip" in document(folder)["Head"]) is dips


def test_the_baselines_come_from_the_log(tmp_path: Path) -> None:
    data = {"train": 1200, "test": 360, "classes": 10, "chance": 0.1, "majority": 0.125, "client_majority": 0.5}
    diary = Diary().started("a")
    diary.events[0]["data"] = data
    source = RunSource(diary.write(tmp_path / "run"))
    source.refresh()
    header, facts = source.document()["header"], dict(source.document()["about"])
    assert (header["chance"], header["majority"], header["client_majority"]) == (0.1, 0.125, 0.5)
    assert facts["Data"] == "1,200 train, 360 test · 10 classes"
    assert facts["To compare accuracies with"].startswith("chance 10.0 % · always the most frequent class 12.5 %")


@pytest.mark.parametrize("text", ["no = [toml", "data = 3", 'fleet = {devices = "many"}', "schedule = {rounds = {}}"])
def test_a_recipe_that_cos2p_did_not_write_is_no_harm(tmp_path: Path, text: str) -> None:
    folder = two_rounds().write(tmp_path / "run")
    (folder / "recipe.toml").write_text(text, encoding="utf-8")
    assert document(folder) is not None


def test_a_failed_start_leaves_its_reason(tmp_path: Path) -> None:
    recipe = Recipe.load("quickstart", ["data.source=csv", "data.path=nowhere", "data.train=x.csv", "data.test=x.csv"])
    with pytest.raises(DataError) as failure:
        run(recipe, tmp_path / "run")
    source = RunSource(tmp_path / "run")
    source.refresh()
    header = source.document()["header"]
    assert (header["status"], header["ending"]) == ("failed", str(failure.value))


def test_a_stop_by_the_user_is_no_failure_and_the_next_start_forgets_it(tmp_path: Path) -> None:
    folder = two_rounds().write(tmp_path / "run")
    folder.joinpath("events.jsonl").write_text(
        "".join(folder.joinpath("events.jsonl").read_text().splitlines(True)[:5])
    )
    write_stop_note(folder, StopNote(False, "stopped at virtual second 9"))
    source = RunSource(folder)
    source.refresh()
    assert source.document()["header"]["status"] == "stopped"
    assert source.document()["header"]["ending"] == "stopped at virtual second 9"
    (folder / STOP_NOTE).write_text("[]")
    assert read_stop_note(folder) is None


def test_kinds_of_devices() -> None:
    assert tiers({"12": None}) == {"12": ["12"]}
    many = {f"device{'x' * number}": 0.25 if number % 2 else 0.5 for number in range(MOST_KINDS + 1)}
    assert list(tiers(many)) == ["R 0.5", "R 0.25"]
    assert list(tiers({name: 0.01 * at for at, name in enumerate(many, start=1)})) == ["all"]


def test_masks_of_a_large_fleet_are_a_sample(tmp_path: Path) -> None:
    source = RunSource(wide_run(300, rounds=2, each=100).write(tmp_path / "run"))
    source.refresh()
    found = source.document()
    assert len(found["masks"]["devices"]) == len(found["masks"]["kept"]) == len(found["masks"]["agreement_heads"]) == 64
    assert all(found["devices"][at]["updates"] for at in found["masks"]["devices"])
    assert {device["group"] for device in found["devices"]} == {"phone", "pi", "laptop", "jetson"}
    assert found["coverage"] is not None
    assert max(map(max, found["coverage"]["heads_clients"] or ())) <= 200
