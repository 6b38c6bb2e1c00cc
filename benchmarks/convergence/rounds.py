"""Rounds on the controlled problem, merged by the project's own `SegmentMerge`.

A segment of the problem is an MLP unit of a model with one block: its scalars are that unit's row of `fc1`. The merge
treats every unit by itself, so all seeds are merged in one call, as units that lie side by side.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.convergence.problem import Problem
from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.weights import Rule
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.seeding import torch_rng

TENSOR = "blocks.0.fc1.weight"


@dataclass(frozen=True)
class Setting:
    """One point of a curve."""

    rounds: int = 256
    """Q"""
    steps: int = 4
    """E"""
    holders: int = 2
    """N*: how many clients hold each segment, exactly, in every round."""
    delay: int = 0
    """τ: every update of round q started from the model of round q − τ (or from the first)."""
    rule: Rule = "paper"
    """How updates are weighed: the paper's γ, or all alike."""
    cut: bool = False
    """Whether a client's own model is w ⊙ mask, as in the paper; otherwise it sees what it does not train."""
    rate: float | None = None
    """η; None takes the corollary's, `scale`·√(N*/(E·Q))."""
    scale: float = 0.5

    @property
    def step_size(self) -> float:
        return self.rate or self.scale * (self.holders / (self.steps * self.rounds)) ** 0.5


def mean_squared_gradient(problem: Problem, setting: Setting) -> Tensor:
    """1/Q Σ_q ‖∇F(w_q)‖² of each seed."""
    config = ModelConfig("vit", problem.scalars, 1, 1, problem.seeds * problem.segments, image=1, patch=1, channels=1)
    merge = SegmentMerge(config, setting.rule)
    rng = torch_rng(0, "convergence rounds")
    minimiser, offsets = problem.minimiser(), problem.offsets()
    current = {TENSOR: problem.first().reshape(-1, problem.scalars)}
    versions = deque([current], maxlen=setting.delay + 1)
    total = torch.zeros(problem.seeds)
    for _ in range(setting.rounds):
        total += problem.gradient(current[TENSOR].view_as(minimiser) - minimiser).square().sum((-1, -2))
        masks_NSK = _masks(problem, setting.holders, rng)
        received = versions[0]
        start = received[TENSOR].view_as(minimiser)
        deltas = _train(problem, setting, start, masks_NSK, minimiser, offsets, rng)
        for client in range(problem.clients):
            held = masks_NSK[client].flatten().nonzero().flatten()
            spec = SubmodelSpec(0, (BlockKeep((), tuple(held.tolist())),), (1,))
            delta = {TENSOR: deltas[client].reshape(-1, problem.scalars)[held]}
            merge.add(Contribution(str(client), spec, delta, 1, setting.delay, received), current)
        current = merge.apply(current)
        versions.append(current)
    return total / setting.rounds


def _masks(problem: Problem, holders: int, rng: torch.Generator) -> Tensor:
    """Who holds what in a round: for every seed and segment `holders` clients, drawn anew."""
    draws = torch.rand((problem.clients, problem.seeds, problem.segments), generator=rng)
    return draws.argsort(0).argsort(0) < holders


def _train(
    problem: Problem,
    setting: Setting,
    start: Tensor,
    masks_NSK: Tensor,
    minimiser: Tensor,
    offsets: Tensor,
    rng: torch.Generator,
) -> Tensor:
    """What every client sends after E local steps of SGD: where it began minus where it ended."""
    mask = masks_NSK.unsqueeze(-1)
    weights = (start * mask if setting.cut else start.expand_as(offsets)).clone()
    first = weights.clone()
    for _ in range(setting.steps):
        noise = torch.randn(weights.shape, generator=rng) * problem.noise
        weights -= setting.step_size * mask * (problem.gradient(weights - minimiser) + offsets + noise)
    return first - weights
