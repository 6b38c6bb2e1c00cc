"""What came out of a run, in numbers: accuracy and F1, how busy the fleet was, means over seeds.

All shares are fractions in [0, 1]; a table may print them as percentages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from cos2p.errors import ConfigError, DataError, TrainingError

Interval = tuple[float, float]
"""(start, end) of a task on a device, in seconds of the run's clock."""


class ConfusionCounter:
    """Counts right and wrong predictions batch by batch: 3 integers per class, however many samples.

    >>> counter = ConfusionCounter(classes=2)
    >>> counter.add(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]))
    >>> counter.result()["top1"]
    0.5

    Counters of parts of a data set add up to the counter of the whole: `a + b`.
    """

    def __init__(self, classes: int) -> None:
        if classes < 1:
            raise ConfigError(f"classes={classes}: a counter needs at least 1 class")
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

    def __add__(self, other: ConfusionCounter) -> ConfusionCounter:
        if self.classes != other.classes:
            raise ConfigError(f"counters of {self.classes} and {other.classes} classes cannot be added")
        total = ConfusionCounter(self.classes)
        total.samples = self.samples + other.samples
        total.top5_hits = self.top5_hits + other.top5_hits
        total._hits = self._hits + other._hits
        total._predicted = self._predicted + other._predicted
        total._actual = self._actual + other._actual
        return total

    def _count(self, classes_N: Tensor) -> Tensor:
        return torch.bincount(classes_N, minlength=self.classes).cpu()

    def _check(self, scores_NC: Tensor, labels_N: Tensor) -> None:
        if scores_NC.dim() != 2 or scores_NC.shape[1] != self.classes:
            raise DataError(f"scores of shape {tuple(scores_NC.shape)}: expected (samples, {self.classes})")
        if labels_N.shape != scores_NC.shape[:1] or labels_N.is_floating_point():
            raise DataError(
                f"labels of shape {tuple(labels_N.shape)} and type {labels_N.dtype}: "
                f"expected {len(scores_NC)} integers, one for each row of scores"
            )
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


def classification_metrics(scores_NC: Tensor, labels_N: Tensor) -> dict[str, float]:
    """`top1`, `top5` and `f1` of a whole set at once; see `ConfusionCounter.result`."""
    if scores_NC.dim() != 2:
        raise DataError(f"scores of shape {tuple(scores_NC.shape)}: expected (samples, classes)")
    counter = ConfusionCounter(scores_NC.shape[1])
    counter.add(scores_NC, labels_N)
    return counter.result()


def _rank(scores_NC: Tensor, labels_N: Tensor) -> Tensor:
    """How many classes come before the label's."""
    own_N1 = scores_NC.gather(1, labels_N[:, None])
    lower_NC = torch.arange(scores_NC.shape[1], device=scores_NC.device) < labels_N[:, None]
    return ((scores_NC > own_N1) | ((scores_NC == own_N1) & lower_NC)).sum(dim=1)


def busy_in(intervals: Iterable[Interval], start: float, end: float) -> float:
    """Seconds of `intervals` that fall between `start` and `end`. A device does one task at a time.

    >>> busy_in([(0.0, 4.0), (5.0, 9.0)], start=3.0, end=6.0)
    2.0
    """
    return math.fsum(max(0.0, min(last, end) - max(first, start)) for first, last in intervals)


def resource_utilisation(rounds: Sequence[Sequence[float]]) -> float:
    """The paper's RU: the mean over rounds of Σ busy / (clients · busiest), in [0, 1].

    `rounds[q][n]` is how many seconds client n was busy inside round q (`busy_in`). A round in which nobody
    was busy says nothing about balance and is left out; without any other round RU is 0.
    """
    shares = []
    for number, busy in enumerate(rounds):
        if any(not 0.0 <= seconds < math.inf for seconds in busy):
            raise ConfigError(f"round {number} has busy seconds {list(busy)}: each must be finite, 0 or above")
        if busiest := max(busy, default=0.0):
            shares.append(math.fsum(busy) / (len(busy) * busiest))
    return math.fsum(shares) / len(shares) if shares else 0.0


def busy_share(intervals: Iterable[Interval], n: int, wall: float) -> float:
    """Busy seconds of all `n` clients' intervals together over n · wall: 1 is a fleet that never waits.

    RU compares the clients of a round with each other and is 1 for an asynchronous run by construction;
    this compares them with the clock.
    """
    if n < 1:
        raise ConfigError(f"n={n}: a fleet has at least 1 client")
    return busy_in(intervals, 0.0, wall) / (n * wall) if wall > 0.0 else 0.0


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
    from scipy.special import stdtrit  # slow to import, seldom needed

    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / freedom)
    return mean, float(stdtrit(freedom, 0.975)) * deviation / math.sqrt(len(numbers))
