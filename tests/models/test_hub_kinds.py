"""Checkpoints of other model types, evaluated by `transformers`: read, and written as the plainest equal type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.errors import CheckpointError
from cos2p.models.hub import load_pretrained, pretrained_config, save_pretrained
from cos2p.models.transformer import ElasticTransformer
from tests.models.checkpoints import change_config
from tests.models.test_hub_parity import our_logits, randomised, their_logits
from tests.submodel.strategies import random_inputs

transformers: Any = pytest.importorskip("transformers", reason="transformers is the judge of parity")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

_SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40}
_TEXT = {"vocab_size": 40, "max_position_embeddings": 12, "pad_token_id": 0, "num_labels": 5}
_DISTIL = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 40, **_TEXT}
_GROUPED = {**_SIZES, **_TEXT, "num_key_value_heads": 2}
_SCALED = {"rope_theta": 50.0, "factor": 4.0}
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_SCALED}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit, tanh gelu": ("ViT", {**_SIZES, "image_size": 12, "patch_size": 4, "num_labels": 5, "hidden_act": "gelu_new"}),
    "bert, tanh gelu": ("Bert", {**_SIZES, **_TEXT, "hidden_act": "gelu_pytorch_tanh"}),
    "roberta": ("Roberta", {**_SIZES, **_TEXT, "max_position_embeddings": 14, "pad_token_id": 1, "type_vocab_size": 1}),
    "distilbert": ("DistilBert", _DISTIL),
    "mistral": ("Mistral", {**_GROUPED, "head_dim": 8, "sliding_window": 12}),
    "qwen2": ("Qwen2", _GROUPED),
    "qwen3": ("Qwen3", {**_GROUPED, "head_dim": 6}),
    "qwen3, biased": ("Qwen3", {**_GROUPED, "head_dim": 8, "attention_bias": True}),
    "llama, biased": ("Llama", {**_GROUPED, "attention_bias": True}),
    "llama, linear": ("Llama", {**_GROUPED, "rope_parameters": {"rope_type": "linear", **_SCALED}}),
    "llama 3": ("Llama", {**_GROUPED, "rope_parameters": {**_LLAMA3, "original_max_position_embeddings": 64}}),
}  # fmt: skip
CAUSAL = [name for name, (kind, _) in CASES.items() if kind in ("Mistral", "Qwen2", "Qwen3", "Llama")]


def reference(name: str, task: str) -> Any:
    kind, values = CASES[name]
    return randomised(getattr(transformers, kind + task)(getattr(transformers, kind + "Config")(**values)))


def agree(module: Any, folder: Path, auto: str) -> None:
    """Ours give the judge's logits, and so does what is written again, read by whichever class it names."""
    module.save_pretrained(folder)
    config, weights = load_pretrained(folder)
    inputs = random_inputs(config, 4, batch=4)
    real = inputs != config.pad_token if config.task == "language-modeling" else slice(None)
    theirs = their_logits(module, config, inputs)[real]
    assert theirs.std() > 0.01
    assert (our_logits(config, weights, inputs)[real] - theirs).abs().max() <= 1e-5
    written = save_pretrained(folder / "again", config, weights)
    again, report = getattr(transformers, auto).from_pretrained(written, output_loading_info=True)
    assert not any(report[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (their_logits(again.eval(), config, inputs)[real] - theirs).abs().max() <= 1e-5
    assert load_pretrained(written)[0] == config


@pytest.mark.parametrize("name", CASES)
def test_classifiers(name: str, tmp_path: Path) -> None:
    task = "ImageClassification" if CASES[name][0] == "ViT" else "SequenceClassification"
    agree(reference(name, f"For{task}"), tmp_path, f"AutoModelFor{task}")


@pytest.mark.parametrize("name", CAUSAL)
def test_language_models(name: str, tmp_path: Path) -> None:
    agree(reference(name, "ForCausalLM"), tmp_path, "AutoModelForCausalLM")


def dinov2(head: str, **changes: Any) -> Any:
    values = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "mlp_ratio": 2, "image_size": 12}
    config = transformers.Dinov2Config(**values, patch_size=4, num_labels=5, **changes)
    return randomised(getattr(transformers, "Dinov2" + head)(config))


@pytest.mark.parametrize("head", ["Model", "ForImageClassification"])
def test_dinov2_becomes_a_plain_vit_with_a_fresh_head(head: str, tmp_path: Path) -> None:
    module = dinov2(head)
    module.save_pretrained(tmp_path)
    config, weights = load_pretrained(tmp_path, classes=5)
    bare = module if head == "Model" else module.dinov2
    inputs = random_inputs(config, 4)
    ours = ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)
    found: list[torch.Tensor] = []
    ours.exits["3"].norm.register_forward_hook(lambda _m, _i, out: found.append(out))
    with torch.no_grad():
        ours(inputs)
        theirs = bare(inputs).last_hidden_state[:, 0]
    assert (found[0] - theirs).abs().max() <= 1e-5
    plain = transformers.ViTModel.from_pretrained(save_pretrained(tmp_path / "vit", config, weights)).eval()
    with torch.no_grad():
        assert (plain(inputs).last_hidden_state[:, 0] - theirs).abs().max() <= 1e-5


def test_dinov2_at_another_size(tmp_path: Path) -> None:
    module = dinov2("Model")
    module.save_pretrained(tmp_path)
    config, weights = load_pretrained(tmp_path, image=20)
    plain = transformers.ViTModel.from_pretrained(save_pretrained(tmp_path / "vit", config, weights)).eval()
    inputs = random_inputs(config, 4)
    with torch.no_grad():
        assert (plain(inputs).last_hidden_state - module(inputs).last_hidden_state).abs().max() <= 1e-5


def test_swiglu_is_refused(tmp_path: Path) -> None:
    dinov2("Model", use_swiglu_ffn=True).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="use_swiglu_ffn is True; only False can be computed"):
        pretrained_config(tmp_path)


def test_texts_longer_than_a_window_are_refused(tmp_path: Path) -> None:
    reference("mistral", "ForCausalLM").save_pretrained(tmp_path)
    change_config(tmp_path, sliding_window=8)
    assert pretrained_config(tmp_path).max_tokens == 8
    with pytest.raises(CheckpointError, match=r"sees 8 tokens back, .* cut the texts to 8 tokens or fewer"):
        pretrained_config(tmp_path, max_tokens=9)


@pytest.mark.parametrize("head", ["BertForTokenClassification", "BertForQuestionAnswering", "BertForMultipleChoice"])
def test_other_heads_are_refused_with_the_way_to_the_encoder(head: str, tmp_path: Path) -> None:
    _, values = CASES["bert, tanh gelu"]
    getattr(transformers, head)(transformers.BertConfig(**values)).save_pretrained(tmp_path)
    with pytest.raises(
        CheckpointError, match=rf"{head} has a head that is not read; take its encoder alone, by BertModel"
    ):
        pretrained_config(tmp_path)


def test_pickled_tensors(tmp_path: Path) -> None:
    module = reference("bert, tanh gelu", "ForSequenceClassification")
    module.save_pretrained(tmp_path)
    _, expected = load_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    _, found = load_pretrained(tmp_path)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    torch.save({"weights": Path()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(
        CheckpointError, match=r"cannot be read as tensors alone .*save it with safe_serialization=True"
    ):
        load_pretrained(tmp_path)


def test_roberta_without_a_head(tmp_path: Path) -> None:
    reference("roberta", "ForMaskedLM").save_pretrained(tmp_path)
    config, weights = load_pretrained(tmp_path, classes=3)
    assert (config.max_tokens, config.pad_token) == (12, 1)
    assert weights["exits.3.pooler.weight"].shape == (32, 32)
