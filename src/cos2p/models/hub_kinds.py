"""The model types of Hugging Face that the one elastic block computes: what each is here, and what it may not ask for.

Several are one model under different names: Mistral is a LLaMA, RoBERTa a BERT whose positions begin later, DINOv2 a
ViT once its LayerScale is multiplied into the output projections. They are read as what they are, and written as the
plainest type that computes the same (`written_kind`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cos2p.errors import CheckpointError
from cos2p.models.config import Family, ModelConfig

_SIZES = {
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp": "intermediate_size",
}
_GELUS = ("gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate")
_ABSOLUTE = {"position_embedding_type": ("absolute",), "is_decoder": (False,)}
_ROTARY: dict[str, tuple[Any, ...]] = {"hidden_act": ("silu", "swish"), "mlp_bias": (False,)}


@dataclass(frozen=True)
class Kind:
    """One `model_type`."""

    family: Family
    name: str
    """How its classes begin: BertModel, BertForSequenceClassification."""
    only: Mapping[str, tuple[Any, ...]]
    """Fields of `config.json` of which these values can be computed; the first is written."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `ModelConfig` that every such model has."""
    sizes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(_SIZES))
    activation: str = "hidden_act"
    has_head: bool = True
    """Its classifier is ours too; DINOv2's reads two vectors, so that a fresh one takes its place."""

    @property
    def bare(self) -> str:
        return f"{self.name}Model"

    @property
    def classifier(self) -> str:
        return f"{self.name}For{'Image' if self.family == 'vit' else 'Sequence'}Classification"

    @property
    def causal(self) -> str:
        """The language model; a family without has none."""
        return f"{self.name}ForCausalLM" if self.family == "llama" else ""

    @property
    def headless(self) -> tuple[str, ...]:
        """Classes whose features are taken and whose heads, if any, served pre-training."""
        masked = ("MaskedImageModeling",) if self.family == "vit" else ("MaskedLM", "PreTraining")
        return (self.bare, *(f"{self.name}For{task}" for task in masked if self.family != "llama"))


KINDS: Mapping[str, Kind] = {
    "vit": Kind("vit", "ViT", {"hidden_act": _GELUS, "qkv_bias": (True,)}),
    "dinov2": Kind(
        "vit", "Dinov2", {"hidden_act": _GELUS, "qkv_bias": (True,), "use_swiglu_ffn": (False,)}, has_head=False
    ),
    "bert": Kind("bert", "Bert", {"hidden_act": _GELUS, **_ABSOLUTE}),
    "roberta": Kind("bert", "Roberta", {"hidden_act": _GELUS, **_ABSOLUTE}),
    "distilbert": Kind(
        "bert",
        "DistilBert",
        {"activation": _GELUS},
        {"token_types": 0},
        {"dim": "dim", "depth": "n_layers", "heads": "n_heads", "mlp": "hidden_dim"},
        "activation",
    ),
    "llama": Kind("llama", "Llama", _ROTARY),
    "mistral": Kind("llama", "Mistral", _ROTARY),
    "qwen2": Kind("llama", "Qwen2", _ROTARY, {"attention_bias": "qkv"}),
    "qwen3": Kind("llama", "Qwen3", _ROTARY, {"qk_norm": True}),
}


def kind_of(values: Mapping[str, Any], where: str) -> str:
    """The `model_type`, of which nothing is asked that cannot be computed; otherwise a CheckpointError."""
    name = str(values.get("model_type"))
    if name not in KINDS:
        why = ", whose distillation token has no place here (DeiTs without one are stored as vit)" * (name == "deit")
        raise CheckpointError(
            f"{where}: model_type is {values.get('model_type')!r}{why}; what can be read is {', '.join(KINDS)}"
        )
    kind = KINDS[name]
    for key, allowed in kind.only.items():
        if key in values and values[key] not in allowed:
            raise CheckpointError(f"{where}: {key} is {values[key]!r}; only {allowed[0]!r} can be computed")
    read = (kind.classifier, *([kind.causal] if kind.causal else []), *kind.headless)
    for architecture in values.get("architectures") or ():
        if architecture not in read:
            raise CheckpointError(
                f"{where}: {architecture} has a head that is not read; take its encoder alone, by "
                f"{kind.bare}.from_pretrained(...).save_pretrained(DIR), or one of {', '.join(read)}"
            )
    return name


def written_kind(config: ModelConfig) -> str:
    """The plainest type that computes the model."""
    if config.family == "bert":
        if config.token_types == 0 and config.pooler != "tanh":
            return "distilbert"
        if config.token_types == 0 or config.pooler == "relu":
            raise CheckpointError(
                f"no Hugging Face type has {config.token_types} token types and the pooler {config.pooler!r}"
            )
    if config.qk_norm and config.attention_bias == "qkv":
        raise CheckpointError("no Hugging Face type has normed heads and a bias of q, k and v alone")
    if config.qk_norm:
        return "qwen3"
    return "qwen2" if config.attention_bias == "qkv" else config.family
