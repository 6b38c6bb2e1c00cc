"""What the tensors of each model type are called in a Hugging Face checkpoint, on disk.

Left our name, right theirs; `{i}` is the block. A name without `.weight` or `.bias` at its end is a module and
stands for both. `exit` is the one exit a checkpoint has, behind its last block.

The names on disk are not always those in memory: transformers 5 calls a ViT's query `layers.0.attention.q_proj`,
but still writes `encoder.layer.0.attention.attention.query`. Both are read, the latter is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cos2p.models.config import ModelConfig
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
