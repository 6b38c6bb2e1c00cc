"""A `ModelConfig` as the `config.json` of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_config import is_native, rope_values
from cos2p.models.hub_kinds import KINDS, Kind, written_kind
from cos2p.models.hub_pooling import CLASSES_FIELD, POOLING_FIELD


def architecture(config: ModelConfig) -> str:
    """The transformers class that computes what this model computes, or its features if no class has its pooling."""
    kind = KINDS[written_kind(config)]
    if config.task == "language-modeling":
        return kind.causal
    return kind.classifier if is_native(config) else kind.bare


def write_config(config: ModelConfig, depth: int, labels: Sequence[str] | None) -> dict[str, Any]:
    """The `config.json` of the model's first `depth` blocks with the exit behind them."""
    if config.family != "llama" and config.head_dim * config.heads != config.dim:
        raise CheckpointError(
            f"head_dim is {config.head_dim}; a Hugging Face {config.family} has heads of dim / heads = "
            f"{config.dim}/{config.heads} only"
        )
    name = written_kind(config)
    kind = KINDS[name]
    values: dict[str, Any] = {"architectures": [architecture(config)], "model_type": name, "dtype": "float32"}
    values |= {theirs: getattr(config, ours) for ours, theirs in kind.sizes.items()}
    values[kind.sizes["depth"]] = depth
    values[kind.activation] = {"gelu_tanh": "gelu_pytorch_tanh"}.get(config.activation, config.activation)
    if config.task == "classification":
        values |= named_classes(config, labels)
    if config.family == "vit":
        values |= {"image_size": config.image, "patch_size": config.patch, "num_channels": config.channels}
        values |= {"qkv_bias": True, "layer_norm_eps": config.norm_eps}
        return values | {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    values |= {"vocab_size": config.vocab, "max_position_embeddings": config.max_tokens}
    values["pad_token_id"] = None if config.pad_token < 0 else config.pad_token
    return values | (_bert_values(config, kind) if config.family == "bert" else _llama_values(config, name))


def _bert_values(config: ModelConfig, kind: Kind) -> dict[str, Any]:
    if kind.name == "DistilBert":
        if config.norm_eps != 1e-12:
            raise CheckpointError(f"norm_eps is {config.norm_eps:g}; a Hugging Face distilbert has 1e-12 only")
        return {}
    return {"type_vocab_size": config.token_types, "layer_norm_eps": config.norm_eps}


def _llama_values(config: ModelConfig, name: str) -> dict[str, Any]:
    values: dict[str, Any] = {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
    }
    if config.task == "language-modeling":  # the tokenizer's, if it is known; left out they would be LLaMA's own
        values |= {"bos_token_id": None, "eos_token_id": None}
    if name != "qwen2":
        values["attention_bias"] = config.attention_bias == "all"
    elif config.head_dim * config.heads != config.dim:
        raise CheckpointError(f"head_dim is {config.head_dim}; a Hugging Face qwen2 has heads of dim / heads only")
    return values | rope_values(config)


def named_classes(config: ModelConfig, labels: Sequence[str] | None) -> dict[str, Any]:
    """The class names where transformers looks for them; where it has no such head, in fields that it does not read:
    the random head of a pipeline shall not answer with them."""
    names = list(labels) if labels is not None else [f"LABEL_{i}" for i in range(config.classes)]
    if len(names) != config.classes or len(set(names)) != len(names):
        raise CheckpointError(
            f"{len(names)} labels for {config.classes} classes; give one distinct name for each class"
        )
    if not is_native(config):
        return {POOLING_FIELD: config.pooling, CLASSES_FIELD: names}
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
