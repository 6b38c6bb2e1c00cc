"""A controlled problem: smooth, not convex, with known gradient, minimiser, noise and heterogeneity.

    F(w) = Σ_i Σ_j φ(w_ij − a_ij) + κ/2 ‖ 1/√K Σ_i (w_i − a_i) ‖²,   φ(z) = z²/(1+z²),
    F_n(w) = F(w) + b_n·w,   Σ_n b_n = 0

Segments are i, scalars of one segment j. F ≥ 0 and F(a) = 0; |φ''| ≤ 2, so F is L-smooth with L = 2 + κ; φ is not
convex beyond |z| = 1/√3, and runs start there. With κ = 0 the segments do not know of each other, so a device that
leaves some of them out sees the right gradient for those it holds; with κ > 0 it does not.

Shapes: S seeds, N clients, K segments, D scalars of a segment. Seeds are independent repetitions of one experiment.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cos2p.seeding import torch_rng

STEEPEST = 0.75 * 3**0.5 / 2
"""max |φ'|, at z = 1/√3."""


@dataclass(frozen=True)
class Problem:
    clients: int = 8
    segments: int = 8
    scalars: int = 4
    noise: float = 2.0
    """Standard deviation of every scalar of a stochastic gradient."""
    skew: float = 0.0
    """Root mean square of the scalars of b_n: how far a client's gradient is from everybody's."""
    coupling: float = 0.0
    """κ"""
    start: float = 1.0
    """Distance of every scalar from its minimiser in the beginning; 0 starts at the minimum."""
    seeds: int = 24

    @property
    def smoothness(self) -> float:
        return 2.0 + self.coupling

    def minimiser(self) -> Tensor:
        """a_SKD"""
        shape = (self.seeds, self.segments, self.scalars)
        return torch.randn(shape, generator=torch_rng(0, "convergence minimiser"))

    def offsets(self) -> Tensor:
        """b_NSKD: what makes client n's gradient its own. Adds up to nothing over the clients."""
        shape = (self.clients, self.seeds, self.segments, self.scalars)
        offsets = torch.randn(shape, generator=torch_rng(0, "convergence offsets"))
        offsets -= offsets.mean(0)
        rms = offsets.square().mean().sqrt()
        return torch.zeros(shape) if self.skew == 0 else offsets * (self.skew / rms)

    def first(self) -> Tensor:
        """w_SKD of the first round."""
        signs = torch.randint(0, 2, self.minimiser().shape, generator=torch_rng(0, "convergence start")) * 2 - 1
        return self.minimiser() + self.start * signs

    def value(self, w_SKD: Tensor) -> Tensor:
        """F of each seed."""
        z = w_SKD - self.minimiser()
        common = z.sum(-2) / self.segments**0.5
        return (z.square() / (1 + z.square())).sum((-1, -2)) + self.coupling / 2 * common.square().sum(-1)

    def gradient(self, z: Tensor) -> Tensor:
        """∇F, given w − a; leading axes are free."""
        common = z.sum(-2, keepdim=True) / self.segments
        return 2 * z / (1 + z.square()).square() + self.coupling * common

    def bound(self, rate: float, rounds: int, steps: int, holders: int, delay: int) -> float:
        """The right side of the paper's theorem as it is printed, for κ = 0."""
        size = self.segments * self.scalars
        variance, skew = size * self.noise**2, size * self.skew**2
        steepest = size * (STEEPEST + 3 * self.skew) ** 2 + variance  # G; no offset is beyond three times its size
        spread = self.clients * self.segments / holders
        shared = self.smoothness * rate**2 * steps
        return (
            2 * float(self.value(self.first()).mean()) / (steps * rate * rounds)
            + 4 * shared * steps * spread * steepest * (delay**2 * spread + 16)
            + 16 * shared * spread * variance
            + 64 * shared * steps * spread * skew
        )
