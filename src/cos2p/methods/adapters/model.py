"""The model with adapters, whose frozen blocks are held in memory or streamed from disk.

A streamed block is loaded when it runs and keeps what went into it, nothing else. Backward loads it once more, runs it
again, and gives the gradients of its adapters and of its input: those of ordinary backpropagation. One that is held can
do the same without loading (`recompute`), or keep all that ordinary backpropagation keeps. Blocks below the lowest
adapter only infer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
from cos2p.training.settings import PLAIN, MemoryOptimizations


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


class AdaptedBlock(nn.Module):
    """A block whose adapters alone are parameters; the rest is read from `file` now, or whenever it runs."""

    def __init__(
        self,
        config: ModelConfig,
        index: int,
        file: PrefixFile,
        rank: int,
        targets: Sequence[Target],
        scale: float,
        memory_optimizations: MemoryOptimizations,
    ) -> None:
        super().__init__()
        self.config, self.index, self.file, self.scale = config, index, file, scale
        self.targets = tuple(targets) if rank else ()
        whole = Block(config, BlockKeep.full(config))
        shapes = {target: getattr(whole, target).weight.shape for target in self.targets}
        self.adapters = nn.ModuleDict({t: Adapter(rank, shape[1], shape[0]) for t, shape in shapes.items()})
        self._recompute = memory_optimizations.stream is True or memory_optimizations.recompute == "yes"
        self._held = (
            () if memory_optimizations.stream is True else (self._load(),)
        )  # in a tuple: its weights are no parameters

    def forward(self, x_BTD: Tensor, context: Context, *gates: Tensor | None) -> Tensor:
        factors = [factor for target in self.targets for factor in self.adapters[target].parameters()]
        if not self._recompute:
            return self.run(x_BTD, context, factors)
        passed: Tensor = _Again.apply(self, context, x_BTD, *factors)  # type: ignore[no-untyped-call]
        return passed

    def _load(self) -> Block:
        return loaded(Block(self.config, BlockKeep.full(self.config)), self.file.part(f"blocks.{self.index}."))

    def run(self, x_BTD: Tensor, context: Context, factors: Sequence[Tensor]) -> Tensor:
        """Put these factors next to the block's matrices, and run it."""
        block = self._held[0] if self._held else self._load()
        for place, target in enumerate(self.targets):
            layer = getattr(block, target)
            layer = layer.layer if isinstance(layer, _Adapted) else layer
            setattr(block, target, _Adapted(layer, factors[2 * place], factors[2 * place + 1], self.scale))
        result: Tensor = block(x_BTD, context)
        return result


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: AdaptedBlock, context: Context, x_BTD: Tensor, *factors: Tensor) -> Tensor:
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
    """Blocks [spec.frozen, depth) with adapters; those not among `blocks` are left out altogether."""

    def __init__(
        self,
        config: ModelConfig,
        spec: SubmodelSpec,
        file: PrefixFile,
        blocks: Sequence[int],
        rank: int,
        targets: Sequence[Target],
        scale: float,
        memory_optimizations: MemoryOptimizations = PLAIN,
    ) -> None:
        super().__init__(config, spec)
        for index in range(spec.frozen, spec.top):
            made = partial(AdaptedBlock, config, index, file, rank, targets, scale, memory_optimizations)
            self.blocks[str(index)] = made() if index in blocks else _LeftOut()

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
