"""Fewer bytes for what a forward pass keeps for the backward: computed again, or kept in 16 bits.

Both change how a module runs, not what it is: its parameters stay fp32, and so do gradients and the optimiser's states.

    lighten(model.blocks.values(), model.exits.values(), recompute=True, bf16=False)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


def lighten(
    blocks: Iterable[nn.Module],
    exits: Iterable[nn.Module],
    *,
    recompute: bool = False,
    bf16: bool = False,
) -> None:
    """Make blocks, and the exits on top of them, keep less. For the life of the modules; twice is once too often.

    `recompute`: a block keeps its input alone and runs again when the backward reaches it: the same bits, a third more
    time. `bf16`: features from the first block on, and what is kept of them, take 2 bytes; outputs are fp32 again.
    """
    for block in blocks:
        if bf16:
            _set_forward(block, _in_half(block.forward))
        if recompute:
            _set_forward(block, _recomputed(block.forward))
    if bf16:
        # RMSNorm calculates in fp32 when its weight is: as it should, and not worth a warning.
        warnings.filterwarnings("ignore", message="Mismatch dtype between input and weight")
        for module in exits:
            _set_forward(module, _in_half(module.forward, back=True))


def _set_forward(module: nn.Module, forward: Callable[..., Tensor]) -> None:
    module.forward = forward


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*arguments: Any) -> Tensor:
        # Nothing in a block is random, so no generator has to be put back for the second time.
        result = checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, Tensor)
        return result

    return run


def _in_half(forward: Callable[..., Tensor], back: bool = False) -> Callable[..., Tensor]:
    def run(features: Tensor, *arguments: Any) -> Tensor:
        # Without autocast's cache a weight's copy goes with the op that made it, not with the whole pass.
        with torch.autocast(features.device.type, torch.bfloat16, cache_enabled=False):
            result = forward(features.to(torch.bfloat16), *arguments)
        return result.float() if back else result

    return run
