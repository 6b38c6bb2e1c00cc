"""The frozen blocks above the window: the loss is at the true top, and only one of them is in memory at a time.

Forward runs block after block and keeps what went into each; backward loads each block once more, from the top down,
runs it again on what went in, and passes the gradient through. So next to the window a device holds one block, and one
tensor as wide as the residual for each block above. The gradients are those of ordinary backpropagation.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cos2p.models.config import ModelConfig
from cos2p.models.context import Context
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.models.transformer import Block
from cos2p.training.prefix import PrefixFile, loaded


class StreamedSuffix:
    """From the window's top to the model's; to be set as `ElasticTransformer.above`."""

    def __init__(self, config: ModelConfig, spec: SubmodelSpec, file: PrefixFile) -> None:
        self.config, self.blocks, self.file = config, tuple(spec.above(config)), file

    def __call__(self, x_BTD: Tensor, context: Context) -> Tensor:
        passed: Tensor = _Through.apply(x_BTD, self, context)  # type: ignore[no-untyped-call]
        return passed

    def block(self, index: int) -> Block:
        return loaded(Block(self.config, BlockKeep.full(self.config)), self.file.part(f"blocks.{index}."))


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_BTD: Tensor, suffix: StreamedSuffix, context: Context) -> Tensor:
        ctx.suffix, ctx.context = suffix, context
        went_in = []
        for index in suffix.blocks:
            went_in.append(x_BTD)
            x_BTD = suffix.block(index)(x_BTD, context)
        ctx.save_for_backward(*went_in)
        return x_BTD

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        for index, x_BTD in zip(reversed(ctx.suffix.blocks), reversed(ctx.saved_tensors), strict=True):
            entry = x_BTD.detach().requires_grad_()
            with torch.enable_grad():
                (gradient,) = torch.autograd.grad(ctx.suffix.block(index)(entry, ctx.context), entry, gradient)
        return gradient, None, None
