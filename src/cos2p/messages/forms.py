"""What may come back with an update, said before it comes: the update reader compares before it reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.errors import UpdateRefused


@dataclass(frozen=True)
class TensorForm:
    """A tensor that a device sends next to its update: its type, its shape, and between what its values lie."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float = -math.inf
    high: float = math.inf
    shorter: bool = False
    """Whether its first axis may be shorter."""
    optional: bool = False
    """Whether it may be missing."""

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def fits(self, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
        if dtype != self.dtype or len(shape) != len(self.shape):
            return False
        if self.shorter and shape:
            return shape[0] <= self.shape[0] and shape[1:] == self.shape[1:]
        return shape == self.shape

    def __str__(self) -> str:
        size = " × ".join(map(str, self.shape)) or "one number"
        return f"{str(self.dtype).removeprefix('torch.')}, {'at most ' if self.shorter else ''}{size}"


Forms = Mapping[str, TensorForm]


def check_forms(forms: Forms, found: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> None:
    """UpdateRefused unless names, types and shapes are those expected; no value is looked at."""
    for name, (dtype, shape) in found.items():
        if name not in forms:
            known = ", ".join(forms) or "nothing"
            raise UpdateRefused(f"it carries {name[:80]!r}; {known} is expected next to the update")
        if not forms[name].fits(dtype, shape):
            raise UpdateRefused(f"{name} is {dtype} of shape {shape}; expected is {forms[name]}")
    missing = [name for name, form in forms.items() if name not in found and not form.optional]
    if missing:
        raise UpdateRefused(f"{missing[0]} is missing")


def check_values(forms: Forms, tensors: Mapping[str, Tensor]) -> None:
    """UpdateRefused unless all values are finite and between the bounds of their form."""
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        low, high = (float(value) for value in torch.aminmax(tensor.flatten()))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UpdateRefused(f"{name} has values that are not finite")
        if not forms[name].low <= low <= high <= forms[name].high:
            bounds = f"{forms[name].low:.3g} to {forms[name].high:.3g}"
            raise UpdateRefused(f"{name} has values from {low:.3g} to {high:.3g}; {bounds} are let in")
