from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, top_k_accuracy_score
from torch import Tensor

from cos2p.errors import DataError, TrainingError
from cos2p.numerics.metrics import ConfusionCounter, mean_interval
from cos2p.seeding import torch_rng


def classification_metrics(scores: Tensor, labels: Tensor) -> dict[str, float]:
    counter = ConfusionCounter(scores.shape[-1])
    counter.add(scores, labels)
    return counter.result()


def random_batch(seed: int, samples: int, classes: int) -> tuple[Tensor, Tensor]:
    rng = torch_rng(seed, "metrics test")
    labels = torch.randint(classes, (samples,), generator=rng)
    scores = torch.randn(samples, classes, generator=rng)
    scores[torch.arange(samples), labels] += 1.0  # better than chance, so that the numbers differ
    return scores, labels


class TestClassificationMetrics:
    def test_by_hand(self) -> None:
        scores = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
        labels = torch.tensor([0, 1, 1, 2])
        # predictions 0 1 0 2; F1: class 0 2·1/(2+1), class 1 2·1/(1+2), class 2 1
        assert classification_metrics(scores, labels) == pytest.approx({"top1": 0.75, "f1": 7 / 9})

    @settings(max_examples=50)
    @given(seed=st.integers(0, 10**6), samples=st.integers(1, 40), classes=st.integers(2, 12))
    def test_equals_scikit_learn(self, seed: int, samples: int, classes: int) -> None:
        scores, labels = random_batch(seed, samples, classes)
        predicted, y = scores.argmax(1).numpy(), labels.numpy()
        expected = {
            "top1": accuracy_score(y, predicted),
            "f1": f1_score(y, predicted, average="macro", zero_division=0),
        }
        if classes > 5:  # of fewer, top-5 is everything
            expected["top5"] = top_k_accuracy_score(y, scores.numpy(), k=5, labels=np.arange(classes))
        assert classification_metrics(scores, labels) == pytest.approx(expected, abs=1e-12)

    def test_a_class_that_never_occurs_does_not_count(self) -> None:
        scores = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        assert classification_metrics(scores, torch.tensor([0, 1]))["f1"] == 1.0

    def test_a_class_that_is_only_predicted_counts_as_zero(self) -> None:
        scores = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        # class 0: 1, class 1 (missed): 0, class 2 (wrongly predicted): 0
        assert classification_metrics(scores, torch.tensor([0, 1]))["f1"] == pytest.approx(1 / 3)

    def test_equal_scores_go_to_the_lower_class(self) -> None:
        scores = torch.zeros(8, 8)
        metrics = classification_metrics(scores, torch.arange(8))
        assert metrics["top1"] == 1 / 8
        assert metrics["top5"] == 5 / 8

    def test_infinite_scores_are_ordinary(self) -> None:
        scores = torch.tensor([[-math.inf, 0.0], [math.inf, 0.0]])
        assert classification_metrics(scores, torch.tensor([1, 0]))["top1"] == 1.0

    def test_half_precision(self) -> None:
        scores, labels = random_batch(3, 50, 7)
        assert classification_metrics(scores.bfloat16(), labels)["top1"] > 0.2

    @pytest.mark.parametrize(
        ("scores", "labels", "error", "message"),
        [
            (torch.zeros(2, 3), torch.tensor([0, 3]), DataError, "from 0 to 3.*must be in 0..2"),
            (torch.zeros(2, 3), torch.tensor([-100, 1]), DataError, "from -100 to 1"),
            (torch.zeros(0, 3), torch.zeros(0).long(), DataError, "no sample"),
            (torch.tensor([[0.0, math.nan], [0.0, 1.0]]), torch.tensor([0, 1]), TrainingError, "1 of 2 samples"),
        ],
    )
    def test_bad_input(self, scores: Tensor, labels: Tensor, error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            classification_metrics(scores, labels)


class TestConfusionCounter:
    @settings(max_examples=30)
    @given(seed=st.integers(0, 10**6), cuts=st.lists(st.integers(0, 30), max_size=4))
    def test_batches_equal_the_whole(self, seed: int, cuts: list[int]) -> None:
        scores, labels = random_batch(seed, 30, 6)
        edges = sorted({0, 30, *cuts})
        one = ConfusionCounter(6)
        for start, end in pairwise(edges):
            one.add(scores[start:end], labels[start:end])
        assert one.result() == classification_metrics(scores, labels)
        assert one.samples == 30

    def test_a_refused_batch_changes_nothing(self) -> None:
        counter = ConfusionCounter(2)
        with pytest.raises(DataError):
            counter.add(torch.zeros(1, 2), torch.tensor([2]))
        assert counter.samples == 0

    def test_an_empty_batch_is_no_batch(self) -> None:
        counter = ConfusionCounter(2)
        counter.add(torch.zeros(0, 2), torch.zeros(0).long())
        assert counter.samples == 0


class TestMeanInterval:
    def test_by_hand(self) -> None:
        mean, half = mean_interval([1.0, 2.0, 3.0])
        assert mean == 2.0
        assert half == pytest.approx(4.302653 / math.sqrt(3))  # t(.975, 2) · s / √3, s = 1

    @given(st.lists(st.floats(-100, 100), min_size=2, max_size=8))
    def test_equals_scipy(self, values: list[float]) -> None:
        mean, half = mean_interval(values)
        spread = stats.sem(values)
        expected: Any = 0.0 if spread == 0 else stats.t.interval(0.95, len(values) - 1, scale=spread)[1]
        assert mean == pytest.approx(np.mean(values), abs=1e-9)
        assert half == pytest.approx(expected, rel=1e-6, abs=1e-9)

    def test_one_seed_has_no_interval(self) -> None:
        mean, half = mean_interval([0.7])
        assert mean == 0.7
        assert math.isnan(half)

    def test_nothing(self) -> None:
        with pytest.raises(DataError, match="no values"):
            mean_interval([])
