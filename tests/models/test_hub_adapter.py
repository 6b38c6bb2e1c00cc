"""Adapters written here, loaded by `peft`: the same logits as those of the merged model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import CheckpointError
from cos2p.methods.adapters.factors import adapter_shapes, first_adapters, merged
from cos2p.models.hub import load_pretrained
from cos2p.models.hub_adapter import save_adapter
from cos2p.models.layout import Weights, init_weights
from cos2p.models.transformer import ElasticTransformer
from tests.submodel.strategies import random_inputs

MODELS = {
    "vit": ModelConfig("vit", dim=16, depth=2, heads=2, mlp=24, classes=3, image=8, patch=4),
    "bert": ModelConfig("bert", dim=16, depth=2, heads=2, mlp=24, classes=3, vocab=30, max_tokens=8),
    "llama": ModelConfig(
        "llama", dim=16, depth=2, heads=4, kv_heads=2, mlp=24, vocab=30, max_tokens=8, task="language-modeling"
    ),
}
MEAN = MODELS["bert"].with_(pooling="mean")


def trained(config: ModelConfig) -> Weights:
    return adapted(config, init_weights(config, 0))


def adapted(config: ModelConfig, base: Weights, rank: int = 4) -> Weights:
    """A model as `fedlora` leaves it: adapters that do something, merged."""
    shapes = adapter_shapes(config, range(config.depth), ("q", "v", "fc2"), rank)
    adapters = first_adapters(shapes, seed=1)
    for number, name in enumerate(sorted(n for n in adapters if n.endswith(".up"))):
        adapters[name] = torch.randn(shapes[name], generator=torch.Generator().manual_seed(number)) * 0.1
    return merged({**base, **adapters}, scale=2.0)


def logits(config: ModelConfig, weights: Weights, inputs: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return ElasticTransformer(config, SubmodelSpec.full(config)).load(weights).eval()(inputs)[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    ["bert", *(pytest.param(name, marks=pytest.mark.slow) for name in ("vit", "llama"))],  # 3 s each
)
def test_peft_gives_the_logits_of_the_merged_model(name: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed (pip install cos2p[peft])")
    transformers: Any = pytest.importorskip("transformers")
    config, weights = MODELS[name], trained(MODELS[name])
    save_adapter(tmp_path, config, weights)
    classes = {"vit": "ImageClassification", "bert": "SequenceClassification", "llama": "CausalLM"}
    base = getattr(transformers, f"AutoModelFor{classes[name]}").from_pretrained(tmp_path / "base")
    inputs = random_inputs(config, 3)
    real = {} if name == "vit" else {"attention_mask": (inputs != config.pad_token).long()}
    with torch.no_grad():
        model = peft.PeftModel.from_pretrained(base, tmp_path).eval()
        found = model(inputs, **real).logits
    expected = logits(config, weights, inputs)
    keep = torch.ones(found.shape[:-1], dtype=torch.bool) if name != "llama" else inputs != config.pad_token
    torch.testing.assert_close(found[keep], expected[keep], atol=1e-5, rtol=1e-4)
    with torch.no_grad(), model.disable_adapter():
        assert not torch.allclose(model(inputs, **real).logits[keep], expected[keep], atol=1e-3)


def test_the_base_is_the_model_without_its_adapters(tmp_path: Path) -> None:
    config = MODELS["bert"]
    save_adapter(tmp_path, config, trained(config))
    _, base = load_pretrained(tmp_path / "base")
    start = init_weights(config, 0)
    torch.testing.assert_close(base["blocks.1.q.weight"], start["blocks.1.q.weight"], atol=1e-6, rtol=0)


def test_a_pooling_that_transformers_lacks_leaves_the_classifier_beside(tmp_path: Path) -> None:
    save_adapter(tmp_path, MEAN, trained(MEAN), base="sentence/bert")
    values = json.loads((tmp_path / "adapter_config.json").read_text(encoding="utf-8"))
    assert values["base_model_name_or_path"] == "sentence/bert"
    assert values["task_type"] == "FEATURE_EXTRACTION"
    assert "encoder.layer.0.attention.self.query" in values["target_modules"]
    assert (tmp_path / "2_Dense" / "model.safetensors").exists()
    assert not (tmp_path / "base").exists()


def test_a_model_without_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no adapters; a run of the method 'fedlora'"):
        save_adapter(tmp_path, MEAN, init_weights(MEAN, 0))
