"""Scores of a model: accuracy and F1, loss and perplexity of a language model; means over seeds.

All shares are fractions in [0, 1]; a table may print them as percentages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from cos2p.errors import DataError, TrainingError


class ConfusionCounter:
    """Counts right and wrong predictions batch by batch: 3 integers per class, however many samples.

    >>> counter = ConfusionCounter(classes=2)
    >>> counter.add(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    >>> counter.result()["top1"]
    0.5
    """

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.samples = 0
        self.top5_hits = 0
        self._hits = torch.zeros(classes, dtype=torch.int64)
        self._predicted = torch.zeros(classes, dtype=torch.int64)
        self._actual = torch.zeros(classes, dtype=torch.int64)

    def add(self, scores_NC: Tensor, labels_N: Tensor) -> None:
        """Count a batch. Scores may be logits or probabilities; of equal scores the lower class comes first."""
        scores_NC, labels_N = scores_NC.detach(), labels_N.detach().to(scores_NC.device)
        self._check(scores_NC, labels_N)
        if not len(labels_N):
            return
        predicted_N = scores_NC.argmax(dim=1)
        self.samples += len(labels_N)
        self.top5_hits += int((_rank(scores_NC, labels_N) < min(5, self.classes)).sum())
        self._hits += self._count(labels_N[predicted_N == labels_N])
        self._predicted += self._count(predicted_N)
        self._actual += self._count(labels_N)

    def result(self) -> dict[str, float]:
        """`top1`, `top5` and `f1`, all in [0, 1]; no `top5` of five classes or fewer, where it would always be 1.

        F1 is the plain mean over the classes that occur among the labels or the predictions, as
        scikit-learn's `f1_score(average="macro", zero_division=0)` has it.
        """
        if not self.samples:
            raise DataError("no sample was counted; an evaluation needs at least one")
        occurrences = self._predicted + self._actual
        present = occurrences > 0
        f1 = 2.0 * self._hits[present].double() / occurrences[present].double()
        top5 = {"top5": self.top5_hits / self.samples} if self.classes > 5 else {}
        return {"top1": int(self._hits.sum()) / self.samples, **top5, "f1": float(f1.mean())}

    def by_class(self) -> dict[str, list[int]]:
        """For each class its `samples`, how many were named `right`, and how often it was `named` at all."""
        found = {"samples": self._actual, "right": self._hits, "named": self._predicted}
        return {name: counts.tolist() for name, counts in found.items()}

    def _count(self, classes_N: Tensor) -> Tensor:
        return torch.bincount(classes_N, minlength=self.classes).cpu()

    def _check(self, scores_NC: Tensor, labels_N: Tensor) -> None:
        if len(labels_N) and not 0 <= int(labels_N.min()) <= int(labels_N.max()) < self.classes:
            raise DataError(
                f"labels from {int(labels_N.min())} to {int(labels_N.max())}: "
                f"with {self.classes} classes they must be in 0..{self.classes - 1}"
            )
        broken = int(scores_NC.isnan().any(dim=1).sum())
        if broken:
            raise TrainingError(
                f"the model's scores are not a number for {broken} of {len(scores_NC)} samples; "
                "its weights have diverged, try a lower learning rate"
            )


def _rank(scores_NC: Tensor, labels_N: Tensor) -> Tensor:
    """How many classes come before the label's."""
    own_N1 = scores_NC.gather(1, labels_N[:, None])
    lower_NC = torch.arange(scores_NC.shape[1], device=scores_NC.device) < labels_N[:, None]
    return ((scores_NC > own_N1) | ((scores_NC == own_N1) & lower_NC)).sum(dim=1)


def mean_interval(values: Iterable[float]) -> tuple[float, float]:
    """(mean, half width of its 95 % interval) over seeds, by Student's t.

    One value has no interval: its half width is not a number.
    """
    numbers = [float(value) for value in values]
    if not numbers:
        raise DataError("no values to average; at least one run is needed")
    mean = math.fsum(numbers) / len(numbers)
    freedom = len(numbers) - 1
    if not freedom:
        return mean, math.nan
    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / freedom)
    return mean, student_quantile(0.975, freedom) * deviation / math.sqrt(len(numbers))


def student_quantile(share: float, freedom: int) -> float:
    """The value below which this share, above one half, of Student's t with `freedom` degrees lies.

    >>> round(student_quantile(0.975, 2), 4), round(student_quantile(0.975, 30), 4)
    (4.3027, 2.0423)
    """
    low, high = 0.0, 1.0
    while _student_share(high, freedom) < share:
        low, high = high, 2 * high
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _student_share(middle, freedom) < share else (low, middle)
    return high


def _student_share(t: float, freedom: int) -> float:
    """The distribution function for whole degrees of freedom, a finite sum (Abramowitz and Stegun 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle), math.cos(angle)) if odd else (1.0, 1.0)
    for k in range(2, freedom - 1, 2):
        term *= square * (k / (k + 1) if odd else (k - 1) / k)
        total += term
    if odd:
        inside = 2 / math.pi * (angle + (math.sin(angle) * total if freedom > 1 else 0.0))
    else:
        inside = math.sin(angle) * total
    return 0.5 + inside / 2


WORST = 1e12
"""Perplexities are counted up to here: a model that has diverged has one that no number holds."""


def perplexity(loss: float) -> float:
    """e to the mean loss per token: among how many equally likely tokens the model hesitates.

    >>> round(perplexity(math.log(8)), 6), perplexity(1e6)
    (8.0, 1000000000000.0)
    """
    return math.exp(loss) if loss < math.log(WORST) else WORST


class LikelihoodCounter:
    """Adds up the loss of every token that counts, batch by batch."""

    def __init__(self) -> None:
        self.tokens = 0
        self.loss = 0.0

    def add(self, scores_NC: Tensor, labels_N: Tensor) -> None:
        loss = float(F.cross_entropy(scores_NC.detach().float(), labels_N, reduction="sum").item())
        if math.isnan(loss):
            raise TrainingError("the model's scores are not a number; its weights have diverged, lower training.lr")
        self.loss += loss
        self.tokens += len(labels_N)

    def result(self) -> dict[str, float]:
        """`loss` in nats, the mean over tokens, and `perplexity`."""
        if not self.tokens:
            raise DataError("no token was counted; a language model is evaluated by at least one")
        mean = self.loss / self.tokens
        return {"loss": mean, "perplexity": perplexity(mean)}
