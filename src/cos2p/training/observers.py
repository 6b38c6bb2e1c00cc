"""Observers of local training: they see every step's gradients and may add to them.

Statistics that importance methods need (|w·g|, g²) and the proximal term of FedAsync are small additions to the same
training loop, so they are given to it instead of being loops of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from cos2p.models.transformer import ElasticTransformer


class Observer:
    """Base of all observers: sees everything, does nothing. Gradients are those of the step at hand."""

    def begin(self, model: ElasticTransformer) -> None:
        """The model is ready, nothing has happened yet."""

    def before_step(self, model: ElasticTransformer) -> None:
        """The gradients are there, the optimiser has not used them."""

    def after_step(self, model: ElasticTransformer) -> None:
        """The weights have changed; the gradients are still there."""


class Proximal(Observer):
    """Adds ρ(x − x_τ) to the gradient, that is ρ/2·‖x − x_τ‖² to the loss; x_τ is the model as it came."""

    def __init__(self, start: Mapping[str, Tensor], rho: float) -> None:
        self.start, self.rho = start, rho

    def before_step(self, model: ElasticTransformer) -> None:
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                parameter.grad.add_(parameter.detach(), alpha=self.rho).sub_(self.start[name], alpha=self.rho)
