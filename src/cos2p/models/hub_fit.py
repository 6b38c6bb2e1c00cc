"""A checkpoint brought to the data: which fields may differ from what it says, and its tensors in their new shapes.

Sequence length, task, classes, padding, image size and channels are the data's; depth and pooling may be chosen. What
cannot agree is refused from `config.json` alone, before any tensor is read.
Then its names and shapes are compared with the model it says it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig, TaskKind
from cos2p.models.hub_config import attention_window, position_offset, promises_head, read_config
from cos2p.models.hub_export import GREY_FIELD
from cos2p.models.hub_files import StoredTensor, read_json, resolve
from cos2p.models.hub_pooling import HEAD_FILE, POOLING_FIELD, stored_pooling
from cos2p.models.hub_tables import is_ignored, their_names
from cos2p.models.layout import Weights, exit_parameters, layout

FREE_FIELDS = (
    "channels", "classes", "depth", "exits", "image", "max_tokens", "pad_token", "pooler", "pooling", "task",
)  # fmt: skip
"""These may differ from the checkpoint; every other field is decided by its tensors."""
_CHANNELS = (1, 3)


@dataclass(frozen=True)
class DataFacts:
    """The data's demands on a model. None: they do not say."""

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


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as `config.json` and its neighbours describe it; no tensor has been read."""

    path: Path
    config: ModelConfig
    kind: str
    """Its `model_type`."""
    has_head: bool
    """It says that it has the head of our exit; a bare BertModel or ViTModel does not."""
    head: Path | None = None
    """Where its classifier is, if transformers has none for its pooling."""
    offset: int = 0
    """Rows of its position table before that of the first token (RoBERTa)."""
    window: int | None = None
    """So many tokens back each one sees (Mistral); None for all."""
    says_pooling: bool = False
    """It names its pooling, or has a classifier, which was trained behind its family's."""
    is_grey: bool = False
    """It takes colour images and sees their luma: a model of grey images that was saved for pipelines."""

    @classmethod
    def read(cls, folder: str | Path, pooling_chosen: bool = False) -> Checkpoint:
        """`pooling_chosen`: a pooling that cannot be computed does not matter."""
        path = resolve(folder)
        values = read_json(path / "config.json")
        config = read_config(values, str(path / "config.json"))
        promised = promises_head(values, config)
        try:
            said = stored_pooling(path, values, promised)
        except CheckpointError:
            if not pooling_chosen:
                raise
            said = {}
        grey, apart = values.get(GREY_FIELD) is True, POOLING_FIELD in values and not promised
        return cls(
            path,
            config.with_(**said),
            values["model_type"],
            promised or apart,
            path / HEAD_FILE if apart else None,
            position_offset(values),
            attention_window(values),
            bool(said) or (promised and config.task == "classification"),
            grey,
        )


def match(checkpoint: Checkpoint, config: ModelConfig, tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Our names to theirs of what `config` takes from the checkpoint.

    CheckpointError unless the file holds exactly what it should, whether it will be used or not.
    """
    stored = checkpoint.config
    # A model that is pooled in another way may have kept its family's pooler.
    held = stored.with_(pooling="", pooler="")
    expected = their_names(held, held.depth, checkpoint.kind)
    shapes = {name: _shape(held, name, checkpoint.offset) for name in expected}
    optional = [] if checkpoint.has_head else ["exit.linear."]
    optional += ["exit.pooler."] if not checkpoint.has_head or stored.pooler == "none" else []
    for module in optional:
        names = [name for name in expected if name.startswith(module)]
        if not any(expected[name] in tensors for name in names):
            expected = {name: theirs for name, theirs in expected.items() if name not in names}
    fresh_linear = _differ(config, stored, "outputs", "task", "pooling", "pooler")
    _refuse_problems(checkpoint, held, expected, shapes, tensors, fresh_linear)
    return {name: theirs for name, theirs in expected.items() if _is_used(config, name, fresh_linear)}


def _differ(a: ModelConfig, b: ModelConfig, *names: str) -> bool:
    return any(getattr(a, name) != getattr(b, name) for name in names)


def _is_used(config: ModelConfig, name: str, fresh_linear: bool) -> bool:
    if name.startswith("exit."):
        return name.removeprefix("exit.") in exit_parameters(config) and not (
            fresh_linear and name.startswith("exit.linear.")
        )
    if name.endswith(".scale"):
        name = name.removesuffix("scale") + "weight"
    return name in layout(config)  # not so: blocks above the depth, the output table of a classifier


def _refuse_problems(
    checkpoint: Checkpoint,
    held: ModelConfig,
    expected: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Mapping[str, StoredTensor],
    fresh_linear: bool,
) -> None:
    problems = [
        f"{theirs} of shape {shapes[name]} is missing" for name, theirs in expected.items() if theirs not in tensors
    ]
    for name, theirs in expected.items():
        found = tensors.get(theirs)
        unused = name.startswith("exit.linear.") and fresh_linear
        if found is not None and found.shape != shapes[name] and not unused:
            problems.append(f"{found.name} has shape {found.shape}, config.json says {shapes[name]}")
    known = set(expected.values()) | _unused_heads(held)
    extra = [t.name for name, t in tensors.items() if name not in known and not is_ignored(checkpoint.kind, name)]
    problems += [f"{name} does not belong to a {checkpoint.kind} of {held.depth} blocks" for name in sorted(extra)]
    if problems:
        more = f"; and {len(problems) - 6} more" if len(problems) > 6 else ""
        raise CheckpointError(f"{checkpoint.path} does not fit its config.json: {'; '.join(problems[:6])}{more}")


def _unused_heads(held: ModelConfig) -> set[str]:
    """A tied language model may carry its table twice."""
    return {"lm_head.weight"} if held.family == "llama" and held.tied else set()


def _shape(config: ModelConfig, name: str, offset: int) -> tuple[int, ...]:
    if name.endswith(".scale"):
        return (config.dim,)
    if name == "embed.positions" and offset:
        return (config.max_tokens + offset, config.dim)
    if name.startswith("exit."):
        return exit_parameters(config)[name.removeprefix("exit.")].shape
    return layout(config)[name].shape
