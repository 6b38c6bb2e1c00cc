"""Checkpoints that do not fit: each refusal names the thing and what would be right, and loads nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cos2p.errors import CheckpointError
from cos2p.models.hub import load_pretrained, save_pretrained
from tests.models.checkpoints import VIT, change_config, change_tensors
from tests.submodel.strategies import CONFIGS, random_weights

# Tensors that do not fit


def test_a_missing_tensor_is_named_with_its_shape(vit: Path) -> None:
    change_tensors(vit, vit__encoder__layer__1__output__dense__weight=None, classifier__bias=None)
    with pytest.raises(CheckpointError) as error:
        load_pretrained(vit)
    assert "vit.encoder.layer.1.output.dense.weight of shape (16, 10) is missing" in str(error.value)
    assert "classifier.bias of shape (3,) is missing" in str(error.value)


def test_an_extra_tensor_is_named(vit: Path) -> None:
    change_tensors(vit, vit__encoder__layer__9__output__dense__bias=torch.zeros(16))
    with pytest.raises(
        CheckpointError, match=r"vit\.encoder\.layer\.9\.output\.dense\.bias does not belong to a vit of 4"
    ):
        load_pretrained(vit)


def test_a_misshapen_tensor_is_named_with_both_shapes(vit: Path) -> None:
    change_tensors(vit, vit__embeddings__position_embeddings=torch.zeros(1, 9, 16))
    with pytest.raises(
        CheckpointError, match=r"position_embeddings has shape \(1, 9, 16\), config\.json says \(1, 5, 16\)"
    ):
        load_pretrained(vit)


def test_a_head_that_contradicts_its_config_is_refused(vit: Path) -> None:
    change_tensors(vit, classifier__weight=torch.zeros(8, 16))
    with pytest.raises(CheckpointError, match=r"classifier\.weight has shape \(8, 16\), config\.json says \(3, 16\)"):
        load_pretrained(vit)


def test_many_problems_are_counted(vit: Path) -> None:
    change_config(vit, num_hidden_layers=2)
    with pytest.raises(CheckpointError, match=r"does not belong to a vit of 2 blocks; and 26 more$"):
        load_pretrained(vit)


def test_two_spellings_of_one_tensor_are_refused(vit: Path) -> None:
    change_tensors(vit, vit__layers__0__mlp__fc2__bias=torch.zeros(16))
    with pytest.raises(CheckpointError, match=r"two tensors for vit\.encoder\.layer\.0\.output\.dense\.bias"):
        load_pretrained(vit)


def test_whole_numbers_are_no_weights(vit: Path) -> None:
    change_tensors(vit, classifier__bias=torch.zeros(3, dtype=torch.int8))
    with pytest.raises(CheckpointError, match=r"classifier\.bias is torch\.int8; only floating-point"):
        load_pretrained(vit)


# Files that do not fit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model_type": "gpt2"},
            "model_type is 'gpt2'; what can be read is vit, dinov2, bert, roberta",
        ),
        ({"model_type": "remove"}, "model_type is None; what can be read is vit, dinov2"),
        ({"model_type": "deit"}, "model_type is 'deit', whose distillation token has no place here"),
        ({"hidden_size": "remove"}, "hidden_size is missing; it must be a whole number"),
        ({"hidden_size": 16.5}, "hidden_size is 16.5; it must be a whole number"),
        ({"num_attention_heads": 5}, "dim 16 is not divisible by 5 heads; choose heads from 1, 2, 4, 8, 16"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'; only 'gelu' can be computed"),
        ({"qkv_bias": False}, "qkv_bias is False; only True can be computed"),
        ({"image_size": [4, 8]}, r"image_size is \[4, 8\]; only squares can be computed"),
    ],
)
def test_a_config_this_model_cannot_compute_is_refused(vit: Path, changes: dict[str, Any], message: str) -> None:
    change_config(vit, **changes)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}"):
        load_pretrained(vit)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": None}, "rotary scaling 'yarn' cannot be"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}, "rope_parameters": None}, "lacks low_freq_factor"),
        ({"rope_parameters": 3}, "rope_parameters is 3; it must be an object"),
        ({"attention_bias": True}, r"q_proj\.bias of shape \(16,\) is missing"),
        ({"mlp_bias": True}, "mlp_bias is True; only False can be computed"),
    ],
)
def test_a_llama_this_model_cannot_compute_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    config = CONFIGS["llama tied"]
    save_pretrained(tmp_path, config, random_weights(config, 0))
    change_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=message):
        load_pretrained(tmp_path)


def test_square_sizes_given_twice_are_fine(vit: Path) -> None:
    change_config(vit, image_size=[4, 4], patch_size=[2, 2])
    assert load_pretrained(vit)[0] == VIT


def test_broken_and_missing_files_are_named(vit: Path) -> None:
    (vit / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json is not readable as JSON"):
        load_pretrained(vit)
    (vit / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json must hold an object, got list"):
        load_pretrained(vit)
    (vit / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        load_pretrained(vit)


def test_broken_tensors_are_named(bert: Path) -> None:
    (bert / "model.safetensors").write_bytes(b"not tensors")
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a readable safetensors file"):
        load_pretrained(bert)
    (bert / "model.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"has neither model\.safetensors nor pytorch_model\.bin, whole or in shards$"
    ):
        load_pretrained(bert)
    (bert / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"in shards; \.gguf files are not read"):
        load_pretrained(bert)
    (bert / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(
        CheckpointError, match=r"pytorch_model\.bin cannot be read as tensors alone .* save it with safe_serialization"
    ):
        load_pretrained(bert)
