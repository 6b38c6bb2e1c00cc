"""The model with adapters while every block is streamed: one in memory at a time, forward and backward.

A block keeps what went into it and nothing else. Backward loads it once more, runs it again, and gives the gradients
of its adapters and of its input: those of ordinary backpropagation. Blocks below the lowest adapter only infer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cos2p.methods.adapters.factors import Target
from cos2p.models.config import ModelConfig
from cos2p.models.context import Context
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.models.transformer import Block, ElasticTransformer, Linear
from cos2p.training.prefix import PrefixFile, loaded


class Adapter(nn.Module):
    """The two factors of one matrix."""

    def __init__(self, rank: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.empty(rank, inputs, device="meta"))
        self.up = nn.Parameter(torch.empty(rank, outputs, device="meta"))


class _Adapted(nn.Module):
    """A frozen linear layer with an adapter next to it."""

    def __init__(self, layer: Linear, down: Tensor, up: Tensor, scale: float) -> None:
        super().__init__()
        self.layer, self.scale = layer, scale
        self.factors = (down, up)  # not parameters of this module: it is gone after one pass

    def forward(self, x: Tensor) -> Tensor:
        down, up = self.factors
        return torch.add(self.layer(x), F.linear(x, down) @ up, alpha=self.scale)


class StreamedBlock(nn.Module):
    """A block of which the adapters alone are held."""

    def __init__(
        self, config: ModelConfig, index: int, file: PrefixFile, rank: int, targets: Sequence[Target], scale: float
    ) -> None:
        super().__init__()
        self.config, self.index, self.file, self.scale = config, index, file, scale
        self.targets = tuple(targets) if rank else ()
        whole = Block(config, BlockKeep.full(config))
        shapes = {target: getattr(whole, target).weight.shape for target in self.targets}
        self.adapters = nn.ModuleDict({t: Adapter(rank, shape[1], shape[0]) for t, shape in shapes.items()})

    def forward(self, x_BTD: Tensor, context: Context, *gates: Tensor | None) -> Tensor:
        factors = [factor for target in self.targets for factor in self.adapters[target].parameters()]
        passed: Tensor = _Streamed.apply(self, context, x_BTD, *factors)  # type: ignore[no-untyped-call]
        return passed

    def run(self, x_BTD: Tensor, context: Context, factors: Sequence[Tensor]) -> Tensor:
        """Load the block, put these factors next to its matrices, run it."""
        block = loaded(Block(self.config, BlockKeep.full(self.config)), self.file.part(f"blocks.{self.index}."))
        for place, target in enumerate(self.targets):
            layer = getattr(block, target)
            setattr(block, target, _Adapted(layer, factors[2 * place], factors[2 * place + 1], self.scale))
        result: Tensor = block(x_BTD, context)
        return result


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: StreamedBlock, context: Context, x_BTD: Tensor, *factors: Tensor) -> Tensor:
        ctx.block, ctx.context = block, context
        ctx.save_for_backward(x_BTD, *factors)
        return block.run(x_BTD, context, factors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        wanted = ctx.needs_input_grad[2:]
        entries = [t.detach().requires_grad_(w) for t, w in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad():
            result = ctx.block.run(entries[0], ctx.context, entries[1:])
            found = iter(torch.autograd.grad(result, [t for t in entries if t.requires_grad], gradient))
        return None, None, *(next(found) if w else None for w in wanted)


class AdaptedTransformer(ElasticTransformer):
    """Blocks [spec.frozen, depth) streamed with adapters; those not among `blocks` are left out altogether."""

    def __init__(
        self,
        config: ModelConfig,
        spec: SubmodelSpec,
        file: PrefixFile,
        blocks: Sequence[int],
        rank: int,
        targets: Sequence[Target],
        scale: float,
    ) -> None:
        super().__init__(config, spec)
        for index in range(spec.frozen, spec.top):
            kept = index in blocks
            self.blocks[str(index)] = StreamedBlock(config, index, file, rank, targets, scale) if kept else _LeftOut()

    def load(self, weights: Weights, trained: Mapping[str, object] | None = None) -> AdaptedTransformer:
        """Take the tensors by reference; those not among `trained` (by default all) stay as they are."""
        own = {name: weights["embed.tokens" if name == "output_table" else name] for name, _ in self.named_parameters()}
        self.load_state_dict(own, strict=True, assign=True)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(trained is None or name in trained)
        return self

    def fold_rescale(self) -> None:
        """Nothing is cut, so nothing was rescaled."""


class _LeftOut(nn.Module):
    def forward(self, x_BTD: Tensor, context: Context, *gates: Tensor | None) -> Tensor:
        return x_BTD
