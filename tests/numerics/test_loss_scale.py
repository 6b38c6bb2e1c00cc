from __future__ import annotations

import pytest
import torch

from cos2p.errors import TrainingError
from cos2p.numerics.loss_scale import LEAST, PATIENCE, LossScale


def parameter(gradient: list[float]) -> torch.Tensor:
    made = torch.zeros(len(gradient), requires_grad=True)
    made.grad = torch.tensor(gradient)
    return made


def test_gradients_are_those_of_the_loss_itself() -> None:
    scale, x = LossScale(1024.0), torch.tensor([3.0], requires_grad=True)
    scale.up((x**2).sum()).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0 * 1024]
    assert scale.down([x])
    assert x.grad.tolist() == [6.0]


def test_gradients_that_overflow_are_not_used_and_the_factor_is_halved() -> None:
    scale = LossScale(8.0)
    assert not scale.down([parameter([1.0]), parameter([float("inf")])])
    assert not scale.down([parameter([float("nan")])])
    assert scale.factor == 2.0


def test_the_factor_grows_again() -> None:
    scale = LossScale(8.0)
    for _ in range(PATIENCE):
        assert scale.down([parameter([1.0])])
    assert scale.factor == 16.0


def test_when_no_factor_helps_it_says_so() -> None:
    scale = LossScale(2 * LEAST)
    scale.down([parameter([float("inf")])])
    with pytest.raises(TrainingError, match=r"training\.lr"):
        scale.down([parameter([float("inf")])])


def test_a_parameter_without_a_gradient_is_no_matter() -> None:
    assert LossScale().down([torch.zeros(2, requires_grad=True), torch.zeros(0, requires_grad=True)])
