from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cos2p.seeding import torch_rng
from cos2p.training.losses import cross_entropy, divergence, exits_loss, flatten


def logits(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch_rng(seed, "test logits")) * 3


def test_divergence_by_hand() -> None:
    """At t = 2 the student says (1/2, 1/2), the teacher (3/4, 1/4)."""
    student, teacher = torch.zeros(1, 2), torch.tensor([[2 * math.log(3), 0.0]])
    by_hand = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert divergence(student, teacher, 2.0).item() == pytest.approx(4 * by_hand, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_divergence_is_torchs(temperature: float) -> None:
    student, teacher = logits(5, 7), logits(5, 7, seed=1)
    log_s, log_t = (F.log_softmax(x / temperature, -1) for x in (student, teacher))
    expected = F.kl_div(log_t, log_s, reduction="batchmean", log_target=True) * temperature**2
    torch.testing.assert_close(divergence(student, teacher, temperature), expected)


def test_a_teacher_has_nothing_to_learn_from_itself() -> None:
    teacher = logits(4, 6).requires_grad_()
    value = divergence(teacher, teacher, 3.0)
    assert value.item() == 0.0
    (gradient,) = torch.autograd.grad(value, teacher)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-6, rtol=0)


def test_no_gradient_reaches_the_teacher() -> None:
    student, teacher = logits(4, 6).requires_grad_(), logits(4, 6, seed=1).requires_grad_()
    divergence(student, teacher, 3.0).backward()
    assert teacher.grad is None
    assert student.grad is not None
    assert student.grad.abs().sum() > 0


@given(st.integers(0, 1000), st.floats(0.5, 5))
def test_divergence_is_never_negative(seed: int, temperature: float) -> None:
    assert divergence(logits(3, 4, seed=seed), logits(3, 4, seed=seed + 1), temperature).item() >= -1e-6


def test_exits_loss_is_the_sum_of_the_papers_terms() -> None:
    outputs, labels = [logits(5, 4, seed=i) for i in range(3)], torch.tensor([0, 1, 2, 3, 0])
    expected = sum(0.7 * F.cross_entropy(output, labels) for output in outputs)
    expected += sum(0.3 * divergence(output, outputs[-1], 2.0) for output in outputs[:-1])
    torch.testing.assert_close(exits_loss(outputs, labels, 0.3, 2.0), expected)


def test_the_deepest_exit_learns_from_labels_alone() -> None:
    outputs, labels = [logits(5, 4, seed=i).requires_grad_() for i in range(2)], torch.tensor([0, 1, 2, 3, 0])
    (found,) = torch.autograd.grad(exits_loss(outputs, labels, 0.4), outputs[-1])
    (expected,) = torch.autograd.grad(0.6 * F.cross_entropy(outputs[-1], labels), outputs[-1])
    torch.testing.assert_close(found, expected)


def test_without_distillation_exits_learn_from_labels_alone() -> None:
    outputs, labels = [logits(5, 4, seed=i) for i in range(3)], torch.tensor([0, 1, 2, 3, 0])
    plain = exits_loss(outputs, labels, lambda2=0.0)
    torch.testing.assert_close(plain, sum(F.cross_entropy(output, labels) for output in outputs))
    assert exits_loss(outputs[-1:], labels, lambda2=0.0).item() == F.cross_entropy(outputs[-1], labels).item()


def test_one_exit_keeps_the_papers_factor() -> None:
    output, labels = logits(5, 4), torch.tensor([0, 1, 2, 3, 0])
    torch.testing.assert_close(exits_loss([output], labels, 0.25), 0.75 * F.cross_entropy(output, labels))


def test_flatten_leaves_classification_alone() -> None:
    output, labels = logits(5, 4), torch.arange(5)
    assert flatten(output, labels) == (output, labels)


def test_language_modelling_ignores_positions_without_a_target() -> None:
    outputs = [logits(2, 3, 5, seed=i).requires_grad_() for i in range(2)]
    labels = torch.tensor([[1, 2, -100], [4, -100, -100]])
    real = labels != -100
    rows = [output[real] for output in outputs]
    assert [list(flatten(output, labels)[0].shape) for output in outputs] == [[3, 5], [3, 5]]
    expected = 0.8 * sum(F.cross_entropy(row, labels[real]) for row in rows)
    expected += 0.2 * divergence(rows[0], rows[1], 3.0)
    loss = exits_loss(outputs, labels, 0.2, 3.0)
    torch.testing.assert_close(loss, expected)
    for gradient in torch.autograd.grad(loss, outputs):
        assert (gradient[~real] == 0).all()
        assert (gradient[real].abs().sum(-1) > 0).all()


def test_a_batch_without_any_target_costs_nothing() -> None:
    outputs = [logits(2, 3, 5, seed=i).requires_grad_() for i in range(2)]
    loss = exits_loss(outputs, torch.full((2, 3), -100), 0.2)
    assert loss.item() == 0.0
    assert all((gradient == 0).all() for gradient in torch.autograd.grad(loss, outputs))
    assert cross_entropy(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64)).item() == 0.0
