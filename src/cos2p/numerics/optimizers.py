"""Optimisers of the device and their learning rate: Adan, torch's own AdamW and SGD, and two with 8-bit states.

A device counts bytes, so a step here never makes a second copy of the model. Adan walks through the
parameters in chunks that stay in the processor's cache, which bounds its temporaries and is also what
makes it quick; AdamW and SGD use torch's fused kernels, which need no temporaries, wherever they exist.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from cos2p.errors import ConfigError
from cos2p.numerics.adan import CHUNK_BYTES_PER_THREAD, Adan, require_not_negative
from cos2p.numerics.eight_bit import EIGHT_BIT_TEMPORARY_BYTES, AdamW8bit, Adan8bit, code_bytes, is_small

STATE_BYTES = {"adan": 16, "adamw": 8, "sgd": 0, "sgd+momentum": 4, "adan-8bit": 16, "adamw-8bit": 8}
"""Bytes an optimiser keeps between steps for each fp32 parameter; the gradient itself is not included.

With 8-bit states this is the price in a small tensor, which keeps its fp32 states, and so the most that any takes;
`state_bytes` counts tensor by tensor.
"""

Schedule = Literal["cosine", "constant"]


def _plain_step(kind: type[torch.optim.Optimizer]) -> Callable[..., Any]:
    """torch's step without a word to its compiler, whose import takes 40 MB."""
    inner = inspect.unwrap(kind.step)

    def plain(self: torch.optim.Optimizer, closure: Callable[[], float] | None = None) -> Any:
        with torch.no_grad():
            return inner(self, closure)

    return plain


class AdamW(torch.optim.AdamW):
    step = _plain_step(torch.optim.AdamW)


class SGD(torch.optim.SGD):
    step = _plain_step(torch.optim.SGD)


_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adan": Adan,
    "adan-8bit": Adan8bit,
    "adamw": AdamW,
    "adamw-8bit": AdamW8bit,
    "sgd": SGD,
}


def state_bytes(optimizer: str, sizes: Iterable[int]) -> int:
    """Exactly what `optimizer` (a key of `STATE_BYTES`) keeps between steps for fp32 tensors of `sizes` scalars.

    >>> state_bytes("adan-8bit", [512 * 512, 512])  # four codes a scalar and their scales; four floats a scalar
    1073152
    """
    each = STATE_BYTES[optimizer]
    if not _is_eight_bit(optimizer):
        return each * sum(sizes)
    return sum(each * size if is_small(size) else each // 4 * code_bytes(size) for size in sizes)


def state_tensors(optimizer: str) -> int:
    """Tensors that `optimizer` keeps for each large one it trains: its states, and the scales of those in 8 bits."""
    return STATE_BYTES[optimizer] // 4 * (2 if _is_eight_bit(optimizer) else 1)


def step_temporary_bytes(optimizer: str, threads: int) -> int:
    """All that a step on a CPU needs besides gradients and states."""
    return EIGHT_BIT_TEMPORARY_BYTES if _is_eight_bit(optimizer) else CHUNK_BYTES_PER_THREAD * threads


def eight_bit(optimizer: str) -> str:
    """Its form with 8-bit states; one without states to speak of stays as it is."""
    return f"{optimizer}-8bit" if f"{optimizer}-8bit" in STATE_BYTES else optimizer


def _is_eight_bit(optimizer: str) -> bool:
    return optimizer.endswith("-8bit")


def make_optimizer(
    name: str,
    params: Iterable[Tensor] | Iterable[dict[str, Any]],
    lr: float,
    weight_decay: float = 0.0,
    **options: Any,
) -> torch.optim.Optimizer:
    """The optimiser `name` ("adan", "adamw" or "sgd", "adan-8bit", "adamw-8bit") over `params`.

    `params` are tensors or torch's parameter groups. `options` go to the class: `betas`, `eps` for Adan;
    `momentum`, `nesterov` for SGD; ...
    """
    if name not in _CLASSES:
        raise ConfigError(f"optimizer {name!r} is unknown; known are {', '.join(sorted(_CLASSES))}")
    require_not_negative(lr=lr, weight_decay=weight_decay)
    known = _options(name)
    for option in options:
        if option not in known:
            raise ConfigError(f"optimizer {name!r} has no option {option!r}; it has {', '.join(sorted(known))}")
    groups = [{**entry, "params": list(entry["params"])} if isinstance(entry, dict) else entry for entry in params]
    tensors = [t for entry in groups for t in (entry["params"] if isinstance(entry, dict) else [entry])]
    if not tensors:
        raise ConfigError(f"optimizer {name!r} got no parameters; at least one tensor has to be trainable")
    if "fused" in known and "foreach" not in options:
        fused = (tensor.is_floating_point() and tensor.device.type in ("cpu", "cuda") for tensor in tensors)
        options.setdefault("fused", all(fused))
    return _CLASSES[name](groups, lr=lr, weight_decay=weight_decay, **options)


@cache
def _options(name: str) -> tuple[str, ...]:
    """The optimiser's options besides parameters, rate and decay."""
    given = inspect.signature(_CLASSES[name]).parameters
    return tuple(option for option in given if option not in ("params", "lr", "weight_decay"))


def leave_compiler_out() -> None:
    """Have torch's optimisers not import its compiler (100 MB, over a second) only to say that it shall skip them."""
    for member in vars(torch.optim.Optimizer).values():
        plain = getattr(member, "__wrapped__", None)
        if plain is not None:
            setattr(plain, "__dynamo_disable", plain)


def learning_rate(schedule: Schedule, base: float, progress: float) -> float:
    """The rate at `progress` through the run, 0 at its start and 1 at its end.

    "constant" stays at `base`; "cosine" falls from `base` to 0 along half a cosine.

    >>> learning_rate("cosine", base=0.5, progress=0.5)
    0.25
    """
    return base if schedule == "constant" else base * 0.5 * (1.0 + math.cos(math.pi * progress))
