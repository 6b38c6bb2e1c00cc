from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.cli.profile import _shape
from cos2p.errors import ConfigError
from cos2p.models.hub import save_pretrained
from tests.models.checkpoints import VIT
from tests.submodel.strategies import random_weights


def test_a_size_a_checkpoint_or_a_recipe(tiny: Path, tmp_path: Path) -> None:
    assert _shape("vit-tiny").family == "vit"
    save_pretrained(tmp_path / "m", VIT, random_weights(VIT, 0))
    assert _shape(str(tmp_path / "m")) == VIT
    recipe = _shape(str(tiny))
    assert (recipe.depth, recipe.image, recipe.channels, recipe.classes) == (2, 8, 1, 10)
    with pytest.raises(ConfigError, match="vit-nan"):
        _shape("vit-nan")
