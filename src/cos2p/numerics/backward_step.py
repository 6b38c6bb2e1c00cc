"""A backward pass in fewer bytes, with the same bits: a block runs again instead of keeping what it computed, and the
optimiser steps inside the pass.

A gradient is used as soon as it is there, and dropped, so that those of all parameters are never in memory together.
Parameters end up with the bits of an ordinary step, because the optimisers here treat each parameter alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cos2p.errors import TrainingError


def recompute(blocks: Iterable[nn.Module]) -> None:
    """For the life of these blocks each keeps its input alone, and runs again when the backward reaches it."""
    for block in blocks:
        block.forward = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*arguments: Any) -> Tensor:
        # Nothing in a block is random, so no generator has to be put back for the second time.
        result = checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(result, Tensor)
        return result

    return run


@contextmanager
def stepping_in_backward(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, one `loss.backward()` is also the step; `optimizer.step()` is not called any more.

        with stepping_in_backward(optimizer):
            loss.backward()

    The loss should be looked at before: there is no way back.
    """
    _check_fresh(optimizer)
    done: set[Tensor] = set()
    handles = [
        parameter.register_post_accumulate_grad_hook(_step_of(optimizer, group, done))
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _check_fresh(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                raise TrainingError(
                    f"a parameter of shape {tuple(parameter.shape)} has a gradient already; a step inside backward "
                    "does not accumulate, call optimizer.zero_grad(set_to_none=True) before"
                )


def _step_of(optimizer: torch.optim.Optimizer, group: dict[str, Any], done: set[Tensor]) -> Callable[[Tensor], None]:
    """A hook that steps its parameter alone, with the options of its group."""

    def step(parameter: Tensor) -> None:
        if parameter in done:
            raise TrainingError(
                f"a second backward reached a parameter of shape {tuple(parameter.shape)} in one step inside backward; "
                "add the losses up and call backward once"
            )
        done.add(parameter)
        every = optimizer.param_groups
        optimizer.param_groups = [{**group, "params": [parameter]}]
        try:
            optimizer.step()
        finally:
            optimizer.param_groups = every
        parameter.grad = None

    return step
