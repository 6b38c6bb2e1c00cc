"""Observers of local training: they see every step's gradients and may add to them.

Statistics that importance methods need (|w·g|, g²) and the proximal term of FedAsync are small additions to the same
training loop, so they are given to it instead of being loops of their own.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from cos2p.models.transformer import ElasticTransformer


class Observer(Protocol):
    """Gradients are those of the step at hand, both times."""

    def before_step(self, model: ElasticTransformer) -> None: ...
    def after_step(self, model: ElasticTransformer) -> None: ...


class Proximal:
    """Adds ρ(x − x_τ) to the gradient, that is ρ/2·‖x − x_τ‖² to the loss; x_τ is the model as it came."""

    def __init__(self, start: dict[str, Tensor], rho: float) -> None:
        self.start, self.rho = start, rho

    def before_step(self, model: ElasticTransformer) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=self.rho).sub_(self.start[name], alpha=self.rho)

    def after_step(self, model: ElasticTransformer) -> None:
        """Nothing to see."""
