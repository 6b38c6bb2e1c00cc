from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.errors import ConfigError, RecipeError
from cos2p.recipe import Recipe
from cos2p.runtime.model_folder import recipe_toml
from cos2p.studies.grid import Base, Row, cell_name, make_grid
from tests.runtime.texts import open_recipe
from tests.studies.fakes import TINY, tiny_base, tiny_grid


def test_every_row_with_every_seed_all_rows_of_a_seed_first(tmp_path: Path) -> None:
    grid = tiny_grid(tmp_path, rows=("a", "b"), seeds=(3, 7))
    assert [cell.name for cell in grid.cells] == ["a-s3", "b-s3", "a-s7", "b-s7"]
    assert [(cell.recipe.seed, cell.recipe.training.weight_decay) for cell in grid.cells] == [
        (3, 0.0),
        (3, 0.01),
        (7, 0.0),
        (7, 0.01),
    ]
    assert grid.name("b", 7) == "b-s7"


def test_rows_with_the_same_recipe_share_their_runs(tmp_path: Path) -> None:
    rows = [
        Row("plain", "Plain"),
        Row("same", "Same", ("training.weight_decay=0.0",)),
        Row("other", "O", method="fedavg"),
    ]
    grid = make_grid(tiny_base(tmp_path), rows, (0,))
    assert [cell.name for cell in grid.cells] == ["plain-s0", "other-s0"]
    assert grid.name("same", 0) == "plain-s0"


def test_a_row_wins_over_the_studys_changes_and_the_measure_over_the_recipes_rounds(tmp_path: Path) -> None:
    base = tiny_base(tmp_path, "training.epochs=2", "training.lr=0.5", updates=8)
    recipe = base.load(Row("x", "X", ("training.lr=0.25",)))
    assert (recipe.training.epochs, recipe.training.lr) == (2, 0.25)
    assert (recipe.schedule.updates, recipe.schedule.rounds) == (8, None)


def test_a_change_for_one_method_reaches_only_its_rows(tmp_path: Path) -> None:
    base = tiny_base(tmp_path, "fedavg:method.weights=samples", "cos2p:method.rescale=true")
    assert base.load(Row("f", "F", method="fedavg")).method["weights"] == "samples"
    assert base.load(Row("c", "C", method="cos2p")).method["rescale"] is True
    assert base.load(Row("r", "the recipe's own method")).method["rescale"] is True


def test_a_change_for_a_method_that_is_not_there_is_refused(tmp_path: Path) -> None:
    base = tiny_base(tmp_path, "fedavg:method.weights=samples")
    with pytest.raises(ConfigError, match=r"--set fedavg:method.weights=samples: .* its methods: cos2p, fedbuff$"):
        make_grid(base, [Row("r", "the recipe's own"), Row("b", "B", method="fedbuff")], (0,))


def test_runs_that_end_after_rounds_are_compared_at_as_many_updates_of_each_device(tmp_path: Path) -> None:
    file = tmp_path / "rounds.toml"
    file.write_text(TINY.replace("updates = 4", "rounds = 2"), encoding="utf-8")
    devices = sum(group.count for group in Recipe.load(file).fleet.devices)
    assert Base(str(file)).checked().updates == 2 * devices
    assert Base(str(file), updates=6).checked().load(Row("", "")).schedule.rounds is None
    with pytest.raises(ConfigError, match=r"--set schedule\.rounds=3"):
        tiny_base(tmp_path, "schedule.rounds=3")


@pytest.mark.parametrize(
    ("rows", "seeds", "said"),
    [
        (("a", "a"), (0,), "row a was given twice"),
        (("a",), (1, 1), "seed 1 was given twice"),
        ((), (0,), "at least one"),
    ],
)
def test_impossible_grids(tmp_path: Path, rows: tuple[str, ...], seeds: tuple[int, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tiny_grid(tmp_path, rows, seeds)


def test_a_wrong_field_names_its_row_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"bad: .*training.lr"):
        make_grid(tiny_base(tmp_path), [Row("good", "G"), Row("bad", "B", ("training.lr=-1",))], (0,))
    with pytest.raises(RecipeError, match="unknown method 'fedavgg'"):
        tiny_base(tmp_path, "fedavgg:method.weights=samples")


def test_names_of_folders_are_plain_and_unique(tmp_path: Path) -> None:
    assert cell_name("../<b>, x", 1) == "_b_x-s1"
    assert len(cell_name("x" * 500, 0)) < 120
    grid = tiny_grid(tmp_path, rows=("a b", "a,b"), seeds=(0,))
    assert [cell.name for cell in grid.cells] == ["a_b-s0", "a_b-s0-2"]


def test_a_pooling_that_nobody_named_is_chosen_once_for_all_rows_and_seeds(tmp_path: Path) -> None:
    file = tmp_path / "open.toml"
    file.write_text(recipe_toml(open_recipe(tmp_path)), encoding="utf-8")
    base = Base(str(file), updates=4).checked()
    grid = make_grid(base, [Row("a", "A"), Row("b", "B", method="fedrolex")], (0, 1))
    assert len({cell.recipe.model.pooling for cell in grid.cells}) == 1
    assert grid.cells[0].recipe.model.pooling in ("cls", "mean")
    own = Base(str(file), ("model.pooling=cls",), updates=4).checked()
    assert own.changes == ("model.pooling=cls",)
