"""A recipe as the TOML that is kept next to what came out of it."""

from __future__ import annotations

from typing import Any

import tomli_w

from cos2p.recipe import Recipe


def recipe_toml(recipe: Recipe) -> str:
    """TOML knows no empty value: such fields are left out, and their default is empty."""
    return tomli_w.dumps(_without_empty(recipe.model_dump(mode="json")))


def _without_empty(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _without_empty(value) for name, value in values.items() if value is not None}
    return [_without_empty(value) for value in values] if isinstance(values, list) else values
