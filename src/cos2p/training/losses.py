"""The losses of a task: of its steps, of a batch in parts, of a language model's tokens.

Those of steps are read without waiting for each: a GPU is asked now and then, for all since the last time.

The loss over the exits: every exit learns from the labels, the shallow ones also from the deepest.

    L = Σ_i (1 − λ2) · CE(ŷ_i, y) + λ2 · t² · KL(ŷ_i, ŷ_deepest)

The teacher is detached: it learns from the labels alone, and its own KL term is zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.errors import ConfigError, TrainingError
from cos2p.messages import Task
from cos2p.models.config import ModelConfig
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.output_table import SMALL, cross_entropy_in_parts

IGNORED = -100
"""The label of a token that counts for nothing, torch's own."""


def flatten(logits: Tensor, labels: Tensor, keep_shape: bool = False) -> tuple[Tensor, Tensor]:
    """(B, C) and (B,) stay; language modelling's (B, T, V) and (B, T) become one row for each real token.

    With `keep_shape` for each token, real or not: how many are real is the labels' to say, and to ask a GPU for that
    is to wait for it.
    """
    if logits.ndim == 2:
        return logits, labels
    logits, labels = logits.flatten(0, 1), labels.flatten()
    if keep_shape:
        return logits, labels
    real = labels != -100
    return logits[real], labels[real]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over rows; 0 for a batch without any (texts of one token have nothing to predict)."""
    return F.cross_entropy(logits, labels) if len(labels) else logits.sum()


def counted_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The same where rows of the label −100 are still there: they count for nothing."""
    return F.cross_entropy(logits, labels, reduction="sum") / (labels != IGNORED).sum().clamp_min(1)


def divergence(student: Tensor, teacher: Tensor, temperature: float, real: Tensor | None = None) -> Tensor:
    """t² · KL(student‖teacher) at temperature t, as the paper prints it: the mean over rows, or over those that are
    `real`."""
    log_s = F.log_softmax(student / temperature, -1)
    log_t = F.log_softmax(teacher.detach() / temperature, -1)
    each = log_s.exp() * (log_s - log_t)
    if real is not None:
        return (each.sum(-1) * real).sum() * temperature**2 / real.sum().clamp_min(1)
    return each.sum() * (temperature**2 / max(1, len(student)))


def exits_loss(
    outputs: Sequence[Tensor],
    labels: Tensor,
    lambda2: float,
    temperature: float = 3.0,
) -> Tensor:
    """The paper's L_weight over all exits, shallowest first. One exit alone gives (1 − λ2)·CE, as the paper does."""
    whole = labels.device.type != "cpu" and outputs[-1].ndim == 3
    flat = [flatten(output, labels, keep_shape=whole) for output in outputs]
    total: Tensor | None = None
    for logits, target in flat:
        own = (counted_cross_entropy if whole else cross_entropy)(logits, target)
        own = (1 - lambda2) * own if lambda2 > 0 else own
        total = own if total is None else total + own
    assert total is not None
    if lambda2 > 0:
        teacher, targets = flat[-1]
        real = targets != IGNORED if whole else None
        for logits, _ in flat[:-1]:
            total = total + lambda2 * divergence(logits, teacher, temperature, real)
    return total


TOGETHER = 64
"""Steps whose losses are read from a GPU at once."""


def zero(device: torch.device) -> Tensor:
    """To add losses to, where they are: in 64 bits, but for Apple's GPUs, which have none."""
    return torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)


class Losses:
    """The loss of every step, as it was minimised and as it is reported. One that is not finite is a TrainingError: on
    the processor at once, on a GPU after at most `TOGETHER` steps."""

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
        """The reported loss of every step so far."""
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


# ---------------------------------------------------------------- a batch in parts

Part = TypeVar("Part")


@dataclass(frozen=True, eq=False)
class MicroBatches(Generic[Part]):
    """The parts of a batch, each made when its turn comes: they are never in memory together."""

    rows: Sequence[Tensor]
    make: Callable[[Tensor], Part]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Part]:
        return map(self.make, self.rows)


def add_up(
    parts: Iterable[Part],
    evaluate: Callable[[Part], tuple[Tensor, Tensor, int]],
    parameters: Iterable[Tensor],
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """The gradients of a batch, from parts each of which counts by what it has to be right about.

    `evaluate` gives a part's objective and loss, both means, and over how many. Returns those of the whole batch.
    """
    objective, loss, total = zero(device), zero(device), 0
    for part in parts:
        own, reported, count = evaluate(part)
        own = own * count
        own.backward()
        objective, loss, total = objective + own.detach(), loss + reported.detach() * count, total + count
    share = 1.0 / max(1, total)
    torch._foreach_mul_([parameter.grad for parameter in parameters if parameter.grad is not None], share)
    return objective * share, loss * share


def counted(labels: Tensor) -> int:
    """Over how many a mean loss is taken: samples, or the tokens that a language model has to predict."""
    return int((labels != IGNORED).sum()) if labels.ndim == 2 and not labels.is_floating_point() else len(labels)


# ---------------------------------------------------------------- tokens


def reads_in_parts(model: ElasticTransformer) -> bool:
    """Whether a loss can be taken without whole logits: of one exit, which nobody learns from."""
    plain = type(model).forward is ElasticTransformer.forward and type(model).run_exit is ElasticTransformer.run_exit
    language = model.config.task == "language-modeling"
    return language and plain and len(model.spec.exits) == 1 and model.outputs > SMALL


def loss_of_tokens(
    model: ElasticTransformer, inputs: Tensor, labels: Tensor, features: Tensor | None, lambda2: float = 0.0
) -> Tensor:
    """`exits_loss` for one exit, from the tokens alone that have a label."""
    places = (labels.flatten() != IGNORED).nonzero().squeeze(1)
    (rows_nD,) = model.rows_at(places, inputs, features)
    if len(rows_nD) == 0:
        return rows_nD.sum()
    table = model.table
    assert table is not None
    loss = cross_entropy_in_parts(rows_nD, table, model.targets(labels).flatten()[places])
    return (1 - lambda2) * loss if lambda2 > 0 else loss


# A device that lacks some classes must not make the others forget them.
#
# Trained on labels it has seen in unequal shares p, an exit learns to favour the frequent ones and to rule out those it
# never meets. With many devices in a round that averages out. An exit of a window has one or two trainers a round, and
# fast devices come more often: on a fleet whose fastest devices lacked three classes, the server's model lost those.
#
# `logit-adjustment` (Menon et al. 2021, with the prior of each device's own data and τ = 1: the balanced softmax of Ren
# et al. 2020): while a device trains, it adds log p to the logits. They explain frequent labels by themselves,
# and the weights learn what separates the classes. The server's model, without the addition, treats all classes alike;
# the device's own submodel keeps it and so predicts with the shares of its own data. No count leaves the device. As
# log p is the same for every sample, it is a shift of the exits' biases: an update, being a difference, is free of it.
# (Weight decay, where there is any, also acts on the shift; the shift has mean 0, so classes are pulled together.)
#
# Adan and Adam divide by the size of the gradient, so that even the small one of an absent class moves its bias. To
# leave absent classes out altogether was tried: no better on two splits, for Co-S²P and HeteroFL.

ABSENT = 0.01
"""Samples that a class without any is taken to have: small, and its logarithm still a number."""


def check_adjustable(config: ModelConfig) -> None:
    """Refuse what has no classes, or no bias to shift."""
    if config.task != "classification" or not config.biased:
        raise ConfigError(
            'training.label_skew = "logit-adjustment" shifts the biases of a classifier, and this model has none; '
            'use "ignored"'
        )


def log_shares(labels: Tensor, classes: int) -> Tensor:
    """log p of the classes among the labels, less the mean over the classes.

    >>> log_shares(torch.tensor([0, 0, 1, 1]), classes=2).tolist()
    [0.0, 0.0]
    """
    shares = (torch.bincount(labels, minlength=classes) + ABSENT).log()
    return shares - shares.mean()


def with_own_shares(config: ModelConfig, task: Task, labels: Tensor) -> Task:
    """The task with the shares of the device's labels in the biases of its exits."""
    check_adjustable(config)
    shift = log_shares(labels, config.outputs)
    return replace(
        task,
        weights={
            name: tensor + shift if name.startswith("exits.") and name.endswith(".linear.bias") else tensor
            for name, tensor in task.weights.items()
        },
    )
