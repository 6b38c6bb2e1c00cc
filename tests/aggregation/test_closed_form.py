"""Classifiers in closed form: against scikit-learn's, and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from cos2p.aggregation.head_merge import HeadForm, closed_form
from cos2p.models.layout import Weights
from cos2p.training.statistics import packed


def statistics(x_ND: Tensor, labels: Tensor, classes: int) -> Weights:
    """What one device with these features would tell of depth 3."""
    unit = torch.nn.functional.normalize(x_ND, dim=1)
    return {
        "counts": torch.bincount(labels, minlength=classes).float(),
        "3.sums": torch.zeros(classes, x_ND.shape[1]).index_add_(0, labels, unit),
        "3.length": torch.linalg.vector_norm(x_ND, dim=1).sum(),
        "3.moments": packed(unit.T @ unit),
    }


def samples(classes: int = 4, dim: int = 6, count: int = 400) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    centres = 2 * torch.randn(classes, dim, generator=rng)
    stretch = torch.randn(dim, dim, generator=rng)
    labels = torch.randint(classes, (count,), generator=rng)
    return centres[labels] + torch.randn(count, dim, generator=rng) @ stretch, labels


def test_means_of_two_classes_by_hand() -> None:
    x = torch.tensor([[2.0, 0.0], [2.0, 0.0], [0.0, 2.0]])
    weight, bias = closed_form(statistics(x, torch.tensor([0, 0, 1]), 2), 3, "means", 0.3)
    # At a class's mean, of length one, its own logit leads by 3·ln 2; features are two long.
    assert torch.allclose(weight, 3 * math.log(2) / 2 * torch.eye(2))
    assert not bias.any()


def test_the_discriminant_decides_as_scikit_learn_does() -> None:
    x, labels = samples()
    unit = torch.nn.functional.normalize(x, dim=1)
    weight, bias = closed_form(statistics(unit, labels, 4), 3, "discriminant", 1e-9)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(unit.numpy(), labels.numpy())
    ours = (unit @ weight.T + bias).double()
    theirs = torch.tensor(unit.numpy() @ reference.coef_.T + reference.intercept_ - np.log(reference.priors_))
    assert torch.equal(ours.argmax(1), theirs.argmax(1))
    ratio = (ours[:, 0] - ours[:, 1]) / (theirs[:, 0] - theirs[:, 1])
    assert float(ratio.std() / ratio.mean()) < 1e-3  # the same logits but for one scale


@pytest.mark.parametrize("form", ["means", "discriminant"])
def test_the_mean_lead_at_the_class_means_is_three_log_classes(form: HeadForm) -> None:
    x, labels = samples()
    sums = statistics(x, labels, 4)
    weight, bias = closed_form(sums, 3, form, 0.3)
    length = float(sums["3.length"]) / len(x)
    logits = length * (sums["3.sums"] / sums["counts"][:, None]) @ weight.T + bias
    lead = (logits.diagonal()[:, None] - logits).sum() / 12
    assert float(lead) == pytest.approx(3 * math.log(4), rel=1e-4)


def test_a_class_that_nobody_has_is_not_predicted() -> None:
    x, labels = samples()
    weight, bias = closed_form(statistics(x, labels, 5), 3, "discriminant", 0.3)
    assert bool(torch.isfinite(weight).all())
    assert not (x @ weight.T + bias).argmax(1).eq(4).any()


def test_without_a_bias_the_discriminant_still_tells_classes_apart() -> None:
    x, labels = samples()
    weight, bias = closed_form(statistics(x, labels, 4), 3, "discriminant", 0.3, biased=False)
    assert not bias.any()
    assert (x @ weight.T).argmax(1).eq(labels).float().mean() > 0.8


def test_one_sample_alone_gives_finite_weights() -> None:
    for form in ("means", "discriminant"):
        weight, bias = closed_form(statistics(torch.ones(1, 4), torch.tensor([1]), 3), 3, form, 0.3)  # type: ignore[arg-type]
        assert bool(torch.isfinite(weight).all())
        assert bool(torch.isfinite(bias).all())


def test_no_scalar_of_a_head_is_large_and_a_shortened_one_decides_the_same() -> None:
    x, labels = samples()
    sums = statistics(x, labels, 4)
    weight, bias = closed_form(sums, 3, "discriminant", 0.3)
    tiny = sums | {"3.length": sums["3.length"] * 1e-4}
    shorter, less = closed_form(tiny, 3, "discriminant", 0.3)
    assert float(shorter.abs().max()) == pytest.approx(8.0)
    assert torch.allclose(shorter / less.abs().max(), 1e4 * weight / bias.abs().max(), rtol=1e-4)
