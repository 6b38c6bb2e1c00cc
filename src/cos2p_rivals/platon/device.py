"""PLATON on the device (Zhang et al., ICML 2022): how sensitive the loss is to each segment, and how unsure that is.

After every optimiser step a weight's sensitivity is |w·g|; a segment's is the mean over its scalars. Inside a window of
ΔT steps I is their running mean. At the window's border (Equations 5 to 8 of the paper, in the order of its code)

    Ī ← β1·Ī + (1 − β1)·I        Ū ← β2·Ū + (1 − β2)·|I − Ī|        S = Ī · Ū

Ī and Ū of every segment the device ever held stay on the device; those it does not hold in a task stand still. A task
ends its last window early. The scores S of the held segments go to the server with the update.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cos2p import ElasticTransformer, ModelConfig, SubmodelSpec
from cos2p.methods import (
    ExtendedSettings,
    Learned,
    Remembered,
    Settings,
    Trainer,
    Weights,
    layout,
    segment_costs,
    segmented,
)
from cos2p_rivals.segment_reports import ReportingContract
from cos2p_rivals.segments import held, per_block

SCRATCH = 2**17
"""Scalars of a matrix that are looked at together."""


class SensitivitySettings(Settings):
    """How sensitivities are averaged: the recipe's, and a part of every task."""

    beta1: float = Field(default=0.85, ge=0, lt=1, description="β1: memory of the mean sensitivity Ī.")
    beta2: float = Field(default=0.95, ge=0, lt=1, description="β2: memory of the uncertainty Ū.")
    window: int = Field(default=10, ge=1, description="ΔT: local steps of a window.")
    correct_bias: bool = Field(default=True, description="Divide Ī and Ū by 1 − β^k after k windows, in S alone.")


class PlatonTask(ExtendedSettings, SensitivitySettings):
    """Plain training, watched."""


def sensitivity(model: ElasticTransformer, config: ModelConfig) -> Weights:
    """Mean |w·g| over the scalars of each kept head and unit. Temporaries stay small, whatever the model's size."""
    head_cost, unit_cost = segment_costs(config)
    sums: Weights = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not layout(config)[name].in_block:
            continue
        place = segmented(config)[name]
        assert place.dim is not None
        entries = absolute_products(parameter.detach(), parameter.grad, place.dim)
        entries = entries.view(-1, place.width).sum(-1)
        entries = entries / (unit_cost if place.key.startswith("units.") else head_cost)
        sums[place.key] = sums[place.key] + entries if place.key in sums else entries
    return sums


def absolute_products(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """Σ|a·b| for each entry along `dim` of a vector or matrix, a few rows at a time."""
    if a.ndim == 1:
        return (a * b).abs()
    rows = max(1, SCRATCH // max(1, a.shape[1]))
    pieces = [(x * y).abs().sum(1 - dim) for x, y in zip(a.split(rows), b.split(rows), strict=True)]
    return torch.cat(pieces) if dim == 0 else torch.stack(pieces).sum(0)


class Sensitivity:
    """Keeps I while training goes on and writes Ī, Ū and the number of windows into the device's memory."""

    def __init__(
        self, config: ModelConfig, spec: SubmodelSpec, settings: SensitivitySettings, memory: Remembered
    ) -> None:
        self.config, self.spec, self.settings, self.memory = config, spec, settings, memory
        self._sum: Weights = {}
        self._steps = 0

    def see(self, step: Weights) -> None:
        """One step's sensitivities."""
        self._sum = {key: self._sum[key] + value if key in self._sum else value for key, value in step.items()}
        self._steps += 1
        if self._steps == self.settings.window:
            self.close_window()

    def close_window(self) -> None:
        """The border of a window; nothing happens if no step was seen since the last one."""
        for key, total in self._sum.items():
            rows, now = held(self.spec, key), total / self._steps
            mean, spread, count = (self._recall(what, key, now.device) for what in ("mean", "spread", "windows"))
            fresh = self.settings.beta1 * mean[rows] + (1 - self.settings.beta1) * now
            mean[rows] = fresh
            spread[rows] = self.settings.beta2 * spread[rows] + (1 - self.settings.beta2) * (now - fresh).abs()
            count[rows] += 1
        self._sum, self._steps = {}, 0

    def _recall(self, what: str, key: str, device: torch.device) -> Tensor:
        """A vector over all segments of a block, in the device's memory: a copy of its own, to be written into."""
        name, length = f"platon.{what}.{key}", per_block(self.config, key)
        self.memory[name] = self.memory[name].clone() if name in self.memory else torch.zeros(length, device=device)
        return self.memory[name]

    def scores(self) -> Weights:
        """S of the segments held in this task, in the order in which they are held."""
        found: Weights = {}
        for block in range(self.spec.frozen, self.spec.top):
            for kind in ("heads", "units"):
                key = f"{kind}.{block}"
                if f"platon.mean.{key}" not in self.memory:
                    continue
                rows = held(self.spec, key)
                mean, spread, count = (
                    self.memory[f"platon.{what}.{key}"][rows] for what in ("mean", "spread", "windows")
                )
                if self.settings.correct_bias:
                    mean = mean / (1 - self.settings.beta1**count).clamp_min(1e-12)
                    spread = spread / (1 - self.settings.beta2**count).clamp_min(1e-12)
                found[key] = mean * spread
        return found


class PlatonContract(ReportingContract):
    flops_per_scalar: ClassVar[float] = 3

    def held_bytes(self) -> int:
        remembered = 12 * self.config.depth * (self.config.groups + self.config.mlp)
        return remembered + 8 * self.segments()


class PlatonTrainer(Trainer):
    name: ClassVar[str] = "platon"
    contract_type = PlatonContract
    settings_type = PlatonTask
    supports = frozenset({"eight_bit", "micro_batch", "recompute"})
    settings: PlatonTask

    def begin(self) -> None:
        self.seen = Sensitivity(self.config, self.order.spec, self.settings, self.remembered)

    def after_step(self) -> None:
        self.seen.see(sensitivity(self.model, self.config))

    def end(self) -> Learned:
        self.seen.close_window()
        return replace(super().end(), extras=self.seen.scores())
