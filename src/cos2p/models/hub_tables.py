"""The names of each model type's tensors in a Hugging Face checkpoint, on disk.

Left our name, right theirs; `{i}` is the block. A name without `.weight` or `.bias` at its end is a module and
stands for both. `exit` is the one exit a checkpoint has, behind its last block.

The names on disk are not always those in memory: transformers 5 calls a ViT's query `layers.0.attention.q_proj`,
but still writes `encoder.layer.0.attention.attention.query`. Both are read, the latter is written.

The model types of Hugging Face that the one elastic block computes: what each is here, and what it may not ask for.

Several are one model under different names: Mistral is a LLaMA, RoBERTa a BERT whose positions begin later, DINOv2 a
ViT once its LayerScale is multiplied into the output projections. They are read as what they are, and written as the
plainest type that computes the same (`written_kind`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from cos2p.errors import CheckpointError
from cos2p.models.config import Family, ModelConfig
from cos2p.models.layout import exit_parameters, layout


@dataclass(frozen=True)
class KeyTable:
    """How one family's names translate."""

    base: str
    """Prefix of everything but the head in a model with a head; a bare model (BertModel, ...) goes without."""
    names: Mapping[str, str]
    heads: tuple[str, ...]
    """Beginnings of names that never carry the prefix."""
    older: tuple[tuple[str, str], ...]
    """Other spellings as (pattern, replacement), applied on reading."""
    ignored: str
    """Pattern of tensors that checkpoints carry and this model does not need."""
    scales: Mapping[str, str] = field(default_factory=dict)
    """Factors of a matrix's output that are multiplied into it on reading (LayerScale)."""


_FAMILIES: dict[str, KeyTable] = {
    "vit": KeyTable(
        base="vit.",
        names={
            "embed.patch": "vit.embeddings.patch_embeddings.projection",
            "embed.cls": "vit.embeddings.cls_token",
            "embed.positions": "vit.embeddings.position_embeddings",
            "blocks.{i}.norm1": "vit.encoder.layer.{i}.layernorm_before",
            "blocks.{i}.q": "vit.encoder.layer.{i}.attention.attention.query",
            "blocks.{i}.k": "vit.encoder.layer.{i}.attention.attention.key",
            "blocks.{i}.v": "vit.encoder.layer.{i}.attention.attention.value",
            "blocks.{i}.o": "vit.encoder.layer.{i}.attention.output.dense",
            "blocks.{i}.norm2": "vit.encoder.layer.{i}.layernorm_after",
            "blocks.{i}.fc1": "vit.encoder.layer.{i}.intermediate.dense",
            "blocks.{i}.fc2": "vit.encoder.layer.{i}.output.dense",
            "exit.norm": "vit.layernorm",
            "exit.linear": "classifier",
        },
        heads=("classifier.", "decoder."),
        older=(
            (r"\blayers\.(\d+)\.attention\.q_proj\.", r"encoder.layer.\1.attention.attention.query."),
            (r"\blayers\.(\d+)\.attention\.k_proj\.", r"encoder.layer.\1.attention.attention.key."),
            (r"\blayers\.(\d+)\.attention\.v_proj\.", r"encoder.layer.\1.attention.attention.value."),
            (r"\blayers\.(\d+)\.attention\.o_proj\.", r"encoder.layer.\1.attention.output.dense."),
            (r"\blayers\.(\d+)\.mlp\.fc1\.", r"encoder.layer.\1.intermediate.dense."),
            (r"\blayers\.(\d+)\.mlp\.fc2\.", r"encoder.layer.\1.output.dense."),
            (r"\blayers\.(\d+)\.layernorm_", r"encoder.layer.\1.layernorm_"),
        ),
        # ViTModel's pooler sits next to the classifier's path; the mask token and decoder served pre-training.
        ignored=r"vit\.pooler\.|vit\.embeddings\.mask_token$|decoder\.",
    ),
    "bert": KeyTable(
        base="bert.",
        names={
            "embed.tokens": "bert.embeddings.word_embeddings.weight",
            "embed.positions": "bert.embeddings.position_embeddings.weight",
            "embed.types": "bert.embeddings.token_type_embeddings.weight",
            "embed.norm": "bert.embeddings.LayerNorm",
            "blocks.{i}.q": "bert.encoder.layer.{i}.attention.self.query",
            "blocks.{i}.k": "bert.encoder.layer.{i}.attention.self.key",
            "blocks.{i}.v": "bert.encoder.layer.{i}.attention.self.value",
            "blocks.{i}.o": "bert.encoder.layer.{i}.attention.output.dense",
            "blocks.{i}.norm1": "bert.encoder.layer.{i}.attention.output.LayerNorm",
            "blocks.{i}.fc1": "bert.encoder.layer.{i}.intermediate.dense",
            "blocks.{i}.fc2": "bert.encoder.layer.{i}.output.dense",
            "blocks.{i}.norm2": "bert.encoder.layer.{i}.output.LayerNorm",
            "exit.pooler": "bert.pooler.dense",
            "exit.linear": "classifier",
        },
        heads=("classifier.", "cls."),
        older=((r"\bLayerNorm\.gamma$", "LayerNorm.weight"), (r"\bLayerNorm\.beta$", "LayerNorm.bias")),
        # Buffers, and the pre-training heads of BertForMaskedLM and BertForPreTraining.
        ignored=r"bert\.embeddings\.(position_ids|token_type_ids)$|cls\.",
    ),
    "llama": KeyTable(
        base="model.",
        names={
            "embed.tokens": "model.embed_tokens.weight",
            "blocks.{i}.norm1": "model.layers.{i}.input_layernorm",
            "blocks.{i}.q": "model.layers.{i}.self_attn.q_proj",
            "blocks.{i}.k": "model.layers.{i}.self_attn.k_proj",
            "blocks.{i}.v": "model.layers.{i}.self_attn.v_proj",
            "blocks.{i}.q_norm": "model.layers.{i}.self_attn.q_norm",
            "blocks.{i}.k_norm": "model.layers.{i}.self_attn.k_norm",
            "blocks.{i}.o": "model.layers.{i}.self_attn.o_proj",
            "blocks.{i}.norm2": "model.layers.{i}.post_attention_layernorm",
            "blocks.{i}.gate": "model.layers.{i}.mlp.gate_proj",
            "blocks.{i}.fc1": "model.layers.{i}.mlp.up_proj",
            "blocks.{i}.fc2": "model.layers.{i}.mlp.down_proj",
            "exit.norm": "model.norm",
            "exit.linear": "score",
            "lm_head": "lm_head",
        },
        heads=("score.", "lm_head."),
        older=(),
        ignored=r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq$",
    ),
}


def _renamed(table: KeyTable, base: str) -> dict[str, str]:
    """A table's names below another prefix."""
    return {ours: base + theirs.removeprefix(table.base) for ours, theirs in table.names.items()}


_BERT, _VIT = _FAMILIES["bert"], _FAMILIES["vit"]
_BLOCK = "dinov2.encoder.layer.{i}."
_DISTIL = "distilbert.transformer.layer.{i}."
TABLES: Mapping[str, KeyTable] = _FAMILIES | {
    "roberta": KeyTable(
        base="roberta.",
        names=_renamed(_BERT, "roberta.") | {"exit.pooler": "classifier.dense", "exit.linear": "classifier.out_proj"},
        heads=("classifier.", "lm_head."),
        older=_BERT.older,
        # RobertaModel's pooler is not the one its classifier has, and no pre-training used it.
        ignored=r"roberta\.embeddings\.(position_ids|token_type_ids)$|roberta\.pooler\.|lm_head\.",
    ),
    "distilbert": KeyTable(
        base="distilbert.",
        names={
            "embed.tokens": "distilbert.embeddings.word_embeddings.weight",
            "embed.positions": "distilbert.embeddings.position_embeddings.weight",
            "embed.norm": "distilbert.embeddings.LayerNorm",
            "blocks.{i}.q": _DISTIL + "attention.q_lin",
            "blocks.{i}.k": _DISTIL + "attention.k_lin",
            "blocks.{i}.v": _DISTIL + "attention.v_lin",
            "blocks.{i}.o": _DISTIL + "attention.out_lin",
            "blocks.{i}.norm1": _DISTIL + "sa_layer_norm",
            "blocks.{i}.fc1": _DISTIL + "ffn.lin1",
            "blocks.{i}.fc2": _DISTIL + "ffn.lin2",
            "blocks.{i}.norm2": _DISTIL + "output_layer_norm",
            "exit.pooler": "pre_classifier",
            "exit.linear": "classifier",
        },
        heads=("pre_classifier.", "classifier.", "vocab_"),
        older=_BERT.older,
        ignored=r"distilbert\.embeddings\.position_ids$|vocab_",
    ),
    "dinov2": KeyTable(
        base="dinov2.",
        names=_renamed(_VIT, "dinov2.")
        | {
            "blocks.{i}.norm1": _BLOCK + "norm1",
            "blocks.{i}.norm2": _BLOCK + "norm2",
            "blocks.{i}.fc1": _BLOCK + "mlp.fc1",
            "blocks.{i}.fc2": _BLOCK + "mlp.fc2",
            "exit.linear": "no.classifier",  # its own reads two vectors side by side
        },
        heads=("classifier.", "no."),
        older=(),
        ignored=r"dinov2\.embeddings\.mask_token$|classifier\.",
        scales={"o": _BLOCK + "layer_scale1.lambda1", "fc2": _BLOCK + "layer_scale2.lambda1"},
    ),
    **dict.fromkeys(("mistral", "qwen2", "qwen3"), _FAMILIES["llama"]),
}


def canonical(kind: str, name: str) -> str:
    """The name under which `names` lists a tensor: today's spelling on disk, with the prefix.

    >>> canonical("vit", "layers.3.attention.q_proj.bias")
    'vit.encoder.layer.3.attention.attention.query.bias'
    """
    table = TABLES[kind]
    for pattern, replacement in table.older:
        name = re.sub(pattern, replacement, name)
    return name if name.startswith((table.base, *table.heads)) else table.base + name


def is_ignored(kind: str, name: str) -> bool:
    return re.match(TABLES[kind].ignored, name) is not None


def their_names(config: ModelConfig, depth: int, kind: str) -> dict[str, str]:
    """Our names to theirs for a checkpoint of `depth` blocks; the exit's tensors are `exit.norm.weight`, ...

    The factors of LayerScale are `blocks.3.o.scale`, ...
    """
    ours = [name for name in layout(config) if not name.startswith("exits.") and _block(name) < depth]
    ours += [f"exit.{name}" for name in exit_parameters(config)]
    names = {name: _translate(kind, name) for name in ours}
    for layer, theirs in TABLES[kind].scales.items():
        names |= {f"blocks.{i}.{layer}.scale": theirs.replace("{i}", str(i)) for i in range(depth)}
    return names


def _block(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("blocks.") else -1


def _translate(kind: str, name: str) -> str:
    names, block = TABLES[kind].names, _block(name)
    entry = name if block < 0 else name.replace(f".{block}.", ".{i}.", 1)
    if entry in names:
        theirs = names[entry]
    else:
        module, _, kind = entry.rpartition(".")
        theirs = f"{names[module]}.{kind}"
    return theirs.replace("{i}", str(block))


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
