"""A checkpoint and data of another kind: what can be brought together is, the rest is refused from the json alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.errors import CheckpointError
from cos2p.models.hub import load_pretrained, pretrained_config, pretrained_weights, save_pretrained
from cos2p.models.hub_fit import DataFacts
from cos2p.models.layout import Weights, init_tensor
from cos2p.models.transformer import ElasticTransformer
from tests.models.checkpoints import BERT, VIT
from tests.submodel.strategies import CONFIGS, random_weights

LM = CONFIGS["llama untied"]


def logits(config: ModelConfig, weights: Weights, inputs: Tensor) -> Tensor:
    with torch.no_grad():
        return ElasticTransformer(config, SubmodelSpec.full(config)).load(weights)(inputs)[-1]


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return save_pretrained(tmp_path / "llama", LM, random_weights(LM, 0))


def images(**changes: Any) -> DataFacts:
    return DataFacts(**{"task": "classification", "classes": 3, "image": 4, "channels": 1, **changes})


def texts(**changes: Any) -> DataFacts:
    values = {"task": "classification", "classes": 3, "max_tokens": 6, "vocab": 20, "pad_token": 0, **changes}
    return DataFacts(**values)


def test_data_like_the_checkpoints_change_nothing(vit: Path, bert: Path) -> None:
    assert pretrained_config(vit, images()) == VIT
    assert pretrained_config(bert, texts()) == BERT


def test_the_config_alone_reads_no_tensors(bert: Path) -> None:
    (bert / "model.safetensors").unlink()
    assert pretrained_config(bert, texts(max_tokens=4)) == BERT.with_(max_tokens=4)


def test_texts_decide_tokens_padding_and_classes(bert: Path) -> None:
    config, weights = load_pretrained(bert, fit=texts(max_tokens=4, pad_token=7, classes=5, vocab=12))
    assert config == BERT.with_(max_tokens=4, pad_token=7, classes=5)
    assert torch.equal(weights["embed.positions"], random_weights(BERT, 0)["embed.positions"][:4])


def test_a_language_model_is_trained_as_one_or_classifies(llama: Path) -> None:
    facts = texts(task="language-modeling", classes=None, max_tokens=9)
    config, weights = load_pretrained(llama, fit=facts)
    assert config == LM.with_(max_tokens=9)
    assert torch.equal(weights["lm_head.weight"], random_weights(LM, 0)["lm_head.weight"])
    config, weights = load_pretrained(llama, fit=texts(), seed=5)
    assert (config.task, config.classes, config.pooling) == ("classification", 3, "last")
    assert torch.equal(weights["exits.4.linear.weight"], init_tensor(config, "exits.4.linear.weight", 5))
    assert "lm_head.weight" not in weights


def test_the_lowest_blocks_are_kept(vit: Path, llama: Path) -> None:
    config, weights = load_pretrained(vit, depth=2)
    whole = random_weights(VIT, 0)
    assert config == VIT.with_(depth=2)
    assert {name.split(".")[1] for name in weights if name.startswith("blocks.")} == {"0", "1"}
    assert torch.equal(weights["blocks.1.q.weight"], whole["blocks.1.q.weight"])
    assert torch.equal(weights["exits.2.linear.weight"], whole["exits.4.linear.weight"])
    _, language = load_pretrained(llama, depth=2)
    # Behind half of the blocks a language model is half as sure: see exit_bank.
    assert torch.equal(language["exits.2.norm.weight"], random_weights(LM, 0)["exits.4.norm.weight"] * 0.5)
    with pytest.raises(CheckpointError, match="has 4 blocks, not 5; take as many or fewer"):
        pretrained_config(vit, depth=5)


def test_a_head_behind_another_pooling_is_fresh(bert: Path) -> None:
    _, weights = load_pretrained(bert, pooling="mean", seed=2)
    config = BERT.with_(pooling="mean")
    assert torch.equal(weights["exits.4.linear.weight"], init_tensor(config, "exits.4.linear.weight", 2))


def test_weights_of_a_config_that_the_checkpoint_cannot_give_are_refused(bert: Path) -> None:
    with pytest.raises(CheckpointError, match="has vocab 20, not 30; only channels, classes"):
        pretrained_weights(bert, BERT.with_(vocab=30))


# Images


def test_grey_images_for_a_colour_model_are_seen_as_colour_images_of_equal_channels(tmp_path: Path) -> None:
    colour = VIT.with_(channels=3)
    weights = random_weights(colour, 0)
    config, grey = load_pretrained(save_pretrained(tmp_path, colour, weights), fit=images())
    assert config == VIT
    inputs = torch.randn(2, 1, 4, 4)
    expected = logits(colour, weights, inputs.repeat(1, 3, 1, 1))
    torch.testing.assert_close(logits(config, grey, inputs), expected, atol=1e-5, rtol=0)


def test_colour_images_for_a_grey_model_are_seen_as_their_mean(vit: Path) -> None:
    config, weights = load_pretrained(vit, fit=images(channels=3))
    inputs = torch.randn(2, 3, 4, 4)
    expected = logits(VIT, random_weights(VIT, 0), inputs.mean(1, keepdim=True))
    torch.testing.assert_close(logits(config, weights, inputs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("image", [6, 10, 2])
def test_positions_are_interpolated_as_transformers_does(vit: Path, image: int) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is the judge of parity")
    reference = transformers.ViTForImageClassification.from_pretrained(vit).eval()
    inputs = torch.randn(3, 1, image, image)
    with torch.no_grad():
        theirs = reference(inputs, interpolate_pos_encoding=True).logits
    config, weights = load_pretrained(vit, fit=images(image=image))
    assert (logits(config, weights, inputs) - theirs).abs().max() <= 1e-5
    again = transformers.ViTForImageClassification.from_pretrained(save_pretrained(vit / "fitted", config, weights))
    with torch.no_grad():
        assert (again.eval()(inputs).logits - theirs).abs().max() <= 1e-5


# What cannot agree


@pytest.mark.parametrize(
    ("kind", "facts", "chosen", "message"),
    [
        ("vit", texts(), {}, "is a vit, but the data are texts"),
        ("bert", images(), {}, "is a bert, but the data are images"),
        ("bert", texts(task="language-modeling", classes=None), {}, "is a bert, which is no language model"),
        ("bert", texts(max_tokens=7), {}, "positions for 6 tokens, not 7; cut the texts to 6 tokens or fewer"),
        ("bert", texts(vocab=21), {}, "the tokenizer has 21 tokens, the embedding table of .* 20; take the tokenizer"),
        ("llama", texts(vocab=99), {}, "the tokenizer has 99 tokens"),
        ("vit", images(image=5), {}, "images of 5 pixels do not divide into the 2-pixel patches .* size to 4 or 6"),
        ("vit", images(image=1), {}, "images of 1 pixels do not divide .* size to 2 or 4"),
        ("vit", images(channels=4), {}, "has 1 channels, not 4; 1 and 3 can be exchanged"),
        ("vit", images(image=6), {"image": 4}, "image is 4 in the model, but 6 in the data"),
        ("vit", images(), {"heads": 8}, "has heads 4, not 8; only channels"),
    ],
)
def test_what_cannot_agree_is_refused_in_one_line(
    vit: Path, bert: Path, llama: Path, kind: str, facts: DataFacts, chosen: dict[str, Any], message: str
) -> None:
    folder = {"vit": vit, "bert": bert, "llama": llama}[kind]
    (folder / "model.safetensors").unlink()  # and before any tensor is read
    with pytest.raises(CheckpointError, match=message) as error:
        pretrained_config(folder, facts, **chosen)
    assert "\n" not in str(error.value)
