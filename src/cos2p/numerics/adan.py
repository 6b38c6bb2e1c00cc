"""Adan, in chunks that stay in the processor's cache: quick, and never a temporary as large as a tensor."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from cos2p.errors import ConfigError

CHUNK_BYTES_PER_THREAD = 512 * 1024
"""Parameter bytes each CPU thread gets of a chunk of Adan's: few enough to stay in cache between operations."""

TEMPORARY_BYTES = 4 * 1024 * 1024
"""No step of `Adan` ever holds more temporary tensor bytes than this, whatever the size of the model.

It is the chunk of an accelerator, where a kernel's launch costs more than a trip to memory, and the largest
chunk of a CPU with many threads.
"""


class ChunkedOptimizer(torch.optim.Optimizer):
    """An optimiser that steps group by group, each in chunks of its own choice."""

    def _step_group(self, group: dict[str, Any]) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            self._step_group(group)


class Adan(ChunkedOptimizer):
    """Adaptive Nesterov momentum (Xie et al., arXiv 2208.06677).

    With g the gradient, δ = g − previous g (0 at a parameter's first step), at its k-th step:

        m ← β1·m + (1−β1)·g        u ← β2·u + (1−β2)·δ        n ← β3·n + (1−β3)·(g + β2·δ)²
        θ ← [θ − η·(m̂ + β2·û) / (√n̂ + ε)] / (1 + η·λ)         x̂ = x / (1 − βᵏ)

    `betas` are the weights of the past (the paper writes one minus them). `lr` wants 5 to 10 times the value
    that suits AdamW. `weight_decay` λ is decoupled: 0 is none, 0.02 is usual.

    State per parameter: m, u, n and the previous gradient (16 bytes in fp32) and a step count.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float, float] = (0.98, 0.92, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, self.check(lr, betas, eps, weight_decay))

    @staticmethod
    def check(lr: float, betas: tuple[float, float, float], eps: float, weight_decay: float) -> dict[str, Any]:
        """The options of a group, if they can be."""
        require_not_negative(lr=lr, weight_decay=weight_decay)
        if len(betas) != 3 or not all(0.0 <= beta < 1.0 for beta in betas):
            raise ConfigError(f"betas={betas}: Adan needs three values in [0, 1), such as (0.98, 0.92, 0.99)")
        if not 0.0 < eps < math.inf:
            raise ConfigError(f"eps={eps}: must be above 0, such as 1e-8")
        return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}

    def _step_group(self, group: dict[str, Any]) -> None:
        options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
        for (step, device, dtype), rows in self._ready(group).items():
            for chunk in _chunks(rows, chunk_bytes(device) // dtype.itemsize):
                update_chunk(chunk, step, **options)

    def _ready(self, group: dict[str, Any]) -> dict[tuple[int, torch.device, torch.dtype], list[_Row]]:
        """The group's tensors that have a gradient, bucketed by what a foreach call must have in common."""
        buckets: dict[tuple[int, torch.device, torch.dtype], list[_Row]] = defaultdict(list)
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            state = self.state[parameter]
            if not state:
                state["step"] = 0
                for name in ("m", "u", "n"):
                    state[name] = torch.zeros_like(parameter)
                state["previous"] = gradient.clone()  # δ = 0 at the first step
            state["step"] += 1
            row = (parameter, gradient, state["m"], state["u"], state["n"], state["previous"])
            buckets[state["step"], parameter.device, parameter.dtype].append(row)
        return buckets


_Row = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""One parameter θ, g, m, u, n, previous g: all of one shape. A chunk is the same six as lists of pieces."""

_Chunk = tuple[list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor], list[Tensor]]


def update_chunk(
    chunk: _Chunk,
    step: int,
    *,
    lr: float,
    betas: tuple[float, float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """One Adan step of a chunk, in place; at any moment one temporary of the chunk's size is alive."""
    theta, g, m, u, n, previous = chunk
    beta1, beta2, beta3 = betas
    # θ's change is written with √n + ε·s below the line, s = √(1−β3ᵏ), which spares a pass over √n̂.
    s = math.sqrt(1.0 - beta3**step)
    rate_m = lr * s / (1.0 - beta1**step)
    rate_u = lr * s * beta2 / (1.0 - beta2**step)

    temporary = torch._foreach_sub(g, previous)  # δ
    torch._foreach_copy_(previous, g)
    torch._foreach_lerp_(m, g, 1.0 - beta1)
    torch._foreach_lerp_(u, temporary, 1.0 - beta2)
    torch._foreach_mul_(temporary, beta2)
    torch._foreach_add_(temporary, g)  # g + β2·δ
    torch._foreach_mul_(n, beta3)
    torch._foreach_addcmul_(n, temporary, temporary, 1.0 - beta3)
    del temporary  # before the next one is made

    temporary = torch._foreach_sqrt(n)
    torch._foreach_add_(temporary, eps * s)
    torch._foreach_addcdiv_(theta, m, temporary, -rate_m)
    torch._foreach_addcdiv_(theta, u, temporary, -rate_u)
    if weight_decay:
        torch._foreach_div_(theta, 1.0 + lr * weight_decay)


def chunk_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        return TEMPORARY_BYTES
    return min(TEMPORARY_BYTES, CHUNK_BYTES_PER_THREAD * torch.get_num_threads())


def _chunks(rows: list[_Row], elements: int) -> Iterator[_Chunk]:
    """Cut large tensors and gather small ones into chunks of at most `elements` elements."""
    pieces: list[_Row] = []
    size = 0
    for row in rows:
        for piece in _pieces(row, elements):
            if pieces and size + piece[0].numel() > elements:
                yield _as_chunk(pieces)
                pieces, size = [], 0
            pieces.append(piece)
            size += piece[0].numel()
    if pieces:
        yield _as_chunk(pieces)


def _pieces(row: _Row, elements: int) -> Iterator[_Row]:
    """Views of a row's tensors, cut alike, of at most `elements` elements; nothing for an empty tensor."""
    count = row[0].numel()
    if count == 0:
        return
    if count <= elements:
        yield row
        return
    if all(tensor.is_contiguous() for tensor in row):
        row = _as_row(tensor.view(-1) for tensor in row)
    # Strided tensors cannot be flattened without a copy: cut by their first axis, and deeper where one
    # slice of it is still too large.
    slice_size = count // len(row[0])
    if slice_size > elements:
        for slices in zip(*(tensor.unbind() for tensor in row), strict=True):
            yield from _pieces(_as_row(slices), elements)
    else:
        yield from map(_as_row, zip(*(torch.split(tensor, elements // slice_size) for tensor in row), strict=True))


def _as_row(tensors: Iterable[Tensor]) -> _Row:
    theta, g, m, u, n, previous = tensors
    return theta, g, m, u, n, previous


def _as_chunk(rows: list[_Row]) -> _Chunk:
    theta, g, m, u, n, previous = map(list, zip(*rows, strict=True))
    return theta, g, m, u, n, previous


def require_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 <= value < math.inf:
            raise ConfigError(f"{name}={value}: must be a finite number, 0 or above")
