"""Zeroth-order training (MeZO, Malladi et al. 2023; its Algorithm 1): two forward passes a step, no backward.

    z ~ N(0, I) from a seed of the step's own
    g = (ℓ(w + εz) − ℓ(w − εz)) / 2ε
    w ← w − η·(g·z + λw)                                    λ not for biases and norms

The weights are moved in place (+εz, −2εz, and back together with the step), and z is drawn again from its seed each
time, one tensor at a time: next to the weights a device holds one z and the activations of one block. Moving back and
forth rounds in the last bits, about 1e-7 of a weight a step.

A step is known from its seed and η·g alone, so an update can travel as 12 bytes a step (`wire = "seeds"`, the idea of
FedKSeed and DeComFL): the server draws the same z and adds the steps up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cos2p.methods import Weights, place


def move(tensors: Mapping[str, Tensor], seed: int, scale: float, decay: float = 0.0, undo: float = 0.0) -> None:
    """x ← (1 − decay)·(x + undo·z) + scale·z in place, with the seed's z.

    Tensors are taken in the order of their names, so that whoever has the same shapes draws the same z.
    """
    rng: torch.Generator | None = None
    for name in sorted(tensors):
        x = tensors[name]
        if rng is None:
            rng = torch.Generator().manual_seed(seed)  # the host's, wherever x is: another kind would draw another z
        keep = 1.0 - decay if decays(name) else 1.0
        if keep != 1.0:
            x.mul_(keep)
        x.add_(place(torch.randn(x.shape, generator=rng), x.device), alpha=keep * undo + scale)


def decays(name: str) -> bool:
    return not (name.endswith(".bias") or "norm" in name)


def two_losses(
    weights: Mapping[str, Tensor], loss: Callable[[], Tensor], seed: int, epsilon: float
) -> tuple[float, float]:
    """ℓ(w + εz) and ℓ(w − εz). The weights are left at w − εz."""
    move(weights, seed, epsilon)
    first = loss()
    move(weights, seed, -2 * epsilon)
    plus, minus = torch.stack((first, loss())).tolist()
    return plus, minus


def step(
    weights: Mapping[str, Tensor],
    loss: Callable[[], Tensor],
    seed: int,
    epsilon: float,
    lr: float,
    weight_decay: float,
) -> tuple[float, float]:
    """One step in place; `loss` is that of a batch at the weights as they are. Returns η·g and the mean of two losses.

    If that is not finite the batch is skipped: the weights go back to where they were.
    """
    plus, minus = two_losses(weights, loss, seed, epsilon)
    taken, mean = lr * (plus - minus) / (2 * epsilon), (plus + minus) / 2
    if math.isfinite(taken):
        move(weights, seed, -taken, decay=lr * weight_decay, undo=epsilon)
    else:
        move(weights, seed, epsilon)
    return taken, mean


def replay(
    shapes: Mapping[str, tuple[int, ...]], seeds: Tensor, scales: Tensor, decay: float, start: Weights
) -> Weights:
    """w_start − w_end of a run of steps, from what travelled. `start` is only needed where weights decay."""
    if not decay:
        delta = {name: torch.zeros(shape) for name, shape in shapes.items()}
        for seed, scale in zip(seeds.tolist(), scales.tolist(), strict=True):
            move(delta, seed, scale)
        return delta
    end = {name: start[name].clone() for name in shapes}
    for seed, scale in zip(seeds.tolist(), scales.tolist(), strict=True):
        move(end, seed, -scale, decay)
    return {name: start[name] - end[name] for name in shapes}
