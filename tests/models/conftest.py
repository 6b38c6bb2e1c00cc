from __future__ import annotations

from pathlib import Path

import pytest

from cos2p.models.hub import save_pretrained
from tests.models.checkpoints import BERT, VIT
from tests.submodel.strategies import random_weights


@pytest.fixture
def vit(tmp_path: Path) -> Path:
    return save_pretrained(tmp_path / "vit", VIT, random_weights(VIT, 0))


@pytest.fixture
def bert(tmp_path: Path) -> Path:
    return save_pretrained(tmp_path / "bert", BERT, random_weights(BERT, 0))
