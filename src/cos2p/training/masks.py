"""Data-aware width: which heads and units of a block serve this device's data.

Every segment has an importance I and is kept with probability σ(I). A forward pass draws a mask M ~ Bernoulli(σ(I));
backward treats the draw as the probability itself (straight-through). Weights stay as they are. The loss is

    L = CE(ŷ_deepest, y) + λ1 · |E[kept share of the cost] − R_width|

The penalty only leans towards the budget; the top-k selection at the end keeps it exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.accelerator import place
from cos2p.data.examples import IGNORE
from cos2p.errors import TrainingError
from cos2p.models.config import ModelConfig
from cos2p.models.spec import BlockKeep, BlockSize, SubmodelSpec
from cos2p.models.transformer import ElasticTransformer, Gates
from cos2p.numerics.optimizers import make_optimizer
from cos2p.submodel.rates import segment_costs
from cos2p.training.losses import Losses, flatten, zero

Remembered = dict[str, Tensor]
"""A device's memory between its tasks: the importance of every head and unit it has met, by block."""

MicroBatch = tuple[Tensor, Tensor | None, Tensor]
"""Inputs, features behind the frozen prefix (if any), labels."""


@dataclass(frozen=True)
class Trained:
    """Which of the two kinds of segments have trainable masks in this task."""

    heads: bool = True
    units: bool = True


def logit(share: float) -> float:
    """The importance that is kept with this probability; never sure of either."""
    share = min(max(share, 0.01), 0.99)
    return math.log(share / (1 - share))


def fresh_importance(segments: int, share: float, rng: torch.Generator) -> Tensor:
    """logit(share) plus a little noise: the expected size is right from the start, ties are broken."""
    return logit(share) + 0.01 * torch.randn(segments, generator=rng)


def recall(
    memory: Remembered, config: ModelConfig, block: int, quota: BlockSize, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The importance of a block's heads and units; a block never met before gets a fresh one."""
    for kind, segments, kept in (("heads", config.groups, quota.heads), ("units", config.mlp, quota.units)):
        if f"{kind}.{block}" not in memory:
            memory[f"{kind}.{block}"] = fresh_importance(segments, kept / segments, rng)
    return memory[f"heads.{block}"], memory[f"units.{block}"]


def top(importance: Tensor, candidates: tuple[int, ...], count: int) -> tuple[int, ...]:
    """The `count` most important candidates; ties go to the lower index."""
    if count >= len(candidates):
        return candidates
    order = torch.sort(importance[list(candidates)], descending=True, stable=True).indices
    return tuple(sorted(candidates[i] for i in order[:count].tolist()))


def choose(
    memory: Remembered,
    config: ModelConfig,
    spec: SubmodelSpec,
    quotas: tuple[BlockSize, ...],
    rng: torch.Generator,
) -> SubmodelSpec:
    """The final mask: the best of the candidates in `spec` that the quotas allow, block by block."""
    window = []
    for block, keep, quota in zip(range(spec.frozen, spec.top), spec.window, quotas, strict=True):
        heads, units = recall(memory, config, block, quota, rng)
        window.append(BlockKeep(top(heads, keep.heads, quota.heads), top(units, keep.units, quota.units)))
    return replace(spec, window=tuple(window))


def sample(importance: Tensor, rng: torch.Generator) -> Tensor:
    """A straight-through Bernoulli draw: 0 or 1 forward, σ'(I) backward."""
    probability = importance.sigmoid()
    uniform = place(torch.rand(importance.shape, generator=rng), importance.device)  # as torch.bernoulli draws
    drawn = (uniform < probability.detach()).to(probability.dtype)
    return drawn + (probability - probability.detach())  # exactly 0 is added


class MaskTrainer:
    """Importances of the window's candidates as parameters; weights are frozen."""

    def __init__(
        self,
        model: ElasticTransformer,
        memory: Remembered,
        quotas: tuple[BlockSize, ...],
        trained: Trained,
        lambda1: float,
        rng: torch.Generator,
    ) -> None:
        self.model, self.memory, self.trained, self.lambda1, self.rng = model, memory, trained, lambda1, rng
        config, spec = model.config, model.spec
        model.requires_grad_(False)
        self.parameters: dict[str, Tensor] = {}
        self.kept: dict[str, int] = {}
        """How many of the candidates may stay."""
        kept = held = 0.0
        costs = dict(zip(("heads", "units"), segment_costs(config), strict=True))
        self._costs: dict[str, float] = {}
        for block, keep, quota in zip(range(spec.frozen, spec.top), spec.window, quotas, strict=True):
            recall(memory, config, block, quota, rng)
            for kind, candidates, count in (("heads", keep.heads, quota.heads), ("units", keep.units, quota.units)):
                if getattr(trained, kind) and len(candidates) > count:
                    name = f"{kind}.{block}"
                    chosen = place(memory[name][list(candidates)].clone(), model.device)
                    self.parameters[name] = chosen.requires_grad_()
                    self._costs[name], self.kept[name] = costs[kind], count
                    kept += costs[kind] * count
                    held += costs[kind] * len(candidates)
        self.target = kept / held if held else 1.0
        self._held = held

    def draw(self) -> dict[str, Tensor]:
        """A mask for every kind and block that trains one."""
        return {name: sample(importance, self.rng) for name, importance in self.parameters.items()}

    def by_block(self, gates: Mapping[str, Tensor]) -> Gates:
        spec = self.model.spec
        return {i: (gates.get(f"heads.{i}"), gates.get(f"units.{i}")) for i in range(spec.frozen, spec.top)}

    def expected_share(self) -> Tensor:
        """Share of the candidates' parameters that a draw keeps on average."""
        total = torch.zeros(())
        for name, importance in self.parameters.items():
            total = total + self._costs[name] * importance.sigmoid().sum()
        return total / self._held

    def penalty(self) -> Tensor:
        return self.lambda1 * (self.expected_share() - self.target).abs()

    def train(self, batches: Iterator[list[MicroBatch]], lr: float) -> float:
        """One step for each batch, given as micro-batches; returns the mean loss."""
        if not self.parameters:
            return 0.0
        stepper = make_optimizer("adan", list(self.parameters.values()), lr)
        self.model.eval()
        log = Losses(self.model.device, f"lower masks.lr (now {lr})", of="the mask phase")
        sound = torch.ones((), dtype=torch.bool, device=self.model.device)
        for micro in batches:
            stepper.zero_grad()
            loss = self.accumulate(micro)
            log.add(loss, loss)
            for importance in self.parameters.values():
                if importance.grad is not None:
                    sound &= torch.isfinite(importance.grad).all()
            stepper.step()
        losses = log.values()
        if not bool(sound):
            raise TrainingError("a gradient of the mask phase is not finite; the model that came has diverged")
        self.remember()
        return sum(losses) / max(1, len(losses))

    def accumulate(self, micro: list[MicroBatch]) -> Tensor:
        """Add the gradient of one batch, under one draw of the masks, to the importances'; returns its loss.

        A micro-batch leaves nothing behind but the gradient of the gates, so no two of their graphs are ever held.
        """
        drawn = self.draw()
        gates = {name: mask.detach().requires_grad_() for name, mask in drawn.items()}
        targets = _targets([labels for _, _, labels in micro])
        total, whole = zero(self.model.device), self.model.device.type != "cpu"
        for inputs, features, labels in micro:
            output = self.model(inputs, features, self.by_block(gates))[-1]
            flat = flatten(output, self.model.targets(labels), keep_shape=whole)
            loss = F.cross_entropy(*flat, reduction="sum") / targets
            loss.backward()
            total = total + loss.detach()
        penalty = self.penalty()
        torch.autograd.backward([penalty, *drawn.values()], [None, *(gate.grad for gate in gates.values())])
        return total + penalty.detach()

    def remember(self) -> None:
        """Write the trained importances back to what the device keeps."""
        spec = self.model.spec
        for name, importance in self.parameters.items():
            kind, block = name.split(".")
            keep = spec.keep(int(block))
            candidates = keep.heads if kind == "heads" else keep.units
            updated = self.memory[name].clone()
            updated[list(candidates)] = place(importance.detach(), updated.device)
            self.memory[name] = updated


def random_keep(config: ModelConfig, quota: BlockSize, rng: torch.Generator) -> BlockKeep:
    """A uniformly drawn mask of the quota's size."""
    heads = torch.randperm(config.groups, generator=rng)[: quota.heads]
    units = torch.randperm(config.mlp, generator=rng)[: quota.units]
    return BlockKeep.of(heads.tolist(), units.tolist())


def _targets(labels: Sequence[Tensor]) -> Tensor | int:
    """How many predictions count, at least 1. Classes, or the shares of a mixture of them, have one for each sample; of
    next tokens some are to be left out, and a GPU keeps the number to itself."""
    if labels[0].is_floating_point() or labels[0].ndim == 1:
        return max(1, sum(map(len, labels)))
    return torch.stack([(some != IGNORE).sum() for some in labels]).sum().clamp_min(1)


# First-order scores: how much the loss would change, to first order, if a head or unit were removed.
#
# With a gate at 1 on what a segment puts out, the loss without it is about L − ∂L/∂gate, and ∂L/∂gate = Σ w·∂L/∂w over
# the weights that lead out of the segment. A score is the mean of |∂L/∂gate| over samples (Michel et al. 2019,
# Molchanov et al. 2019): one pass, no training.


FURTHEST = 3.0
"""Standard deviations that a score may lie from the mean of its block."""


def first_order(masks: MaskTrainer, batches: Iterable[list[MicroBatch]]) -> tuple[dict[str, Tensor], float]:
    """The score of every candidate whose mask is learned, by kind and block, and the mean loss with all of them."""
    model, totals = masks.model.eval(), {name: torch.zeros_like(i) for name, i in masks.parameters.items()}
    loss_sum, samples, device = zero(model.device), 0, model.device
    for inputs, features, labels in (part for micro in batches for part in micro):
        gates = {name: _gate(name, len(labels), len(total), device) for name, total in totals.items()}
        output = model(inputs, features, masks.by_block(gates))[-1]
        flat = flatten(output, model.targets(labels), keep_shape=device.type != "cpu")
        loss = F.cross_entropy(*flat, reduction="sum")
        gradients = torch.autograd.grad(loss, list(gates.values()))
        for total, gradient in zip(totals.values(), gradients, strict=True):
            total += gradient.view(-1, len(total)).abs().sum(0)
        loss_sum, samples = loss_sum + loss.detach(), samples + len(labels)
    if not all(bool(torch.isfinite(total).all()) for total in totals.values()):
        raise TrainingError("a first-order score of the mask phase is not finite; the model that came has diverged")
    return {name: total / max(1, samples) for name, total in totals.items()}, loss_sum.item() / max(1, samples)


def begin_from_scores(masks: MaskTrainer, batches: Iterable[list[MicroBatch]], met: Set[str]) -> float:
    """Set the importances of the candidates by their scores; returns the loss with all of them.

    Those of a block that was `met` before become the average of both.
    """
    if not masks.parameters:
        return 0.0
    scores, loss = first_order(masks, batches)
    for name, importance in masks.parameters.items():
        fresh = as_importance(scores[name], masks.kept[name])
        importance.data.copy_((importance.data + fresh) / 2 if name in met else fresh)
    return loss


def as_importance(scores: Tensor, count: int) -> Tensor:
    """Importances in the order of the scores, of which `count` are kept on average at the start.

    >>> as_importance(torch.tensor([1.0, 3.0]), 1)
    tensor([-0.7071,  0.7071])
    """
    spread = scores.std() if len(scores) > 1 else torch.zeros(())
    apart = (scores - scores.mean()) / spread if spread > 0 else torch.zeros_like(scores)
    return logit(count / len(scores)) + apart.clamp(-FURTHEST, FURTHEST)


def _gate(name: str, samples: int, segments: int, device: torch.device) -> Tensor:
    """Ones for each sample alone, so that its gradient is too. (B, N) for heads, (B, 1, F) for units."""
    shape = (samples, segments) if name.startswith("heads.") else (samples, 1, segments)
    return torch.ones(shape, device=device).requires_grad_()
