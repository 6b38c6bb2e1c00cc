from __future__ import annotations

from typing import Any

import pytest

from cos2p import ModelConfig, model_config
from cos2p.errors import ConfigError
from cos2p.models.sizes import SIZES

VIT: dict[str, Any] = {"family": "vit", "dim": 64, "depth": 2, "heads": 8, "mlp": 128}
LLAMA: dict[str, Any] = {"family": "llama", "dim": 64, "depth": 2, "heads": 8, "mlp": 128, "vocab": 100}


def test_what_is_left_out_is_worked_out() -> None:
    config = ModelConfig(**VIT)
    assert (config.head_dim, config.kv_heads, config.norm_eps, config.tokens) == (8, 8, 1e-12, 197)
    assert ModelConfig(**LLAMA).norm_eps == 1e-5


def test_families_differ_where_they_should() -> None:
    vit, bert, llama = (model_config(name) for name in ("vit-nano", "bert-nano", "llama-nano"))
    assert [c.pre_norm for c in (vit, bert, llama)] == [True, False, True]
    assert [c.gated for c in (vit, bert, llama)] == [False, False, True]
    assert [c.biased for c in (vit, bert, llama)] == [True, True, False]
    assert (llama.groups, llama.queries_per_group, llama.outputs) == (4, 2, 512)


@pytest.mark.parametrize("name", SIZES)
def test_dict_round_trip(name: str) -> None:
    assert ModelConfig.from_dict(model_config(name).to_dict()) == model_config(name)


def test_changed_fields_are_worked_out_again_and_chosen_ones_stay() -> None:
    assert model_config("vit-nano", heads=4).head_dim == 16
    assert model_config("vit-nano", heads=4).kv_heads == 4
    wider = model_config("llama-nano", dim=128)
    assert (wider.heads, wider.kv_heads, wider.head_dim) == (8, 4, 16)
    apart = ModelConfig(**LLAMA, head_dim=32)
    assert apart.with_(dim=128).head_dim == 32


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (VIT | {"family": "resnet"}, "unknown model family 'resnet'; known: vit, bert, llama"),
        (VIT | {"task": "detection"}, "unknown model task 'detection'; known: classification, language-modeling"),
        (VIT | {"exits": "none"}, "unknown model exits 'none'; known: bank, shared"),
        (VIT | {"heads": 7}, "dim 64 is not divisible by 7 heads; choose heads from 1, 2, 4, 8, 16, 32, 64 or give"),
        (VIT | {"image": 30}, "image 30 is not divisible by patch 16; choose a patch from 1, 2, 3, 5, 6, 10, 15, 30"),
        (VIT | {"patch": 0}, "model patch is 0; it must be a whole number, at least 1"),
        (VIT | {"depth": 0}, "model depth is 0; it must be a whole number, at least 1"),
        (VIT | {"dim": 64.0}, "model dim is 64.0; it must be a whole number, at least 1"),
        (VIT | {"mlp": "128"}, "model mlp is '128'; it must be a whole number, at least 1"),
        (VIT | {"kv_heads": 4}, r"grouped queries \(kv_heads 4\) exist in llama only"),
        (VIT | {"task": "language-modeling"}, "language-modeling is for llama; vit has task 'classification'"),
        (LLAMA | {"vocab": 0}, "a llama model needs vocab ≥ 1"),
        (LLAMA | {"kv_heads": 3}, "8 heads are not divisible by 3 kv_heads; choose kv_heads from 1, 2, 4, 8"),
        (LLAMA | {"kv_heads": -4}, "model kv_heads is -4"),
        (LLAMA | {"head_dim": 5}, "rotary positions need an even head_dim, got 5"),
    ],
)
def test_a_value_that_cannot_work_is_named_with_what_would(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**fields)


def test_misspelt_fields_are_named() -> None:
    with pytest.raises(ConfigError, match="unknown model field 'depht'; known: activation, attention_bias, channels"):
        model_config("vit-nano", depht=3)
    with pytest.raises(ConfigError, match="unknown model field 'depht'"):
        ModelConfig.from_dict(VIT | {"depht": 3})
    with pytest.raises(ConfigError, match=r"incomplete model description.*mlp"):
        ModelConfig.from_dict({name: value for name, value in VIT.items() if name != "mlp"})
