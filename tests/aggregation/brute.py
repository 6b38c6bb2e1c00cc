"""Merging the slow way: one segment after the other, straight from the definition, in double precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.aggregation.merge import Contribution
from cos2p.models.layout import Weights, layout
from cos2p.seeding import torch_rng
from cos2p.submodel.slicing import scatter, trained_shapes
from tests.submodel.strategies import random_weights, specs_around


@dataclass(frozen=True, eq=False)
class Segment:
    key: str
    place: int | None
    """Number of the head, unit or row; None for a shared tensor."""
    masks: dict[str, Tensor]
    """True at the segment's scalars, for each tensor that has some."""

    def norm(self, tensors: Weights) -> float:
        return sum(tensors[name][mask].double().abs().sum().item() for name, mask in self.masks.items())

    @property
    def size(self) -> int:
        return sum(int(mask.sum()) for mask in self.masks.values())

    def held_by(self, spec: SubmodelSpec, delta: Weights) -> bool:
        if self.place is None:
            return self.key in delta
        kind, _, block = self.key.partition(".")
        if kind == "rows":
            return block in delta and (spec.rows is None or self.place in spec.rows)
        if not spec.frozen <= int(block) < spec.top:
            return False
        keep = spec.keep(int(block))
        return self.place in (keep.heads if kind == "heads" else keep.units)


def segments(config: ModelConfig) -> Iterator[Segment]:
    """Every head, every unit, every row of a table, every shared tensor of the full model."""
    shapes = {name: p.shape for name, p in layout(config).items()}
    size, queries = config.head_dim, config.heads // config.kv_heads
    taken = set()
    for block in range(config.depth):
        at = f"blocks.{block}."
        for head in range(config.kv_heads):
            own = {"k": slice(head * size, (head + 1) * size), "v": slice(head * size, (head + 1) * size)}
            own["q"] = own["o"] = slice(head * queries * size, (head + 1) * queries * size)
            masks = _masks(shapes, at, own, columns=("o",))
            taken |= masks.keys()
            yield Segment(f"heads.{block}", head, masks)
        for unit in range(config.mlp):
            masks = _masks(shapes, at, dict.fromkeys(("fc1", "gate", "fc2"), slice(unit, unit + 1)), columns=("fc2",))
            taken |= masks.keys()
            yield Segment(f"units.{block}", unit, masks)
    for name in shapes.keys() & {"embed.tokens", "lm_head.weight"}:
        taken.add(name)
        for row in range(config.vocab):
            mask = torch.zeros(shapes[name], dtype=torch.bool)
            mask[row] = True
            yield Segment(f"rows.{name}", row, {name: mask})
    for name in shapes.keys() - taken:
        yield Segment(name, None, {name: torch.ones(shapes[name], dtype=torch.bool)})


def _masks(
    shapes: dict[str, tuple[int, ...]], at: str, own: dict[str, slice], columns: Sequence[str]
) -> dict[str, Tensor]:
    masks = {}
    for module, entries in own.items():
        for name in (f"{at}{module}.weight", f"{at}{module}.bias"):
            if name not in shapes or (module in columns and name.endswith("bias")):
                continue
            masks[name] = torch.zeros(shapes[name], dtype=torch.bool)
            masks[name][(slice(None), entries) if module in columns else entries] = True
    return masks


def spread_out(config: ModelConfig, spec: SubmodelSpec, delta: Weights) -> Weights:
    """A compact update in full-size tensors, zero elsewhere."""
    return scatter(delta, {name: torch.zeros(p.shape) for name, p in layout(config).items()}, config, spec)


def paper_gamma(segment: Segment, delta: Weights, current: Weights, received: Weights) -> float:
    """‖Δ‖₁ / (‖w_v − w_{v−τ}‖₁ + size), from full-size tensors."""
    drift = {name: current[name].double() - received[name].double() for name in segment.masks}
    return segment.norm(delta) / (segment.norm(drift) + segment.size)


def paper_merge(config: ModelConfig, items: Sequence[Contribution], current: Weights) -> Weights:
    """w − Σ γ̃ Δ over the holders of each segment."""
    full = [spread_out(config, item.spec, item.delta) for item in items]
    merged = {name: tensor.double().clone() for name, tensor in current.items()}
    for segment in segments(config):
        gammas = [
            paper_gamma(segment, delta, current, item.received) if segment.held_by(item.spec, item.delta) else 0.0
            for item, delta in zip(items, full, strict=True)
        ]
        if not sum(gammas):
            continue
        for gamma, delta in zip(gammas, full, strict=True):
            for name, mask in segment.masks.items():
                merged[name][mask] -= gamma / sum(gammas) * delta[name][mask].double()
    return merged


def random_delta(config: ModelConfig, spec: SubmodelSpec, seed: int, scale: float = 0.1) -> Weights:
    return {
        name: torch.randn(shape, generator=torch_rng(seed, "test delta", name)) * scale
        for name, shape in trained_shapes(config, spec).items()
    }


def contribution(
    config: ModelConfig, spec: SubmodelSpec, received: Weights, seed: int = 0, staleness: int = 0, samples: int = 10
) -> Contribution:
    return Contribution(f"pi-{seed}", spec, random_delta(config, spec, seed), samples, staleness, received)


def moved(weights: Weights, seed: int) -> Weights:
    """A later version: about half of the tensors changed, the others are the same objects."""
    later = dict(weights)
    for i, (name, tensor) in enumerate(weights.items()):
        if (i + seed) % 2:
            later[name] = tensor + torch.randn(tensor.shape, generator=torch_rng(seed, "test drift", name)) * 0.05
    return later


@st.composite
def rounds(draw: st.DrawFn, config: ModelConfig) -> tuple[Weights, list[Contribution]]:
    """A version and updates to it, some of them cut from an older one."""
    older = random_weights(config, draw(st.integers(0, 50)))
    current = moved(older, draw(st.integers(0, 1)))
    items = []
    for seed in range(draw(st.integers(1, 4))):
        stale = draw(st.booleans())
        spec = draw(specs_around(config))
        items.append(contribution(config, spec, older if stale else current, seed, int(stale), samples=seed + 1))
    return current, items
