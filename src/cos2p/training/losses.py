"""The losses of a task's steps, without waiting for each: a GPU is asked now and then, for all since the last time."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cos2p.errors import TrainingError

TOGETHER = 64
"""Steps whose losses are read from a GPU at once."""


def zero(device: torch.device) -> Tensor:
    """To add losses to, where they are: in 64 bits, but for Apple's GPUs, which have none."""
    return torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


class Losses:
    """Of every step what was minimised and what is reported. One that is not finite is a TrainingError: on the
    processor at once, on a GPU after at most `TOGETHER` steps."""

    def __init__(self, device: torch.device, advice: str, of: str = "") -> None:
        """`advice`: what to do about one that is not finite; `of`: whose losses they are, if not the training's."""
        self._name = f"the loss of {of}" if of else "the loss"
        self._together = 1 if device.type == "cpu" else TOGETHER
        self._advice = advice
        self._waiting: list[Tensor] = []
        self._read: list[float] = []

    def add(self, objective: Tensor, reported: Tensor) -> None:
        if self._together == 1:
            value = objective.item()
            self._note(value, value if reported is objective else reported.item())
            return
        self._waiting.append(torch.stack((objective.detach(), reported.detach())))
        if len(self._waiting) >= self._together:
            self._ask()

    def values(self) -> list[float]:
        """What is reported of every step so far."""
        if self._waiting:
            self._ask()
        return self._read

    def _ask(self) -> None:
        for objective, reported in torch.stack(self._waiting).tolist():
            self._note(objective, reported)
        self._waiting = []

    def _note(self, objective: float, reported: float) -> None:
        if not math.isfinite(objective):
            raise TrainingError(f"{self._name} became {objective}; {self._advice}")
        self._read.append(reported + 0.0)  # there is no loss of -0.0
