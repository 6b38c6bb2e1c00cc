"""What the tensors of the three families are called in a Hugging Face checkpoint, on disk.

Left our name, right theirs; `{i}` is the block. A name without `.weight` or `.bias` at its end is a module and
stands for both. `exit` is the one exit a checkpoint has, behind its last block.

The names on disk are not always those in memory: transformers 5 calls a ViT's query `layers.0.attention.q_proj`,
but still writes `encoder.layer.0.attention.attention.query`. Both are read, the latter is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

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


TABLES: Mapping[str, KeyTable] = {
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
        # ViTModel's pooler sits beside the classifier's path; the mask token and decoder served pre-training.
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


def canonical(family: str, name: str) -> str:
    """The name under which `names` lists a tensor: today's spelling on disk, with the prefix.

    >>> canonical("vit", "layers.3.attention.q_proj.bias")
    'vit.encoder.layer.3.attention.attention.query.bias'
    """
    table = TABLES[family]
    for pattern, replacement in table.older:
        name = re.sub(pattern, replacement, name)
    return name if name.startswith((table.base, *table.heads)) else table.base + name


def is_ignored(family: str, name: str) -> bool:
    return re.match(TABLES[family].ignored, name) is not None


def their_names(config: ModelConfig, depth: int) -> dict[str, str]:
    """Our names to theirs for a checkpoint of `depth` blocks; the exit's tensors are `exit.norm.weight`, ..."""
    ours = [name for name in layout(config) if not name.startswith("exits.") and _block(name) < depth]
    ours += [f"exit.{name}" for name in exit_parameters(config)]
    return {name: _translate(config.family, name) for name in ours}


def _block(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("blocks.") else -1


def _translate(family: str, name: str) -> str:
    names, block = TABLES[family].names, _block(name)
    entry = name if block < 0 else name.replace(f".{block}.", ".{i}.", 1)
    if entry in names:
        theirs = names[entry]
    else:
        module, _, kind = entry.rpartition(".")
        theirs = f"{names[module]}.{kind}"
    return theirs.replace("{i}", str(block))
