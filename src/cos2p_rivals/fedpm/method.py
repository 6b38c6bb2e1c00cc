"""FedPM (Isik et al., ICLR 2023): nobody trains weights; everybody learns which of a random network's weights to use.

Algorithm 1 and Section 3 of the paper. The server keeps a probability θ for every weight; devices train its logit and
send one draw of the mask, a bit a weight (see `device`); the server's Bayesian aggregation counts α += M and
β += 1 − M over the devices that hold a weight, and θ = (α − 1)/(α + β − 2). The prior is reset in every round, as in
the public code, so that θ is the mean mask.

FedPM knows no structure and no budget; two structured readings of it are here (`variant`). `elements`, reported as
FedPM: a device holds N_H heads and N_U units, and every weight inside has a score of its own. `segments`: one score
for each head and unit. With random weights the second has next to nothing to learn with; with pretrained ones
(`network = "given"`) it makes sense. Either way the segments are dealt by Gumbel-top-k on their (mean) score, block by
block, so exactly the budget is drawn and likely segments come more often.

From the public code: weights of one size and random sign, scores ~ N(0, 1), Adam for the scores, a bit counts as 0.99
or 0.01, evaluation under one drawn mask, the gradient times θ at the draw. Ours: embeddings, norms, output biases and
exits train densely and are averaged, or nothing would learn; epochs and batch are the recipe's; training-time
rescaling; and two figures. `gain`: weights are ±1/√fan_in; the code's ±e/√fan_in is made for networks without
residual sums and drowns the embeddings here (one device, digits, four epochs: 44 against 61 % right).
`score_lr_factor`: the code's rate of 0.1 is for many more steps; as a multiple of the recipe's rate it is reached by a
search over rates (the same trial with 0.1 and 0.4: 61 and 71 %; a hundred times 4e-3 is 0.4). As an option `prior`,
bits that a weight's present θ counts for: in the paper tens of devices hold every weight, here it may be a single one,
whose one bit then settles it.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from cos2p import ModelConfig
from cos2p.methods import (
    Assignment,
    Call,
    Member,
    Merge,
    RunContext,
    Settings,
    Trainer,
    Weights,
    WidthMethod,
    WidthSettings,
    layout,
    segment_costs,
    segment_norms,
    shared,
    spread,
    torch_rng,
    width_spec,
)
from cos2p_rivals.fedpm.device import (
    ElementTrainer,
    MaskLearning,
    NetworkSettings,
    ScoreSettings,
    SegmentScoreSettings,
    SegmentTrainer,
)
from cos2p_rivals.fedpm.merge import MaskMerge
from cos2p_rivals.fedpm.network import SURE, is_masked, random_weight, segment_table, to_scores, without_dropped


class FedPMSettings(WidthSettings, MaskLearning, NetworkSettings):
    variant: Literal["elements", "segments"] = Field(
        default="elements", description="What has a score: every weight of the held segments, or every segment."
    )
    prior: float = Field(default=0.0, ge=0, description="How many bits the present θ counts for; 0: the paper's form.")
    evaluation: Literal["sampled", "mean"] = Field(
        default="sampled", description="The server's model: under one drawn mask, or every weight times its θ."
    )


class FedPM(WidthMethod):
    name: ClassVar[str] = "fedpm"
    title: ClassVar[str] = "FedPM"
    settings_type: ClassVar[type[Settings]] = FedPMSettings
    trainers: ClassVar[tuple[type[Trainer], ...]] = (ElementTrainer, SegmentTrainer)
    embeddings = ("rows", "whole")
    settings: FedPMSettings

    def __init__(self, settings: Settings, context: RunContext) -> None:
        super().__init__(settings, context)
        self._likely: tuple[int, dict[str, Tensor]] = (-1, {})

    @property
    def elements(self) -> bool:
        return self.settings.variant == "elements"

    # ------------------------------------------------------------ which submodel

    def assign(self, call: Call) -> Assignment:
        config, budget = self.context.config, self.budgets[call.member.name]
        logits = self.segment_logits(call.weights, call.version)
        rng = torch_rng(self.context.seed, "fedpm segments", call.member.name, call.attempt)
        heads, units = (
            [gumbel_top(logits[f"{kind}.{block}"], count, rng) for block, count in enumerate(counts)]
            for kind, counts in (
                ("heads", spread(budget.heads, config.depth, rotation=call.cycle)),
                ("units", spread(budget.units, config.depth, rotation=call.cycle)),
            )
        )
        trainer = ElementTrainer if self.elements else SegmentTrainer
        return Assignment(width_spec(heads, units), self.scoring(call.member), trainer)

    def scoring(self, member: Member) -> Settings:
        values = {**self.local(member).model_dump(), **shared(self.settings, MaskLearning)}
        if self.elements:
            return ScoreSettings.model_validate(values)
        return SegmentScoreSettings.model_validate({**values, **shared(self.settings, NetworkSettings)})

    def segment_logits(self, weights: Weights, version: int) -> dict[str, Tensor]:
        """The score of every head and unit; with a score for each weight, the logit of their mean θ."""
        if self._likely[0] != version:
            self._likely = (version, segment_logits(weights, self.context.config, self.elements))
        return self._likely[1]

    # ------------------------------------------------------------ the server's model: θ in place of the weights

    def initial_weights(self, weights: Weights) -> Weights:
        config, seed = self.context.config, self.context.seed
        names = [name for name in layout(config) if is_masked(config, name)]
        if self.elements:
            return {**weights, **{n: _first_theta(layout(config)[n].shape, seed, n) for n in names}}
        theta = {n: _first_theta(entry.shape, seed, n) for n, entry in segment_table(config).items()}
        if self.settings.network == "given":
            return {**weights, **theta}
        return {**weights, **{n: random_weight(config, n, seed, self.settings.gain) for n in names}, **theta}

    def evaluated_weights(self, weights: Weights) -> Weights:
        """The network under one mask drawn from θ (always the same draw for the same θ), or under its mean."""
        config, seed, gain = self.context.config, self.context.seed, self.settings.gain
        if self.elements:
            masked = {
                name: random_weight(config, name, seed, gain) * self._mask(name, weights[name])
                for name in weights
                if is_masked(config, name)
            }
            return {**weights, **masked}
        masks = {name: self._mask(name, weights[name]) for name in segment_table(config)}
        plain = {name: tensor for name, tensor in weights.items() if name not in masks}
        return without_dropped(plain, masks, config)

    def _mask(self, name: str, theta: Tensor) -> Tensor:
        if self.settings.evaluation == "mean":
            return theta
        return (
            torch.rand(theta.shape, generator=torch_rng(self.context.seed, "fedpm evaluation", name)) < theta
        ).float()

    def merge(self) -> Merge:
        return MaskMerge(self.context.config, self.settings.prior, self.elements)


def segment_logits(weights: Weights, config: ModelConfig, elements: bool) -> dict[str, Tensor]:
    if not elements:
        return {
            f"{kind}.{block}": to_scores(weights[f"fedpm.{block}.{kind}"])
            for block in range(config.depth)
            for kind in ("heads", "units")
        }
    theta = {name: tensor for name, tensor in weights.items() if is_masked(config, name)}
    head, unit = segment_costs(config)
    return {
        key: to_scores(total / (head if key.startswith("heads.") else unit))
        for key, total in segment_norms(theta, config).items()
    }


def gumbel_top(logits: Tensor, count: int, rng: torch.Generator) -> list[int]:
    """`count` segments without replacement, likely ones first: the largest of logit + Gumbel noise."""
    noise = -torch.log(-torch.log(torch.rand(logits.shape, generator=rng).clamp(1e-12, 1 - 1e-7)))
    return torch.sort(logits + noise, descending=True, stable=True).indices[:count].tolist()


def _first_theta(shape: tuple[int, ...], seed: int, name: str) -> Tensor:
    scores = torch.randn(shape, generator=torch_rng(seed, "fedpm scores", name))
    return scores.sigmoid().clamp(1 - SURE, SURE)
