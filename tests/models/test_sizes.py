from __future__ import annotations

import pytest

from cos2p import model_config
from cos2p.errors import ConfigError
from cos2p.models.layout import parameter_count


@pytest.mark.parametrize(
    ("name", "millions"),
    [("vit-tiny", 25.82), ("vit-base", 86.03), ("vit-base-ext", 114.38), ("llama-1.1b", 1100.05)],
)
def test_sizes_have_the_published_number_of_parameters(name: str, millions: float) -> None:
    assert parameter_count(model_config(name)) / 1e6 == pytest.approx(millions, abs=0.005)


def test_paper_shapes() -> None:
    shapes = {name: model_config(name) for name in ("vit-tiny", "bert-small", "llama-1.1b")}
    assert [(c.depth, c.dim, c.heads, c.mlp) for c in shapes.values()] == [
        (8, 512, 8, 2048),
        (4, 512, 8, 2048),
        (22, 2048, 32, 5632),
    ]
    assert shapes["llama-1.1b"].kv_heads == 4


def test_a_field_can_be_changed() -> None:
    assert model_config("vit-base", classes=10).classes == 10


def test_an_unknown_size_is_answered_with_the_closest() -> None:
    with pytest.raises(
        ConfigError, match="unknown model size 'vit-tinny'; did you mean 'vit-tiny'\\? known: bert-nano"
    ):
        model_config("vit-tinny")
    with pytest.raises(ConfigError, match="unknown model size 'xyz'; known: "):
        model_config("xyz")
