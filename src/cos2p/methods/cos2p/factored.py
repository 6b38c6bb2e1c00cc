"""Low-rank factors in place of a small window: how a device of few bytes moves every block of a pretrained model.

A window of a sixteenth of the model moves few of its weights. In the bytes of such a window fit low-rank factors next
to the matrices of *all* blocks, streamed one by one as in `methods.adapters`. They live for one task:

    directions   `down` spans the directions in which the loss falls most on the device's own data: the leading right
                 singular vectors of each matrix's gradient, found by two passes back that hold nothing larger than the
                 factors themselves. They are to the rank as masks are to the width of a window.
    training     both factors and the exit; `up` begins at zero, so that the model begins as it came
    merging      the server multiplies them out, Δ = −s·upᵀ·down (start − end of W), and merges that as it merges any
                 window: segment by segment, next to the windows of larger devices, late work too

So no factors come down, nothing is cut back to a rank on the server, the sum of many devices has as many directions as
they found, and the next task begins at whole weights. LoRA's random directions in the same place lose four points on
Caltech-101 (docs/results/pretrained.md).

The base of a language model is too large to be sent again whenever it changed. Where all devices train factors of one,
its matrices stay as they are, and what the rounds added to them is kept next to them, cut back to the largest rank by
its singular values (`ApartMerge`). A task brings these factors; the device adds their products to each matrix that it
reads, as the server does for evaluation, with the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from cos2p.aggregation.merge import Contribution, SegmentMerge
from cos2p.aggregation.weights import Rule
from cos2p.methods.adapters.device import AdapterSettings, LoraContract, LoraSettings, LoraTrainer, adapter_task
from cos2p.methods.adapters.factors import is_adapter, take_rank
from cos2p.methods.adapters.merge import factored
from cos2p.methods.base import Member, RunContext
from cos2p.models.config import ModelConfig
from cos2p.models.layout import Weights
from cos2p.models.spec import SubmodelSpec
from cos2p.seeding import torch_rng
from cos2p.settings import Settings
from cos2p.training.costs import TaskFlops
from cos2p.training.prefix import AdaptedFile, PrefixFile
from cos2p.training.settings import Auto


class FactorSettings(Settings):
    """Devices of few bytes: low-rank factors of all blocks instead of a window of weights."""

    below: Auto | Annotated[float, Field(ge=0, le=1)] = Field(
        default="auto",
        description="Devices whose window would be smaller than this train factors, if some fit; 0: nobody does. "
        "`auto`: where the recipe sets no rate, of a pretrained model 0.42, of a language model all.",
    )
    lr_factor: float = Field(
        default=1.0, gt=0, description="η of factors is the recipe's, which is for weights, times this; 0.5 to 4."
    )


LOOKS = 2
"""Passes back, of a batch each, that find the directions."""


def factored_task(context: RunContext, member: Member, rank: int) -> tuple[SubmodelSpec, LoraSettings]:
    """Factors of all blocks."""
    return adapter_task(context, member, rank, 0, tuple(range(context.config.depth)), AdapterSettings())


class FactoredContract(LoraContract):
    """LoRA for one task: nothing of the factors that train comes, both go back."""

    looks = LOOKS

    def sent(self, weights: Weights) -> Weights:
        change = {n: shape for n, shape in self.adapters().items() if n in weights and bool(weights[n].any())}
        return {name: weights[name].clone() for name in self.exits()} | take_rank(weights, change)

    def flops(self, samples: int, test_samples: int) -> TaskFlops:
        base, seen = super().flops(samples, test_samples), LOOKS * min(samples, self.local.batch)
        return replace(base, training=base.training + seen * self.costs(samples).step_flops())


class FactoredTrainer(LoraTrainer):
    name: ClassVar[str] = "factored"
    contract_type = FactoredContract
    supports = LoraTrainer.supports - {"step_in_backward"}  # the passes that find the directions look at all gradients

    def prepare(self, report: dict[str, float]) -> tuple[SubmodelSpec, Weights]:
        """Both factors from zero, so that what comes back is what they have become."""
        zero = torch.zeros((), device=self.device)
        zeros = {name: zero.expand(shape) for name, shape in self.contract.adapters().items()}
        return self.order.spec, {**self.given(), **zeros}

    def _frozen(self) -> PrefixFile:
        file, change = super()._frozen(), {name: t for name, t in self.given().items() if is_adapter(name)}
        return AdaptedFile(file, change) if change else file

    def begin(self) -> None:
        """Find the directions in which the loss falls most on local data: two passes back, a batch each.

        With random `down` and zero `up` the model is the base's, and the gradient of `up` is a sketch Ω·Gᵀ of the
        matrix's own gradient G. With that as `up`, made orthonormal, and zero `down`, the gradient of `down` is QᵀG:
        its rows span what a randomised singular value decomposition would find as the leading directions of G. So
        nothing is ever held that is larger than the factors.
        """
        factors = {name: p for name, p in self.model.named_parameters() if is_adapter(name)}
        ups, downs = ({n: p for n, p in factors.items() if n.endswith(end)} for end in (".up", ".down"))
        with torch.no_grad():
            for down in downs.values():
                down.copy_(torch.randn(down.shape, generator=self.rng))
        batches = self.batches(LOOKS)
        for found, zeroed in ((ups, downs), (downs, ups)):
            self._pass_back(next(batches))
            with torch.no_grad():
                for factor in found.values():
                    assert factor.grad is not None
                    factor.copy_(_orthonormal(factor.grad))
                for factor in zeroed.values():
                    factor.zero_()
            self.model.zero_grad(set_to_none=True)

    def _pass_back(self, rows: Tensor) -> None:
        """The gradients of a batch; no step."""
        for part in rows.split(self.local.memory_optimizations.at_once(len(rows))):
            objective, _, count = self._part_objective(self.batch(part))
            (objective * count).backward()


def _orthonormal(rows: Tensor) -> Tensor:
    """As many rows, at right angles and of length 1, that span what the given ones do."""
    spanning: Tensor = torch.linalg.qr(rows.T)[0].T
    return spanning


class FactoredMerge(SegmentMerge):
    """Windows as they come; factors multiplied out."""

    def decode(self, item: Contribution, current: Weights) -> Contribution:
        ups = [name for name in item.delta if is_adapter(name) and name.endswith(".up")]
        if not ups:
            return item
        scale = LoraSettings.model_validate(item.settings).scale
        whole = {name: tensor for name, tensor in item.delta.items() if not is_adapter(name)}
        for up in ups:
            down = item.delta[up.removesuffix("up") + "down"]
            whole[up.replace(".adapters", "").replace(".up", ".weight")] = item.delta[up].T @ down * -scale
        return replace(item, delta=whole)


OVERSAMPLED, PASSES = 8, 2
"""Directions beyond the rank, and passes over the matrix, with which its largest singular directions are looked for."""


class ApartMerge(FactoredMerge):
    """The base stays; what is added to its matrices is kept next to them, as factors of a rank."""

    def __init__(self, config: ModelConfig, rule: Rule, rank: int) -> None:
        super().__init__(config, rule)
        self.rank = rank

    def apply(self, current: Weights) -> Weights:
        updated = super().apply(current)
        for name in [n for n in updated if n.endswith(".weight") and updated[n] is not current[n]]:
            block, _, target = name.removesuffix(".weight").rpartition(".")
            key = f"{block}.adapters.{target}"
            if f"{key}.up" not in current:
                continue
            moved = updated[name] - current[name] + current[f"{key}.up"].T @ current[f"{key}.down"]
            updated[name] = current[name]
            for end, rows in zip(("up", "down"), _leading(moved, self.rank, key), strict=True):
                updated[f"{key}.{end}"] = torch.zeros_like(current[f"{key}.{end}"])
                updated[f"{key}.{end}"][: self.rank] = rows
        return updated


def _leading(matrix: Tensor, rank: int, name: str) -> tuple[Tensor, Tensor]:
    """Factors of the matrix's largest singular directions; all of it, where it has no more."""
    rng = torch_rng(rank, "leading directions", name)
    spanning = torch.randn(min(rank + OVERSAMPLED, *matrix.shape), matrix.shape[1], generator=rng) @ matrix.T
    for _ in range(PASSES):
        spanning = _orthonormal(_orthonormal(spanning) @ matrix) @ matrix.T
    spanning = _orthonormal(spanning)
    return factored(spanning, spanning @ matrix, rank)
