"""A Hugging Face `config.json` as `ModelConfig`, and back. What this model cannot compute,
it refuses by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cos2p.errors import CheckpointError, ConfigError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_pooling import CLASSES_FIELD, POOLING_FIELD
from cos2p.models.hub_tables import KINDS, Kind, kind_of, written_kind

_NATIVE = {"vit": {("cls", "none")}, "bert": {("cls", "tanh"), ("cls", "relu")}, "llama": {("last", "none")}}
"""Pooling and pooler of transformers' classifiers."""


def is_native(config: ModelConfig) -> bool:
    """Whether a class of transformers computes the outputs, not only the features."""
    return config.task == "language-modeling" or (config.pooling, config.pooler) in _NATIVE[config.family]


def promises_head(values: dict[str, Any], config: ModelConfig) -> bool:
    """Whether the checkpoint says that it has the head of our exit; a bare BertModel or ViTModel does not."""
    kind = KINDS[values["model_type"]]
    head = kind.causal if config.task == "language-modeling" else kind.classifier
    return kind.has_head and head in (values.get("architectures") or ())


def class_names(values: dict[str, Any]) -> list[str]:
    """As `config.json` has them, by their numbers; empty if it names none."""
    if CLASSES_FIELD in values:
        return [str(name) for name in values[CLASSES_FIELD]]
    names = values.get("id2label") or {}
    return [str(names.get(str(number), number)) for number in range(len(names))]


def read_config(values: dict[str, Any], where: str) -> ModelConfig:
    """The model a checkpoint holds. `where` names the file in errors."""
    kind = KINDS[kind_of(values, where)]
    sizes = {ours: theirs for ours, theirs in kind.sizes.items() if (kind.name, ours) != ("Dinov2", "mlp")}
    fields: dict[str, Any] = {ours: _whole(values, theirs, where) for ours, theirs in sizes.items()}
    fields |= kind.fields
    if kind.causal not in (values.get("architectures") or ()):
        fields["classes"] = _labels(values, where)
    if kind.family == "vit":
        fields |= _vit_fields(values, where)
    else:
        fields |= _text_fields(values, where)
    if kind.family == "llama":
        fields |= _llama_fields(values, where, fields["heads"])
    else:
        fields["norm_eps"] = values.get("layer_norm_eps", 1e-6 if values["model_type"] == "dinov2" else 1e-12)
        tanh = values.get(kind.activation) in ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate")
        fields["activation"] = "gelu_tanh" if tanh else "gelu"
    try:
        return ModelConfig(family=kind.family, **fields)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from None


def position_offset(values: dict[str, Any]) -> int:
    """Rows of the position table before that of the first token."""
    return int(values.get("pad_token_id", 1)) + 1 if values.get("model_type") == "roberta" else 0


def attention_window(values: dict[str, Any]) -> int | None:
    """So many tokens back each one sees; None for all. Within it a window changes nothing."""
    kinds = values.get("layer_types") or ()
    windowed = values.get("model_type") == "mistral" or values.get("use_sliding_window") or "sliding_attention" in kinds
    return values.get("sliding_window") if windowed else None


def _text_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    kind = KINDS[values["model_type"]]
    bert = kind.family == "bert"
    pad = values.get("pad_token_id", (1 if kind.name == "Roberta" else 0) if bert else None)
    longest = _whole(values, "max_position_embeddings", where, 512 if bert else 2048) - position_offset(values)
    fields = {
        "vocab": _whole(values, "vocab_size", where),
        "max_tokens": min(longest, attention_window(values) or longest),
        "pad_token": -1 if pad is None else pad,  # no token id is -1: nothing counts as padding
    }
    if bert and "token_types" not in kind.fields:
        fields["token_types"] = _whole(values, "type_vocab_size", where, 2)
    return fields


def _vit_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    by_ratio = {}
    if values["model_type"] == "dinov2":
        by_ratio["mlp"] = int(_whole(values, "hidden_size", where) * values.get("mlp_ratio", 4))
    return by_ratio | {
        "image": _square(values, "image_size", where, 224),
        "patch": _square(values, "patch_size", where, 16),
        "channels": _whole(values, "num_channels", where, 3),
    }


def _llama_fields(values: dict[str, Any], where: str, heads: int) -> dict[str, Any]:
    kind = KINDS[values["model_type"]]
    causal = kind.causal in (values.get("architectures") or ())
    fields = {
        "kv_heads": _whole(values, "num_key_value_heads", where, heads),
        "head_dim": _whole(values, "head_dim", where, 0),
        "norm_eps": values.get("rms_norm_eps", 1e-6),
        "tied": bool(values.get("tie_word_embeddings", False)),
        "task": "language-modeling" if causal else "classification",
    }
    if "attention_bias" not in kind.fields and values.get("attention_bias"):
        fields["attention_bias"] = "all"
    return fields | rope_fields(values, where)


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
    return len(class_names(values)) or _whole(values, "num_labels", where, 2)


# Rotary positions in a `config.json`: `rope_parameters` (transformers 5), `rope_theta` and `rope_scaling` (before).


_LLAMA3 = {"rope_low": "low_freq_factor", "rope_high": "high_freq_factor"}
_LLAMA3 |= {"rope_original": "original_max_position_embeddings"}
_NEEDED = {"default": {}, "linear": {"rope_factor": "factor"}, "llama3": {"rope_factor": "factor", **_LLAMA3}}


def rope_fields(values: dict[str, Any], where: str) -> dict[str, Any]:
    """As fields of a `ModelConfig`."""
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f"{where}: rope_parameters is {rope!r}; it must be an object with rope_theta")
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _NEEDED:
        raise CheckpointError(f"{where}: rotary scaling {kind!r} cannot be computed; only {', '.join(_NEEDED)} can")
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(
            f"{where}: partial_rotary_factor is {rope['partial_rotary_factor']}; only 1 can be computed"
        )
    missing = [theirs for theirs in _NEEDED[kind].values() if theirs not in rope]
    if missing:
        raise CheckpointError(f"{where}: rotary scaling {kind!r} lacks {', '.join(missing)}")
    fields: dict[str, Any] = {"rope_theta": float(rope.get("rope_theta", values.get("rope_theta", 10000.0)))}
    if kind != "default":
        fields |= {"rope_scaling": kind} | {ours: rope[theirs] for ours, theirs in _NEEDED[kind].items()}
    return fields


def rope_values(config: ModelConfig) -> dict[str, Any]:
    """As fields of a `config.json`, for both generations of transformers."""
    kind = "default" if config.rope_scaling == "none" else config.rope_scaling
    rope = {"rope_type": kind, "rope_theta": config.rope_theta}
    rope |= {theirs: getattr(config, ours) for ours, theirs in _NEEDED[kind].items()}
    old = {} if kind == "default" else {"rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"}}
    return {"rope_parameters": rope, "rope_theta": config.rope_theta, **old}


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
