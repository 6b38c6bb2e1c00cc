"""What an exit reads: cls token, last real token, or the mean of the real ones; as the checkpoint says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec, model_config
from cos2p.costs.flops import exit_forward
from cos2p.errors import CheckpointError, ConfigError
from cos2p.models.hub import load_pretrained, save_pretrained
from cos2p.models.layout import Weights, exit_parameters, init_weights, parameter_count
from cos2p.models.transformer import ElasticTransformer
from tests.models.checkpoints import BERT, change_config, change_tensors
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights

MEAN = {name: CONFIGS[name].with_(pooling="mean") for name in ("vit", "bert", "llama classification")}


def logits_and_features(config: ModelConfig, weights: Weights, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What the deepest exit says, and what its block gave it."""
    elastic = ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)
    found: list[Tensor] = []
    elastic.blocks[str(config.depth - 1)].register_forward_hook(lambda _m, _i, out: found.append(out))
    with torch.no_grad():
        return elastic(inputs)[-1], found[0]


def test_habits() -> None:
    assert [(c.pooling, c.pooler) for c in map(model_config, ("vit-nano", "bert-nano", "llama-nano"))] == [
        ("cls", "none"), ("cls", "tanh"), ("last", "none"),
    ]  # fmt: skip
    mean = model_config("bert-nano", pooling="mean")
    assert mean.pooler == "none"
    assert mean.with_(pooling="cls") == model_config("bert-nano")
    assert ModelConfig.from_dict(mean.to_dict()) == mean


def test_a_mean_needs_no_pooler() -> None:
    plain, mean = model_config("bert-small"), model_config("bert-small", pooling="mean")
    pooler = plain.dim**2 + plain.dim
    assert parameter_count(plain) - parameter_count(mean) == pooler
    assert list(exit_parameters(mean)) == ["linear.weight", "linear.bias"]
    assert exit_forward(plain, 512) - exit_forward(mean, 512) == 2 * plain.dim**2
    same = init_weights(model_config("bert-nano"), 3)
    assert all(
        torch.equal(tensor, same[name])
        for name, tensor in init_weights(model_config("bert-nano", pooling="mean"), 3).items()
    )


@pytest.mark.parametrize(
    ("family", "field", "value", "message"),
    [
        ("vit", "pooling", "last", "pooling is 'last'; a vit model has 'cls' or 'mean'"),
        ("bert", "pooling", "last", "pooling is 'last'; a bert model has 'cls' or 'mean'"),
        ("llama", "pooling", "cls", "pooling is 'cls'; a llama model has 'last' or 'mean'"),
        ("vit", "pooling", "max", "unknown model pooling 'max'; known: cls, mean, last"),
        ("vit", "pooler", "tanh", "pooler is 'tanh'; a vit model has a norm there"),
    ],
)
def test_what_a_family_does_not_have_is_refused(family: str, field: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model_config(f"{family}-nano", **{field: value})


def test_a_mean_has_no_pooler() -> None:
    with pytest.raises(ConfigError, match="pooler is 'tanh'; a mean is read without one"):
        model_config("bert-nano", pooling="mean", pooler="tanh")


@pytest.mark.parametrize("name", MEAN)
def test_a_mean_is_over_real_tokens(name: str) -> None:
    config = MEAN[name]
    weights, inputs = random_weights(config, 1), random_inputs(config, 2, batch=4)
    logits, features_BTD = logits_and_features(config, weights, inputs)
    key = f"exits.{config.depth}."
    for i, features_TD in enumerate(features_BTD):
        tokens = features_TD[1:] if config.family == "vit" else features_TD[inputs[i] != config.pad_token]
        if config.family == "vit":
            tokens = torch.nn.functional.layer_norm(
                tokens, (config.dim,), weights[key + "norm.weight"], weights[key + "norm.bias"], config.norm_eps
            )
        elif config.family == "llama":
            tokens = torch.nn.functional.rms_norm(tokens, (config.dim,), weights[key + "norm.weight"], config.norm_eps)
        bias = weights.get(key + "linear.bias", torch.zeros(config.classes))
        expected = weights[key + "linear.weight"] @ (sum(tokens) / len(tokens)) + bias
        torch.testing.assert_close(logits[i], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert", "llama classification"])
def test_padding_does_not_change_a_mean(name: str) -> None:
    config = MEAN[name]
    weights = random_weights(config, 1)
    short = torch.tensor([[5, 3, 7]])
    long = torch.tensor([[5, 3, 7, config.pad_token, config.pad_token]])
    a, b = (logits_and_features(config, weights, ids)[0] for ids in (short, long))
    torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    nothing = logits_and_features(config, weights, torch.full((1, 3), config.pad_token))[0]
    assert nothing.isfinite().all()


# From and to checkpoints


@pytest.mark.parametrize("name", MEAN)
def test_pooling_survives_a_round_trip(name: str, tmp_path: Path) -> None:
    config = MEAN[name]
    weights, inputs = random_weights(config, 0), random_inputs(config, 2)
    loaded, back = load_pretrained(save_pretrained(tmp_path, config, weights))
    assert loaded == config
    assert torch.equal(logits_and_features(loaded, back, inputs)[0], logits_and_features(config, weights, inputs)[0])


def test_cls_without_a_pooler_survives_a_round_trip(tmp_path: Path) -> None:
    config = BERT.with_(pooler="none")
    loaded, back = load_pretrained(save_pretrained(tmp_path, config, random_weights(config, 0)))
    assert loaded == config
    assert "exits.4.pooler.weight" not in back


@pytest.mark.parametrize("name", MEAN)
def test_a_head_that_transformers_lacks_lies_beside_the_encoder(name: str, tmp_path: Path) -> None:
    config = MEAN[name]
    weights = random_weights(config, 0)
    save_pretrained(tmp_path, config, weights)
    head = load_file(tmp_path / "2_Dense" / "model.safetensors")
    assert torch.equal(head["linear.weight"], weights["exits.4.linear.weight"])
    assert ("linear.bias" in head) == (config.family != "llama")
    described = json.loads((tmp_path / "2_Dense" / "config.json").read_text())
    assert (described["in_features"], described["out_features"]) == (config.dim, config.classes)
    assert not (tmp_path / "modules.json").exists(), "sentence-transformers would find no tokenizer"


def test_a_folder_of_0_1_0_with_its_classifier_among_the_tensors(tmp_path: Path) -> None:
    config = MEAN["bert"]
    weights = random_weights(config, 0)
    save_pretrained(tmp_path, config, weights, labels=["a", "b", "c"])
    head = load_file(tmp_path / "2_Dense" / "model.safetensors")
    change_tensors(tmp_path, classifier__weight=head["linear.weight"], classifier__bias=head["linear.bias"])
    names = {"0": "a", "1": "b", "2": "c"}
    change_config(tmp_path, cos2p_classes="remove", id2label=names, cos2p_pooler="none")
    (tmp_path / "2_Dense" / "model.safetensors").unlink()
    loaded, back = load_pretrained(tmp_path)
    assert loaded == config
    assert torch.equal(back["exits.4.linear.weight"], weights["exits.4.linear.weight"])


def pooling_file(folder: Path, name: str = "1_Pooling", **modes: Any) -> None:
    (folder / name).mkdir()
    (folder / name / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **modes}))


@pytest.fixture
def bare(bert: Path) -> Path:
    """A BertModel with its pooler and without a classifier, as sentence-transformers saves it."""
    change_config(bert, architectures=["BertModel"], cos2p_pooling="remove")
    change_tensors(bert, classifier__weight=None, classifier__bias=None)
    return bert


@pytest.mark.parametrize(
    "modes", [{"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, {"pooling_mode": "mean"}]
)
def test_sentence_transformers_files_decide(bare: Path, modes: dict[str, Any]) -> None:
    assert load_pretrained(bare)[0].pooling == "cls"
    pooling_file(bare, **modes)
    config, weights = load_pretrained(bare, classes=3)
    assert (config.pooling, config.pooler) == ("mean", "none")
    assert not any("pooler" in name for name in weights)
    again, kept = load_pretrained(bare, classes=3, pooling="cls")
    assert again == BERT
    assert torch.equal(kept["exits.4.pooler.weight"], random_weights(BERT, 0)["exits.4.pooler.weight"])


def test_modules_json_says_where_the_pooling_is(bare: Path) -> None:
    (bare / "modules.json").write_text(json.dumps([{"path": "9_P", "type": "sentence_transformers.models.Pooling"}]))
    pooling_file(bare, "9_P", pooling_mode_cls_token=True)
    config, _ = load_pretrained(bare)
    assert (config.pooling, config.pooler) == ("cls", "none")


@pytest.mark.parametrize("modes", [["max_tokens"], ["mean_tokens", "cls_token"], ["mean_tokens", "max_tokens"], []])
def test_other_poolings_are_refused_unless_one_is_chosen(bare: Path, modes: list[str]) -> None:
    pooling_file(bare, **{f"pooling_mode_{mode}": True for mode in modes})
    with pytest.raises(CheckpointError, match=r"1_Pooling/config\.json asks for .*choose one of them as pooling"):
        load_pretrained(bare)
    assert load_pretrained(bare, pooling="mean")[0].pooling == "mean"


def test_a_classifier_keeps_the_pooling_it_was_trained_behind(bert: Path) -> None:
    pooling_file(bert, pooling_mode_mean_tokens=True)
    assert load_pretrained(bert)[0] == BERT
