"""Scaled submodels: every dimension is cut, the residual width and the inside of the heads included.

HeteroFL and the official FedRolex cut like this: a device holds all blocks and all heads, but a share r of the
residual width, of each head's size, and of the MLP units. Parameters fall with r². What a device gets is itself an
ordinary transformer of a smaller `ModelConfig`; only where its tensors lie in the full model is special: matrices are
cut along both axes. `SubmodelSpec` cannot say that, and nothing else needs it, so it has a value of its own, which
travels in a task's settings next to the spec of the full model.

    residual   embeddings, norms, columns of q, k, v and fc1, rows of o and fc2, columns of the exit: one window for all
    inner      rows of q, k, v and columns of o: all rows are rolled, then each head keeps its first ones
    units      rows of fc1 and columns of fc2

Ours: of a LLaMA whole heads are left out (a key with its queries) instead of a part of each. Rotary positions turn the
entries of a head in pairs at speeds that depend on its size, so a part of a head would see other positions than the
head does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import torch
from pydantic import Field
from torch import Tensor

from cos2p import ModelConfig
from cos2p.methods import BudgetError, Settings, Weights, exit_key, layout, segment_costs

_EPSILON = 1e-9  # ⌈r·D⌉ for r = j/D must be j

Cuts = tuple[Tensor | None, ...]
"""For every axis of a tensor the entries kept, or None for all."""


class Window(Settings):
    """`count` entries from `start` on, around the end."""

    start: int = Field(ge=0)
    count: int = Field(ge=1)

    def index(self, size: int) -> Tensor:
        return (torch.arange(self.count) + self.start) % size


class ScaledCut(Settings):
    """Which part of every dimension a device holds."""

    rate: float = Field(gt=0, le=1, description="r: share of every dimension.")
    residual: Window
    inner: Window
    """`count` entries of each head, after all entries of all heads were rolled to `start`; of a LLaMA whole heads."""
    units: Window


def whole_heads(config: ModelConfig) -> bool:
    """Whether heads are left out as a whole, because their insides cannot be cut."""
    return config.family == "llama"


def scaled_sizes(config: ModelConfig, rate: float) -> tuple[int, int, int]:
    """⌈r·D⌉ of the residual width, the head size (or the number of heads) and the units."""
    return tuple(math.ceil(rate * size - _EPSILON) for size in _sizes(config))  # type: ignore[return-value]


def _sizes(config: ModelConfig) -> tuple[int, int, int]:
    return config.dim, config.groups if whole_heads(config) else config.head_dim, config.mlp


def around(config: ModelConfig) -> tuple[int, int, int]:
    """Axes that the windows of a cut may be rolled around: residual width, inner entries or heads, units."""
    return config.dim, config.groups if whole_heads(config) else config.heads * config.head_dim, config.mlp


def scaled_config(config: ModelConfig, rate: float) -> ModelConfig:
    """The device's model."""
    dim, inner, mlp = scaled_sizes(config, rate)
    if whole_heads(config):
        heads = inner * config.queries_per_group
        return config.with_(dim=dim, heads=heads, kv_heads=inner, head_dim=config.head_dim, mlp=mlp)
    return config.with_(dim=dim, head_dim=inner, mlp=mlp)


def scaled_rate(config: ModelConfig, rate: float) -> float:
    """The largest r ≤ √R_n whose heads and units cost at most R_n of the full model's.

    √R_n itself would cost a little more, because dimensions are rounded up and biases fall with r, not r².

    >>> from cos2p import model_config
    >>> scaled_sizes(model_config("vit-tiny"), scaled_rate(model_config("vit-tiny"), 1 / 4))
    (256, 32, 1022)
    """
    allowed = rate * _prunable(config) + _EPSILON
    steps = sorted({j / size for size in _sizes(config) for j in range(1, size + 1)})
    steps = [r for r in steps if r <= math.sqrt(rate) + _EPSILON]
    fitting = bisect_right(steps, allowed, key=lambda r: _prunable(scaled_config(config, r)))
    if not fitting:
        raise BudgetError(f"no scaled submodel costs as little as the rate {rate:g} allows; choose a larger rate")
    return steps[fitting - 1]


def least_rate(config: ModelConfig) -> float:
    """The smallest rate for which there is a scaled submodel."""
    least = 1 / max(_sizes(config))
    return max(least**2, _prunable(scaled_config(config, least)) / _prunable(config))


def _prunable(config: ModelConfig) -> int:
    """Scalars of all heads and units."""
    head, unit = segment_costs(config)
    return config.depth * (config.groups * head + config.mlp * unit)


def scaled_cut(config: ModelConfig, rate: float, shift: tuple[int, int, int] = (0, 0, 0)) -> ScaledCut:
    """The part of share `rate` after its windows (residual, inner, units) have been shifted so far.

    The official index list is roll(arange(D), shift)[:count], which begins at −shift.
    """
    counts = scaled_sizes(config, rate)
    residual, inner, units = (
        Window(start=-by % size, count=count) for by, size, count in zip(shift, around(config), counts, strict=True)
    )
    return ScaledCut(rate=rate, residual=residual, inner=inner, units=units)


def fitted_config(config: ModelConfig, weights: Mapping[str, Tensor]) -> ModelConfig:
    """The config that these tensors belong to: `config`, or that of a scaled model."""
    dim, rows, mlp = (len(weights[f"blocks.0.{name}.weight"]) for name in ("norm1", "q", "fc1"))
    if (dim, rows, mlp) == (config.dim, config.heads * config.head_dim, config.mlp):
        return config
    if whole_heads(config):
        size, heads = config.head_dim, rows // config.head_dim
        return config.with_(dim=dim, heads=heads, kv_heads=heads // config.queries_per_group, head_dim=size, mlp=mlp)
    return config.with_(dim=dim, head_dim=rows // config.heads, mlp=mlp)


@lru_cache(maxsize=256)
def scaled_slices(config: ModelConfig, part: ScaledCut, all_exits: bool = False) -> Mapping[str, Cuts]:
    """How every tensor of the device's model is cut out of the full one; of the exits it has the last, or all."""
    query, key = _inner_index(config, part.inner)
    residual, units = part.residual.index(config.dim), part.units.index(config.mlp)
    index = {"plain": residual, "query": query, "key": key, "unit": units}
    last = exit_key(config, config.depth) + "."
    slices: dict[str, Cuts] = {}
    for name, parameter in layout(config).items():
        if name.startswith("exits.") and not name.startswith(last) and not all_exits:
            continue
        wide = _residual_axes(name, len(parameter.shape))
        slices[name] = tuple(
            index.get(axis.value) if axis.value != "plain" or dim in wide else None  # of a token table all rows stay
            for dim, axis in enumerate(parameter.axes)
        )
    return MappingProxyType(slices)


def _inner_index(config: ModelConfig, inner: Window) -> tuple[Tensor, Tensor]:
    """Rows of q, and of k and v, that are kept."""
    if whole_heads(config):
        kept = inner.index(config.groups)
        query, key = (
            torch.arange(config.groups * width).view(config.groups, width)[kept].flatten()
            for width in (config.queries_per_group * config.head_dim, config.head_dim)
        )
        return query, key
    rows = config.heads * config.head_dim
    rolled = Window(start=inner.start, count=rows).index(rows)
    index = rolled.view(config.heads, config.head_dim)[:, : inner.count].flatten()
    return index, index


def _residual_axes(name: str, axes: int) -> tuple[int, ...]:
    """Which of a tensor's plain axes are as wide as the residual."""
    if name.endswith(("linear.bias", "q_norm.weight", "k_norm.weight")):  # as wide as the classes, as a head
        return ()
    if name.endswith("pooler.weight"):
        return (0, 1)
    if name.startswith("embed.") and not name.startswith("embed.patch."):
        return (axes - 1,)  # tables, cls and positions
    if name.endswith("linear.weight"):
        return (1,)
    return (0,) if axes != 2 else (0, 1)  # of a block's matrices one axis is plain, the other has a meaning of its own


def scaled_shapes(config: ModelConfig, part: ScaledCut) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the device's tensors."""
    return {
        name: tuple(
            size if cut is None else len(cut) for size, cut in zip(layout(config)[name].shape, cuts, strict=True)
        )
        for name, cuts in scaled_slices(config, part).items()
    }


def take_scaled(
    weights: Mapping[str, Tensor], config: ModelConfig, part: ScaledCut, all_exits: bool = False
) -> Weights:
    """The device's tensors, as copies."""
    return {name: weights[name][places(cuts)].clone() for name, cuts in scaled_slices(config, part, all_exits).items()}


SCALED_LAYERS = ("q", "k", "v", "o", "fc1", "gate", "fc2")
"""The layers of a block behind which HeteroFL's Scaler stands; it also stands behind the embedding, before its norm."""


def fold_scaler(weights: Mapping[str, Tensor], rate: float) -> Weights:
    """A scaled model's tensors with the Scaler's division in them: it then infers as it was trained."""

    def scaled(name: str) -> bool:
        if name.startswith("embed."):
            return not name.startswith("embed.norm.")  # BERT's
        return name.startswith("blocks.") and name.split(".")[2] in SCALED_LAYERS

    return {name: tensor / rate if scaled(name) else tensor for name, tensor in weights.items()}


def places(cuts: Cuts) -> tuple[Tensor | slice, ...]:
    """An index that picks, or is assigned to, the kept entries along all axes at once."""
    if sum(cut is not None for cut in cuts) < 2:
        return tuple(slice(None) if cut is None else cut for cut in cuts)
    rows, columns = cuts
    assert rows is not None
    assert columns is not None
    return rows[:, None], columns
