"""FedPM on the device (Isik et al., ICLR 2023; its Algorithm 1, client side): training of a random network's mask.

`elements`: a score for every weight. A forward pass uses w ⊙ M, M ~ Bernoulli(θ), and the draw's gradient goes to θ: as
it is (`identity`), or times θ, as the public code has it (`official`). A task brings θ in place of the weights; one
draw of the mask goes back, a bit for each weight. Tensors that are no part of a segment (embeddings, norms, output
biases, exits) train as usual.

`segments`: one score for each head and unit, the literal structured reading. The device holds the segments it was
dealt, frozen; a forward pass keeps a segment with probability σ(s). One bit for each segment goes back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from cos2p import ElasticTransformer, SubmodelSpec, make_optimizer
from cos2p.methods import (
    Batch,
    Learned,
    Ledger,
    LocalSettings,
    OptimizerName,
    Settings,
    TaskContract,
    TensorForm,
    Trainer,
    Weights,
    place,
    state_bytes,
)
from cos2p_rivals.fedpm.network import (
    Ste,
    draw,
    is_masked,
    masked_shapes,
    pack_bits,
    random_weights,
    segment_shapes,
    segment_table,
    to_scores,
    without_dropped,
)
from cos2p_rivals.side_tensors import take_side
from cos2p_rivals.sizes import FLOAT, scalars


class MaskLearning(Settings):
    """How scores are trained: the recipe's, and a part of every task."""

    score_lr_factor: float = Field(default=100.0, gt=0, description="Learning rate of the scores over the recipe's.")
    score_optimizer: OptimizerName = Field(default="adamw", description="Optimiser of the scores; adamw is Adam here.")
    ste: Ste = Field(default="official", description="Gradient at the draw: times θ (`official`), or as it is.")
    gain: float = Field(default=1.0, gt=0, description="Random weights are ±gain/√fan_in.")


class NetworkSettings(Settings):
    """Where the network of `segments` comes from."""

    network: Literal["random", "given"] = Field(
        default="random", description="`segments` only: a random network, or the recipe's (pretrained) first weights."
    )


class ScoreSettings(LocalSettings, MaskLearning):
    """`optimizer` and the order's rate are for the dense tensors; the scores have their own."""


class SegmentScoreSettings(ScoreSettings, NetworkSettings):
    """A score for each segment."""


class ScoreContract(TaskContract):
    """The base of both: dense tensors come back as numbers, masks as bits."""

    settings: ScoreSettings

    def mask_shapes(self, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what has scores."""
        raise NotImplementedError

    def mask_count(self) -> int:
        return scalars(self.mask_shapes(self.order.spec))

    def dense_count(self) -> int:
        return scalars(self.answer(self.order.spec))

    def answer(self, spec: SubmodelSpec) -> Mapping[str, tuple[int, ...]]:
        return {name: shape for name, shape in super().answer(spec).items() if not is_masked(self.config, name)}

    def upload(self) -> int:
        return FLOAT * self.dense_count() + -(-self.mask_count() // 8)

    def extra_tensors(self, spec: SubmodelSpec) -> Mapping[str, TensorForm]:
        return {"mask": TensorForm((-(-scalars(self.mask_shapes(spec)) // 8),), torch.uint8)}


class ElementContract(ScoreContract):
    """A score for every weight of the heads and units held."""

    def mask_shapes(self, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
        return masked_shapes(self.config, spec)

    def memory(self, samples: int) -> Ledger:
        """Plain training, whose weights are the scores, next to the random weights and their masked form."""
        base, masked = super().memory(samples), self.mask_count()
        largest = max(map(math.prod, self.mask_shapes(self.order.spec).values()), default=0)
        plain, own = self.settings.optimizer, self.settings.score_optimizer
        return replace(
            base,
            weights=base.weights + 2 * FLOAT * masked,
            optimizer=base.optimizer - state_bytes(plain, [masked]) + state_bytes(own, [masked]),
            activations=base.activations + 4 * FLOAT * largest,  # the draw, and what its backward makes for a moment
        )


class SegmentContract(ScoreContract):
    """A score for every head and unit held."""

    settings: SegmentScoreSettings

    def mask_shapes(self, spec: SubmodelSpec) -> dict[str, tuple[int, ...]]:
        return segment_shapes(self.config, spec)

    def sent(self, weights: Weights) -> Weights:
        """Dense tensors, θ of the segments dealt, and their weights where the device cannot make them itself."""
        sent = super().sent(weights)
        if self.settings.network == "random":
            sent = {name: tensor for name, tensor in sent.items() if not is_masked(self.config, name)}
        return {**sent, **take_side(weights, segment_table(self.config), self.config, self.order.spec)}

    def memory(self, samples: int) -> Ledger:
        """Plain training without the gradients and the optimiser of what is frozen."""
        base, settings, dense, gates = super().memory(samples), self.settings, self.dense_count(), self.mask_count()
        return replace(
            base,
            gradients=FLOAT * (dense + 2 * gates),
            optimizer=state_bytes(settings.optimizer, [dense]) + state_bytes(settings.score_optimizer, [gates]),
        )


class ScoreTrainer(Trainer):
    contract: ScoreContract
    settings: ScoreSettings
    scores_of: dict[str, Tensor]
    """The tensors that train next to the dense ones, by name."""

    def optimizers(self) -> list[Optimizer]:
        steppers = super().optimizers()
        if self.scores_of:  # the smallest devices may hold no segment at all
            rate = self.order.lr * self.settings.score_lr_factor
            steppers.append(make_optimizer(self.settings.score_optimizer, list(self.scores_of.values()), rate))
        return steppers

    def random_weights(self, spec: SubmodelSpec) -> Weights:
        made = random_weights(self.config, spec, self.order.seed, self.settings.gain)
        return {name: place(tensor, self.device) for name, tensor in made.items()}

    def drawn(self, name: str) -> Tensor:
        """The mask that goes back: one draw from the trained θ."""
        score = self.scores_of[name].detach()
        return place(torch.rand(score.shape, generator=self.rng), self.device) < score.sigmoid()

    def dense_delta(self) -> Weights:
        end = self.model.weights()
        return {name: self.start[name] - tensor for name, tensor in end.items()}


class ElementTrainer(ScoreTrainer):
    name: ClassVar[str] = "fedpm"
    contract_type = ElementContract
    settings_type = ScoreSettings
    frozen: Weights
    """The random weights."""

    def build(self, spec: SubmodelSpec) -> ElasticTransformer:
        self.frozen = self.random_weights(spec)
        self.scores_of = {name: to_scores(self.start[name]).requires_grad_() for name in self.frozen}
        dense = {name: tensor.clone() for name, tensor in self.start.items() if name not in self.frozen}
        model = self.load(spec, {**dense, **self.frozen}, self.settings.rescale)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name not in self.frozen)
        return model

    def forward(self, batch: Batch) -> Sequence[Tensor]:
        ste = self.settings.ste
        masked = {name: draw(score, self.frozen[name], self.rng, ste) for name, score in self.scores_of.items()}
        outputs: list[Tensor] = functional_call(self.model, masked, (batch.inputs,))
        return outputs

    def end(self) -> Learned:
        delta = self.dense_delta()
        masks = {name: self.drawn(name) for name in self.scores_of}
        self.model.load({**self.model.weights(), **{name: self.frozen[name] * masks[name] for name in self.frozen}})
        kept = sum(int(m.sum()) for m in masks.values()) / max(1, sum(m.numel() for m in masks.values()))
        return Learned(delta, {"mask": pack_bits(masks)}, {"kept": kept})


class SegmentTrainer(ScoreTrainer):
    name: ClassVar[str] = "fedpm-segments"
    contract_type = SegmentContract
    settings_type = SegmentScoreSettings
    settings: SegmentScoreSettings

    def build(self, spec: SubmodelSpec) -> ElasticTransformer:
        theta = self.contract.mask_shapes(spec)
        given = {name: self.start[name] for name in theta}
        self.scores_of = {name: to_scores(t).requires_grad_() for name, t in given.items() if t.numel()}
        held = {name: tensor.clone() for name, tensor in self.start.items() if name not in theta}
        if self.settings.network == "random":
            held |= self.random_weights(spec)
        model = self.load(spec, held, self.settings.rescale)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not is_masked(self.config, name))
        return model

    def forward(self, batch: Batch) -> Sequence[Tensor]:
        ste = self.settings.ste
        drawn = {name: draw(s, torch.ones_like(s), self.rng, ste) for name, s in self.scores_of.items()}
        blocks = range(self.model.spec.top)
        gates = {i: (drawn.get(f"fedpm.{i}.heads"), drawn.get(f"fedpm.{i}.units")) for i in blocks}
        outputs: list[Tensor] = self.model(batch.inputs, gates=gates)
        return outputs

    def end(self) -> Learned:
        delta = self.dense_delta()
        masks = {
            name: self.drawn(name) if name in self.scores_of else self.start[name] > 0
            for name in self.contract.mask_shapes(self.order.spec)
        }
        self.model.load(without_dropped(dict(self.model.state_dict()), masks, self.config))
        return Learned(delta, {"mask": pack_bits(masks)})
