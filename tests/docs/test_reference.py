"""The reference says what the code says."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
from pydantic import BaseModel

import cos2p
import cos2p.methods as for_methods
from cos2p.methods import methods
from cos2p.recipe import Recipe
from tools.reference import FOLDER, nested_model, recipe_page, stale


def test_generated_pages_are_up_to_date() -> None:
    assert stale() == [], "write them anew by  python -m tools.reference"


def settings(model: type[BaseModel]) -> list[type[BaseModel]]:
    inner = [nested for field in model.model_fields.values() if (nested := nested_model(field.annotation)[0])]
    return [model, *(deeper for nested in inner for deeper in settings(nested))]


@pytest.mark.parametrize(
    "top", [Recipe, *dict.fromkeys(m.settings_type for m in methods().values())], ids=lambda m: m.__name__
)
def test_every_field_is_explained(top: type[BaseModel]) -> None:
    for model in settings(top):
        for name, field in model.model_fields.items():
            assert field.description or nested_model(field.annotation)[0], f"{model.__name__}.{name} has no description"


def test_every_recipe_table_and_command_has_its_heading() -> None:
    recipe = (FOLDER / "recipe.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^##+ `\[+([\w.]+)\]+`", recipe, re.MULTILINE)) == {
        "model",
        "data",
        "partition",
        "fleet",
        "fleet.devices",
        "training",
        "training.memory_optimizations",
        "training.wire",
        "schedule",
        "privacy",
        "robust",
        "attack",
        "run",
        "method",
    }


@pytest.mark.parametrize("module", [cos2p, for_methods], ids=lambda module: module.__name__)
def test_every_public_name_has_its_line(module: ModuleType) -> None:
    page = (FOLDER / "method-names.md").read_text(encoding="utf-8")
    _, _, rest = page.partition(f"## `{module.__name__}`\n")
    part, _, _ = rest.partition("\n## ")
    listed = re.findall(r"^\| `(\w+)` \| \S", part, re.MULTILINE)
    assert sorted(listed) == sorted(module.__all__)


def test_the_first_page_of_the_recipe_is_short_and_nothing_is_left_out() -> None:
    first, _, rest = recipe_page().partition("## Advanced")
    rows = re.compile(r"^\| `\w+` \|", re.MULTILINE)
    assert 30 < len(rows.findall(first)) <= 50
    assert "`eight_bit`" in rest


def test_the_python_page_has_every_function_and_every_member() -> None:
    page = (FOLDER / "python.md").read_text(encoding="utf-8")
    for name in ("run", "finetune", "compare", "open", "wrap"):
        assert f"## `cos2p.{name}`" in page
    for kind in (cos2p.Run, cos2p.Study):
        for member in (name for name in vars(kind) if not name.startswith("_") and callable(getattr(kind, name))):
            assert f"| `{member}(" in page, member
    assert 'memory: str = "",' in page


def test_the_glossary_is_in_order_and_has_the_letters_of_the_page() -> None:
    text = (FOLDER.parent / "explanation" / "glossary.md").read_text(encoding="utf-8")
    words = re.findall(r"^\| (?!word|---)([^|]+) \|", text, re.MULTILINE)
    assert words == sorted(words, key=str.lower)
    for letter in ("R", "RU", "N\\*", "τ", "γ", "window", "segment"):
        assert any(letter in word.split(", ") for word in words), letter
