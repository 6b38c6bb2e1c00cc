"""How good a trained model is on labelled data: accuracy, F1, each class, what is taken for what; perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.data.examples import IGNORE, Examples
from cos2p.errors import DataError
from cos2p.inference.trained import Trained

Told = Callable[[int, int], None]
"""Is told how many samples of how many are done."""


@dataclass(frozen=True)
class ClassScore:
    """One class; shares in [0, 1]."""

    name: str
    samples: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Judgement:
    samples: int
    accuracy: float
    """Of a language model: of next tokens."""
    loss: float
    """Mean cross entropy in nats, of a language model for each token."""
    f1: float | None = None
    """Plain mean over the classes that occur among labels or predictions; None for a language model."""
    top5: float | None = None
    """None below six classes, where it says nothing."""
    chance: float | None = None
    majority: float | None = None
    classes: tuple[ClassScore, ...] = ()
    confusion: tuple[tuple[int, ...], ...] = field(default=(), repr=False)
    """Row i, column j: samples of class i that were taken for class j."""

    @property
    def perplexity(self) -> float | None:
        return math.exp(min(self.loss, 700.0)) if self.f1 is None else None

    def to_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("samples", "accuracy", "loss", "perplexity")}
        if self.f1 is None:
            return plain
        return plain | {
            **{name: getattr(self, name) for name in ("f1", "top5", "chance", "majority")},
            "classes": [vars(score) for score in self.classes],
            "confusion": [list(row) for row in self.confusion],
        }


def judge(trained: Trained, examples: Examples, tell: Told = lambda done, all: None, batch: int = 128) -> Judgement:
    """Scores of the model on the samples, whose labels count the model's classes."""
    if len(examples) == 0:
        raise DataError("there are no samples to evaluate on")
    outputs = trained.config.outputs
    confusion = torch.zeros(outputs if not trained.generates else 0, outputs, dtype=torch.int64)
    loss, right, right5, count, done = 0.0, 0, 0, 0, 0
    for rows in examples.batches(batch):
        inputs, labels = examples.batch(rows, trained.data.normalize)
        scores_NC, labels_N = _flat(trained.outputs(inputs), labels)
        loss += float(F.cross_entropy(scores_NC, labels_N, reduction="sum"))
        predicted_N = scores_NC.argmax(1)
        right += int((predicted_N == labels_N).sum())
        count += len(labels_N)
        if not trained.generates:
            right5 += int((scores_NC.topk(min(5, outputs), 1).indices == labels_N[:, None]).any(1).sum())
            confusion += torch.bincount(labels_N * outputs + predicted_N, minlength=outputs**2).view(outputs, outputs)
        done += len(rows)
        tell(done, len(examples))
    if trained.generates:
        return Judgement(len(examples), right / count, loss / count)
    return Judgement(
        samples=count,
        accuracy=right / count,
        loss=loss / count,
        top5=right5 / count if outputs > 5 else None,
        chance=1 / outputs,
        majority=float(confusion.sum(1).max()) / count,
        **_by_class(confusion, trained.classes),
    )


def _flat(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of a language model every token with a successor is a sample."""
    if outputs.ndim == 2:
        return outputs, labels
    counted = labels.flatten() != IGNORE
    return outputs.flatten(0, 1)[counted], labels.flatten()[counted]


def _by_class(confusion: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
    hits, actual, predicted = confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist()
    scores = tuple(
        ClassScore(
            names[i] if i < len(names) else str(i),
            actual[i],
            hits[i] / predicted[i] if predicted[i] else 0.0,
            hits[i] / actual[i] if actual[i] else 0.0,
            2 * hits[i] / (actual[i] + predicted[i]) if actual[i] + predicted[i] else 0.0,
        )
        for i in range(len(hits))
    )
    occurring = [score.f1 for i, score in enumerate(scores) if actual[i] + predicted[i]]
    rows = tuple(tuple(row) for row in confusion.tolist())
    return {"classes": scores, "confusion": rows, "f1": sum(occurring) / len(occurring)}
