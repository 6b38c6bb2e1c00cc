"""Gradients in fp16 lose what is below 6e-8: so the loss is multiplied before the backward, and they are divided.

Too large a factor makes one of them infinite: then it is halved and the batch done again. After `PATIENCE` steps
without one it is doubled. (`torch.amp.GradScaler` does the same; it steps optimisers itself, and a trainer here looks
at the gradients before and after.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from cos2p.errors import TrainingError

FIRST = 2.0**16
PATIENCE = 2000
LEAST = 2.0**-14
"""Below this factor it is not the factor that is wrong."""


class LossScale:
    def __init__(self, factor: float = FIRST) -> None:
        self.factor = factor
        self._good = 0

    def up(self, objective: Tensor) -> Tensor:
        return objective * self.factor

    def down(self, parameters: Iterable[Tensor]) -> bool:
        """Divide the gradients, in place. False if one of them is not finite: not to be used.

        Waits for the device: whether they can be used has to be known.
        """
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, 1.0 / self.factor)
            largest = torch.stack([gradient.abs().max() for gradient in gradients if gradient.numel()])
            if not bool(torch.isfinite(largest).all()):
                self._halve()
                return False
        self._good += 1
        if self._good >= PATIENCE:
            self.factor, self._good = 2 * self.factor, 0
        return True

    def _halve(self) -> None:
        self.factor, self._good = self.factor / 2, 0
        if self.factor < LEAST:
            raise TrainingError(
                "gradients are not finite in fp16 however small the loss is made; "
                "lower training.lr, or take bf16 or float32 (training.savings)"
            )
