"""Plays a tape of ops: what is in memory at every moment of one forward and backward, and which moment is the worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Op:
    """One differentiable step."""

    kept: int = 0
    """Held from its forward until its backward is done."""
    grown: int = 0
    """Gradients of parameters that its backward leaves behind."""
    forward: int = 0
    """Temporaries at the worst moment of its forward, next to what it keeps."""
    backward: int = 0
    """Temporaries at the worst moment of its backward, next to what it keeps: gradients that come in and go out."""


@dataclass(frozen=True)
class Recomputed:
    """Steps whose forward keeps nothing but its input, and which run again when the backward comes to them."""

    inside: tuple[Op, ...]
    """Without the input they share."""
    kept: int
    """The input."""
    forward: int
    """Temporaries at the worst moment of the first forward."""
    arriving: int
    """The gradient of the output, which waits while they run again."""

    @property
    def grown(self) -> int:
        return sum(op.grown for op in self.inside)


Step = Op | Recomputed


@dataclass(frozen=True)
class Moment:
    """What a pass holds at one moment."""

    activations: int = 0
    gradients: int = 0

    @property
    def total(self) -> int:
        return self.activations + self.gradients


def worst(moments: Iterable[Moment]) -> Moment:
    return max(moments, key=lambda moment: moment.total)


Gradients = Literal["kept", "accumulated", "stepped"]
"""What becomes of them in a pass.

`kept`: they appear one after the other and stay. `accumulated`: a step has several micro-batches, so all are there from
the first one on, and each new one is a temporary until it has been added. `stepped`: each goes with its op.
"""


def walk(tape: Sequence[Step], gradients: Gradients = "kept") -> Moment:
    """The worst moment of forward and backward."""
    pass_ = _Pass(gradients, sum(step.grown for step in tape))
    pass_.forward(tape)
    pass_.backward(tape)
    return worst(pass_.moments)


class _Pass:
    def __init__(self, gradients: Gradients, everything: int) -> None:
        self.gradients, self.everything = gradients, everything
        self.kept = self.grown = 0
        self.moments: list[Moment] = []

    def forward(self, tape: Sequence[Step], waiting: int = 0) -> None:
        grown = {"kept": self.grown, "accumulated": self.everything, "stepped": 0}[self.gradients]
        for step in tape:
            self.kept += step.kept
            self.moments.append(Moment(self.kept + waiting + step.forward, grown))

    def backward(self, tape: Sequence[Step]) -> None:
        for step in reversed(tape):
            if isinstance(step, Recomputed):
                self.forward(step.inside, step.arriving)
                self.backward(step.inside)
            else:
                self._backward_of(step)
            self.kept -= step.kept

    def _backward_of(self, op: Op) -> None:
        self.grown += op.grown
        used = self.kept + op.backward
        if self.gradients == "accumulated":
            self.moments.append(Moment(used + op.grown, self.everything))
        else:
            self.moments.append(Moment(used, self.grown if self.gradients == "kept" else op.grown))
