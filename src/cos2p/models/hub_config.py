"""A Hugging Face `config.json` as `ModelConfig`, and back. What this model cannot compute is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cos2p.errors import CheckpointError, ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_pooling import pooling_fields

# Fields without which a checkpoint cannot be read; everything else has the default transformers gives it.
_SIZE = {"dim": "hidden_size", "depth": "num_hidden_layers", "heads": "num_attention_heads", "mlp": "intermediate_size"}
_ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "vit": {"hidden_act": ("gelu",), "qkv_bias": (True,)},
    "bert": {"hidden_act": ("gelu",), "position_embedding_type": ("absolute",), "is_decoder": (False,)},
    "llama": {"hidden_act": ("silu", "swish"), "attention_bias": (False,), "mlp_bias": (False,)},
}
_CLASSIFIER = {
    "vit": "ViTForImageClassification",
    "bert": "BertForSequenceClassification",
    "llama": "LlamaForSequenceClassification",
}
_BARE = {"vit": "ViTModel", "bert": "BertModel", "llama": "LlamaModel"}
_LANGUAGE_MODEL = "LlamaForCausalLM"
_NATIVE = {"vit": ("cls", "none"), "bert": ("cls", "tanh"), "llama": ("last", "none")}
"""Pooling and pooler of transformers' classifiers."""


def is_native(config: ModelConfig) -> bool:
    """Whether a class of transformers computes the outputs, not only the features."""
    return config.task == "language-modeling" or (config.pooling, config.pooler) == _NATIVE[config.family]


def architecture(config: ModelConfig) -> str:
    """The transformers class that computes what this model computes, or its features if no class has its pooling."""
    if config.task == "language-modeling":
        return _LANGUAGE_MODEL
    return (_CLASSIFIER if is_native(config) else _BARE)[config.family]


def promises_head(values: dict[str, Any], config: ModelConfig) -> bool:
    """Whether the checkpoint says that it has the head of our exit; a bare BertModel or ViTModel does not."""
    return architecture(config) in (values.get("architectures") or ())


def read_config(values: dict[str, Any], where: str) -> ModelConfig:
    """The model a checkpoint holds. `where` names the file in errors."""
    family = values.get("model_type")
    if family not in _CLASSIFIER:
        raise CheckpointError(f"{where}: model_type is {family!r}; known: {', '.join(_CLASSIFIER)}")
    for field, allowed in _ONLY[family].items():
        if field in values and values[field] not in allowed:
            raise CheckpointError(f"{where}: {field} is {values[field]!r}; only {allowed[0]!r} can be computed")
    fields: dict[str, Any] = {ours: _whole(values, theirs, where) for ours, theirs in _SIZE.items()}
    if _LANGUAGE_MODEL not in (values.get("architectures") or ()):
        fields["classes"] = _labels(values, where)
    if family == "vit":
        fields |= _vit_fields(values, where)
    else:
        pad = values.get("pad_token_id", 0 if family == "bert" else None)
        fields |= {
            "vocab": _whole(values, "vocab_size", where),
            "max_tokens": _whole(values, "max_position_embeddings", where, 512 if family == "bert" else 2048),
            "pad_token": -1 if pad is None else pad,  # no token id is -1: nothing counts as padding
        }
    if family == "bert":
        fields["token_types"] = _whole(values, "type_vocab_size", where, 2)
    if family == "llama":
        fields |= _llama_fields(values, where, fields["heads"])
    else:
        fields["norm_eps"] = values.get("layer_norm_eps", 1e-12)
    try:
        return ModelConfig(family=family, **fields)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None


def _vit_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    return {
        "image": _square(values, "image_size", where, 224),
        "patch": _square(values, "patch_size", where, 16),
        "channels": _whole(values, "num_channels", where, 3),
    }


def _llama_fields(values: dict[str, Any], where: str, heads: int) -> dict[str, Any]:
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"{where}: rope_parameters is {rope!r}; it must be an object with rope_theta")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(f"{where}: rotary scaling {kind!r} cannot be computed; only 'default' (unscaled) can")
    causal = _LANGUAGE_MODEL in (values.get("architectures") or ())
    return {
        "kv_heads": _whole(values, "num_key_value_heads", where, heads),
        "head_dim": _whole(values, "head_dim", where, 0),
        "norm_eps": values.get("rms_norm_eps", 1e-6),
        "rope_theta": float(rope.get("rope_theta", values.get("rope_theta", 10000.0))),
        "tied": bool(values.get("tie_word_embeddings", False)),
        "task": "language-modeling" if causal else "classification",
    }


def _whole(values: dict[str, Any], field: str, where: str, default: int | None = None) -> int:
    value = values.get(field)
    if value is None and default is not None:
        return default
    if value is None:
        raise CheckpointError(f"{where}: {field} is missing; it must be a whole number")
    if type(value) is not int:
        raise CheckpointError(f"{where}: {field} is {value!r}; it must be a whole number")
    return value


def _square(values: dict[str, Any], field: str, where: str, default: int) -> int:
    value = values.get(field)
    if not isinstance(value, list):
        return _whole(values, field, where, default)
    if len(set(value)) != 1 or type(value[0]) is not int:
        raise CheckpointError(
            f"{where}: {field} is {value}; only squares can be computed: one number, or twice the same"
        )
    return value[0]


def _labels(values: dict[str, Any], where: str) -> int:
    labels = values.get("id2label")
    return len(labels) if labels else _whole(values, "num_labels", where, 2)


def write_config(config: ModelConfig, depth: int, labels: Sequence[str] | None) -> dict[str, Any]:
    """The `config.json` of the model's first `depth` blocks with the exit behind them."""
    if config.family != "llama" and config.head_dim * config.heads != config.dim:
        raise CheckpointError(
            f"head_dim is {config.head_dim}; a Hugging Face {config.family} has heads of dim / heads = "
            f"{config.dim}/{config.heads} only"
        )
    values: dict[str, Any] = {"architectures": [architecture(config)], "model_type": config.family, "dtype": "float32"}
    values |= {theirs: getattr(config, ours) for ours, theirs in _SIZE.items()}
    values["num_hidden_layers"] = depth
    values["hidden_act"] = _ONLY[config.family]["hidden_act"][0]
    if config.task == "classification":
        values |= _label_maps(config, labels) | pooling_fields(config)
    if config.family == "vit":
        values |= {"image_size": config.image, "patch_size": config.patch, "num_channels": config.channels}
        values |= {"qkv_bias": True, "layer_norm_eps": config.norm_eps}
        return values | {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    values |= {"vocab_size": config.vocab, "max_position_embeddings": config.max_tokens}
    values["pad_token_id"] = None if config.pad_token < 0 else config.pad_token
    if config.family == "bert":
        return values | {"type_vocab_size": config.token_types, "layer_norm_eps": config.norm_eps}
    return values | {
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied,
        # transformers 5 reads the first, transformers 4 the second
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rope_theta": config.rope_theta,
    }


def _label_maps(config: ModelConfig, labels: Sequence[str] | None) -> dict[str, Any]:
    names = list(labels) if labels is not None else [f"LABEL_{i}" for i in range(config.classes)]
    if len(names) != config.classes or len(set(names)) != len(names):
        raise CheckpointError(
            f"{len(names)} labels for {config.classes} classes; give one distinct name for each class"
        )
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
