"""Weights from and to Hugging Face checkpoints: `config.json` and `*.safetensors`, or pickles of tensors alone.

Nothing here imports `transformers`; `hub_tables` says which model types are read, and with `hub_config` what their
files hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from cos2p.errors import CheckpointError
from cos2p.models.config import ModelConfig
from cos2p.models.hub_config import is_native, write_config
from cos2p.models.hub_export import GREY_FIELD, Crop, Normalization, coloured, readable_by_all, write_inputs
from cos2p.models.hub_files import open_tensors, resolve, write_json
from cos2p.models.hub_fit import (
    Checkpoint,
    DataFacts,
    differing,
    fit_config,
    fit_tensors,
    match,
    plain_tensors,
    wanted_fields,
)
from cos2p.models.hub_pooling import is_sentence_model, write_head, write_sentence_modules
from cos2p.models.hub_tables import TABLES, their_names, written_kind
from cos2p.models.layout import Weights, exit_key, exit_parameters, init_tensor, layout


def load_pretrained(
    folder: str | Path, *, seed: int = 0, fit: DataFacts | None = None, **chosen: Any
) -> tuple[ModelConfig, Weights]:
    """Read a checkpoint of a model type in `hub_tables` as float32, or raise CheckpointError and load nothing.

    `folder` holds `config.json` and `model.safetensors` or `pytorch_model.bin` (or their index and shards). A string
    that is no folder but looks like a hub name (`google/vit-base-patch16-224`) is downloaded (json, safetensors).

    `fit` is what the data ask for; `chosen` are fields that shall differ from the checkpoint: see `hub_fit` for which
    may, and what becomes of its tensors. Pooling is what sentence-transformers' files say, or the family's habit.

    A checkpoint has one head, the model an exit at every depth: see `fill_exits` for what the others start from. Fresh
    tensors (a classifier with another number of classes) are drawn with `seed`. A checkpoint without a classifier says
    two classes unless `classes` says otherwise.
    """
    path = resolve(folder)
    config = pretrained_config(path, fit, **chosen)
    return config, pretrained_weights(path, config, seed)


def pretrained_config(folder: str | Path, fit: DataFacts | None = None, **chosen: Any) -> ModelConfig:
    """The model that `load_pretrained` would give, from the json files alone."""
    checkpoint = Checkpoint.read(folder, pooling_chosen="pooling" in chosen)
    where = str(checkpoint.path)
    if checkpoint.is_grey and fit is None:
        chosen = {"channels": 1} | chosen
    wanted = chosen if fit is None else wanted_fields(checkpoint.config, fit, chosen, where)
    return fit_config(checkpoint.config, wanted, where, checkpoint.window)


def pretrained_weights(folder: str | Path, config: ModelConfig, seed: int = 0) -> Weights:
    """The checkpoint's tensors as the weights of `config`, which `pretrained_config` gave."""
    values, depth = _read(folder, config)
    last = {name.removeprefix("exit."): values.pop(name) for name in list(values) if name.startswith("exit.")}
    values |= fill_exits(config, last, seed, depth)
    return {name: values[name] for name in layout(config)}


def pretrained_part(folder: str | Path, config: ModelConfig, part: str) -> Weights:
    """Those of them that belong to a part (`embed.`, `blocks.3.`); nothing else is read."""
    return _read(folder, config, part)[0]


def _read(folder: str | Path, config: ModelConfig, part: str = "") -> tuple[Weights, int]:
    """The tensors whose names begin so, in the shapes of `config`, and the checkpoint's depth."""
    checkpoint = Checkpoint.read(folder, pooling_chosen=True)
    stored = checkpoint.config
    fit_config(stored, differing(config, stored), str(checkpoint.path), checkpoint.window)
    with ExitStack() as files:
        tensors = open_tensors(checkpoint.path, checkpoint.kind, files, checkpoint.head)
        ours = match(checkpoint, config, tensors)
        values = {name: tensors[theirs].read() for name, theirs in ours.items() if name.startswith(part)}
    embeds = part in ("", "embed.")
    values = plain_tensors(values, checkpoint.offset if embeds else 0)
    return fit_tensors(config, stored, values) if embeds else values, stored.depth


def save_pretrained(
    folder: str | Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    exit: int | None = None,
    labels: Sequence[str] | None = None,
    normalize: Normalization | None = None,
    crop: Crop = "center",
    tokenizer: str | Path | None = None,
    card: str = "",
) -> Path:
    """Write a folder that `transformers` loads with `from_pretrained`, giving the same logits; return it.

    A checkpoint has one head: that of depth `exit` (all blocks by default), and only the blocks below it are
    written, so an early exit becomes a shallower model of its own. `labels` names the classes.

    Where `transformers` has no such head (a mean of BERT's tokens) it is the plain encoder, with the classifier in
    `2_Dense`; with its tokenizer then a folder of sentence-transformers, too.

    For `transformers.pipeline`: `normalize` and `crop` are how images were prepared (a model of grey images is then
    written for colour ones), `tokenizer` the `tokenizer.json` of texts or its folder. `card` is the text of the model
    card.
    """
    depth = exit_depth(config, exit)
    values, tensors = model_content(config, weights, depth, labels, in_colour=normalize is not None)
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    marks = write_inputs(path, config, normalize, crop, tokenizer, card)
    write_model(path, values | marks, tensors)
    if not is_native(config):
        write_head(path, config, head_tensors(config, weights, depth)["linear"])
        if is_sentence_model(config, None if tokenizer is None else path / "tokenizer.json"):
            write_sentence_modules(path, config)
    readable_by_all(path)
    return path


def exit_depth(config: ModelConfig, exit: int | None) -> int:
    depth = config.depth if exit is None else exit
    if not 1 <= depth <= config.depth:
        raise CheckpointError(f"exit {exit} does not exist; the model has exits 1 to {config.depth}")
    return depth


def model_content(
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    depth: int,
    labels: Sequence[str] | None,
    in_colour: bool = False,
) -> tuple[dict[str, Any], Weights]:
    """The content of `config.json` and `model.safetensors`: the model with its head, or the plain encoder if
    transformers has no such head. `in_colour`: a model of grey images takes colour ones."""
    values, kind, bank = write_config(config, depth, labels), written_kind(config), exit_key(config, depth)
    names, tensors = their_names(config, depth, kind), Weights()
    if not is_native(config):
        names = {o: t.removeprefix(TABLES[kind].base) for o, t in names.items() if not o.startswith("exit.linear.")}
    for ours, theirs in names.items():
        tensors[theirs] = _checked(weights, ours.replace("exit", bank, 1) if ours.startswith("exit.") else ours, config)
    if in_colour and config.family == "vit" and config.channels == 1:
        patch = names["embed.patch.weight"]
        tensors[patch] = coloured(tensors[patch])
        values |= {"num_channels": 3, GREY_FIELD: True}
    return values | {"dtype": str(tensors[next(iter(tensors))].dtype).removeprefix("torch.")}, tensors


def write_model(path: Path, values: Mapping[str, Any], tensors: Weights) -> None:
    path.mkdir(exist_ok=True)
    unfinished = path / "model.safetensors.part"
    save_file(tensors, unfinished, metadata={"format": "pt"})
    unfinished.replace(path / "model.safetensors")
    write_json(path / "config.json", dict(values))


def head_tensors(config: ModelConfig, weights: Mapping[str, Tensor], depth: int) -> dict[str, Weights]:
    """The exit at a depth by its parts: `norm`, `pooler`, `linear`, each with `weight` and perhaps `bias`."""
    parts: dict[str, Weights] = {}
    for name in exit_parameters(config):
        part, _, kind = name.rpartition(".")
        parts.setdefault(part, {})[kind] = _checked(weights, f"{exit_key(config, depth)}.{name}", config)
    return parts


def _checked(weights: Mapping[str, Tensor], name: str, config: ModelConfig) -> Tensor:
    shape = layout(config)[name].shape
    if name not in weights:
        raise CheckpointError(f"cannot save: the weights lack {name} of shape {shape}")
    if tuple(weights[name].shape) != shape:
        raise CheckpointError(f"cannot save: {name} has shape {tuple(weights[name].shape)}, the model says {shape}")
    return weights[name].detach().contiguous()


# From the one head of a checkpoint to an exit at every depth.
#
# Everything the head has is copied to every depth, because the blocks of a trained transformer write into one residual
# stream: the head reads shallow features too, only worse. Measured on a ViT of 8 blocks trained on digits, a copied
# head was right on 44, 81, 89 and 91 % of the test set behind blocks 1 to 4 before any training (a fresh linear layer:
# chance, and still behind after 80 steps).
#
# A language model's norm is copied times depth/L. Shallow features predict less, so the logits have to be less sure of
# themselves: on stories260K (L = 5) the loss at depths 1 to 4 starts at 4.9, 4.1, 3.2, 2.1, with a plain copy at
# 13.3, 6.6, 3.7, 2.2, with fresh norms at 8.3, 5.0, 3.5, 2.5.


def fill_exits(config: ModelConfig, last: Mapping[str, Tensor], seed: int, trained_depth: int = 0) -> Weights:
    """All exits of a model by their full names. `last` holds what is known of the one behind `trained_depth` blocks
    (`norm.weight`, ...), of which the model may have kept the lower ones only; 0 means that it has them all.

    What it lacks, a classifier's linear layer mostly, is fresh at every depth: `init_tensor` with `seed`.
    """
    bank: Weights = {}
    for depth in range(1, config.depth + 1):
        shallow = config.task == "language-modeling" and config.exits == "bank"
        scale = depth / (trained_depth or config.depth) if shallow else 1.0
        for name in exit_parameters(config):
            full = f"{exit_key(config, depth)}.{name}"  # a shared exit is written again, with the same values
            bank[full] = last[name] * scale if name in last else init_tensor(config, full, seed)
    return bank
