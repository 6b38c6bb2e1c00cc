"""The transformer of HeteroFL and FedRolex, and the same one as a `ModelConfig` of ours.

Theirs has norms behind the sums, GELU, learned positions: our BERT. Their decoder (linear1, norm1, linear2) is our exit
(pooler, linear), which has no norm; our token types have no counterpart and are zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.aggregation.merge import Contribution
from cos2p.models.layout import Weights, init_weights
from cos2p_rivals.heterofl.cut import ScaledCut, scaled_slices, take_scaled
from cos2p_rivals.heterofl.method import ScaledMerge
from tests.official.case import agree, wave

_ENCODER = "transformer_encoder.layers.0."
_NAMES = {
    "transformer_embedding.positional_embedding.positional_embedding.weight": "embed.positions",
    "transformer_embedding.embedding.weight": "embed.tokens",
    "transformer_embedding.norm.": "embed.norm.",
    f"{_ENCODER}mha.linear_": "blocks.0.",
    f"{_ENCODER}norm": "blocks.0.norm",
    f"{_ENCODER}linear": "blocks.0.fc",
    "decoder.linear1.": "exits.1.pooler.",
    "decoder.linear2.": "exits.1.linear.",
}


def our_name(official: str) -> str | None:
    """None for the norm in their decoder."""
    for start, ours in _NAMES.items():
        if official.startswith(start):
            return ours + official.removeprefix(start)
    return None


def our_config(model: Mapping[str, int]) -> ModelConfig:
    """Their embedding has a row for the mask token behind the last token."""
    return ModelConfig(
        "bert", dim=model["dim"], depth=model["depth"], heads=model["heads"], mlp=model["mlp"], norm_eps=1e-5,
        classes=model["tokens"], vocab=model["tokens"] + 1, max_tokens=model["positions"],
    )  # fmt: skip


def start(config: ModelConfig, names: Sequence[str]) -> Weights:
    """wave(1 + i) in tensor i of the official model."""
    weights = init_weights(config, 0)
    weights["embed.types"].zero_()
    for i, official in enumerate(names):
        name = our_name(official)
        if name is not None:
            weights[name] = wave(weights[name].shape, 1.0 + i)
    return weights


def assert_index_lists(config: ModelConfig, part: ScaledCut, official: Mapping[str, Sequence[Sequence[int]]]) -> None:
    """Every axis of every tensor holds the same entries in the same order."""
    ours, compared = scaled_slices(config, part), 0
    for their_name, lists in official.items():
        name = our_name(their_name)
        if name is None:
            continue
        for cut, entries in zip(ours[name], lists, strict=True):
            assert (list(range(len(entries))) if cut is None else cut.tolist()) == entries, their_name
            compared += 1
    assert compared == 34


def assert_combined(config: ModelConfig, names: Sequence[str], parts: Sequence[ScaledCut], official: Any) -> None:
    """Two updates, 0.1·wave(40 + 5m + i) of client m, merged over the holders of each scalar."""
    weights, merge = start(config, names), ScaledMerge(config)
    for client, part in enumerate(parts):
        delta = {name: torch.zeros_like(tensor) for name, tensor in take_scaled(weights, config, part).items()}
        for i, their_name in enumerate(names):
            name = our_name(their_name)
            if name is not None:
                delta[name] = -0.1 * wave(delta[name].shape, 40.0 + 5 * client + i)
        settings = {"thin": part.model_dump(mode="json")}
        merge.add(Contribution(str(client), SubmodelSpec.full(config), delta, 1, 0, weights, settings), weights)
    merged = merge.apply(weights)
    for their_name, expected in official.items():
        name = our_name(their_name)
        if name == "embed.tokens":  # its last row is the mask token's, which they leave to nobody
            tokens = config.vocab - 1
            agree(f"merged {name}", merged[name][:tokens], expected[: tokens * config.dim])
        elif name is not None:
            agree(f"merged {name}", merged[name], expected)
