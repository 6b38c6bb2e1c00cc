"""A checkpoint brought to the data: which fields may differ from what it says, and its tensors in their new shapes.

Sequence length, task, classes, padding, image size and channels are the data's; depth and pooling may be chosen. What
cannot agree is refused from `config.json` alone, before any tensor is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig, TaskKind
from cos2p.models.layout import Weights

FREE_FIELDS = (
    "channels", "classes", "depth", "exits", "image", "max_tokens", "pad_token", "pooler", "pooling", "task",
)  # fmt: skip
"""What may differ from the checkpoint; every other field is decided by its tensors."""
_CHANNELS = (1, 3)


@dataclass(frozen=True)
class DataFacts:
    """What the data ask of a model. None: they do not say."""

    task: TaskKind
    classes: int | None = None
    max_tokens: int | None = None
    vocab: int | None = None
    """Token ids there are: the tokenizer's size."""
    pad_token: int | None = None
    image: int | None = None
    """Edge of the square images in pixels."""
    channels: int | None = None

    @property
    def is_text(self) -> bool:
        return self.max_tokens is not None

    def fields(self) -> dict[str, Any]:
        """As fields of a `ModelConfig`."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def wanted_fields(stored: ModelConfig, facts: DataFacts, chosen: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of the fitted model, from the data and from what the user chose; CheckpointError if they disagree."""
    if facts.is_text != (stored.family != "vit"):
        kind = "texts" if facts.is_text else "images"
        raise CheckpointError(f"{where} is a {stored.family}, but the data are {kind}")
    wanted = facts.fields()
    for name in sorted(wanted.keys() & chosen.keys()):
        if wanted[name] != chosen[name]:
            raise CheckpointError(f"{name} is {chosen[name]!r} in the model, but {wanted[name]!r} in the data")
    table = wanted.pop("vocab", stored.vocab)
    if table > stored.vocab:
        raise CheckpointError(
            f"the tokenizer has {table} tokens, the embedding table of {where} {stored.vocab}; "
            f"take the tokenizer that belongs to the checkpoint"
        )
    return wanted | dict(chosen)


def fit_config(stored: ModelConfig, wanted: Mapping[str, Any], where: str, window: int | None = None) -> ModelConfig:
    """`stored` with other fields, or a CheckpointError that says which cannot be."""
    config = stored.with_(**_without_impossible_sizes(stored, wanted, where))
    for field in wanted:
        if field not in FREE_FIELDS and getattr(config, field) != getattr(stored, field):
            raise CheckpointError(
                f"{where} has {field} {getattr(stored, field)}, not {wanted[field]}; "
                f"only {', '.join(FREE_FIELDS)} can differ from the checkpoint"
            )
    if config.depth > stored.depth:
        raise CheckpointError(f"{where} has {stored.depth} blocks, not {config.depth}; take as many or fewer")
    if config.family == "bert" and config.max_tokens > stored.max_tokens:
        raise CheckpointError(
            f"{where} has learned positions for {stored.max_tokens} tokens, not {config.max_tokens}; "
            f"cut the texts to {stored.max_tokens} tokens or fewer"
        )
    if window is not None and config.max_tokens > window:
        raise CheckpointError(
            f"{where} sees {window} tokens back, which cannot be computed for texts of {config.max_tokens}; "
            f"cut the texts to {window} tokens or fewer"
        )
    if config.channels != stored.channels and {config.channels, stored.channels} != set(_CHANNELS):
        raise CheckpointError(
            f"{where} has {stored.channels} channels, not {config.channels}; 1 and 3 can be exchanged"
        )
    if config.task == "language-modeling" and stored.task != config.task and not stored.tied:
        raise CheckpointError(f"{where} has no output table (lm_head.weight); load it with task='classification'")
    return config


def _without_impossible_sizes(stored: ModelConfig, wanted: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Refuse here what `ModelConfig` would refuse with advice for a fresh model."""
    image = wanted.get("image", stored.image)
    if stored.family == "vit" and isinstance(image, int) and image % stored.patch:
        below = max(image // stored.patch, 1) * stored.patch
        raise CheckpointError(
            f"images of {image} pixels do not divide into the {stored.patch}-pixel patches of {where}; "
            f"set their size to {below} or {below + stored.patch}"
        )
    if wanted.get("task") == "language-modeling" and stored.family != "llama":
        raise CheckpointError(
            f"{where} is a {stored.family}, which is no language model: each of its tokens sees those behind it; "
            f"take a LLaMA, or data with labels"
        )
    return dict(wanted)


def differing(config: ModelConfig, stored: ModelConfig) -> dict[str, Any]:
    """The fields of `config` that are not the checkpoint's."""
    names = [field.name for field in fields(ModelConfig)]
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(stored, name)}


def plain_tensors(values: Weights, offset: int) -> Weights:
    """Without what other model types have next to ours: LayerScale multiplied in, positions from the first token on."""
    plain = {name: tensor for name, tensor in values.items() if not name.endswith(".scale")}
    for name in values.keys() - plain.keys():
        layer, scale = name.removesuffix("scale"), values[name]
        plain[layer + "weight"] = plain[layer + "weight"] * scale[:, None]
        plain[layer + "bias"] = plain[layer + "bias"] * scale
    if offset:
        plain["embed.positions"] = plain["embed.positions"][offset:].clone()
    return plain


def fit_tensors(config: ModelConfig, stored: ModelConfig, values: Weights) -> Weights:
    """The embeddings in the shapes of `config`: positions cut or interpolated, colour and grey exchanged."""
    fitted = dict(values)
    if config.family == "bert" and config.max_tokens < stored.max_tokens:
        fitted["embed.positions"] = values["embed.positions"][: config.max_tokens].clone()
    if config.family == "vit" and config.image != stored.image:
        fitted["embed.positions"] = _interpolated(values["embed.positions"], stored, config)
    if config.family == "vit" and config.channels != stored.channels:
        fitted["embed.patch.weight"] = _recoloured(values["embed.patch.weight"], config.channels)
    return fitted


def _interpolated(positions_1TD: Tensor, stored: ModelConfig, config: ModelConfig) -> Tensor:
    """As transformers' `interpolate_pos_encoding`: the grid of patches bicubically, the cls token as it is."""
    old, new = (c.image // c.patch for c in (stored, config))
    grid = positions_1TD[:, 1:].reshape(1, old, old, config.dim).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    return torch.cat((positions_1TD[:, :1], grid.flatten(2).transpose(1, 2)), 1)


def _recoloured(patch_DCHW: Tensor, channels: int) -> Tensor:
    """Grey for a colour model: as if the grey image were given in all channels. Colour for a grey one: their mean."""
    grey = patch_DCHW.sum(1, keepdim=True)
    return grey if channels == 1 else (grey / channels).repeat(1, channels, 1, 1)
