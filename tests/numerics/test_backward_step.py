from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cos2p import model_config
from cos2p.errors import TrainingError
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics.backward_step import stepping_in_backward
from cos2p.numerics.optimizers import make_optimizer
from cos2p.seeding import torch_rng
from cos2p.testing.gpu import peak_allocated

OPTIMIZERS = ["adan", "adamw", "sgd", "adan-8bit", "adamw-8bit"]


def trained(name: str, optimizer_name: str, step: Callable[[torch.optim.Optimizer, Tensor], None]) -> list[Tensor]:
    """Three steps of a small transformer with two exits and two groups."""
    config = model_config(name)
    spec = SubmodelSpec(0, SubmodelSpec.full(config).window, (1, config.depth))
    net = ElasticTransformer(config, spec).load(init_weights(config, seed=0))
    parameters = list(net.parameters())
    groups = [{"params": parameters[:5], "lr": 1e-2}, {"params": parameters[5:]}]
    optimizer = make_optimizer(optimizer_name, groups, lr=1e-3, weight_decay=0.1)
    rng = torch_rng(0, "backward step")
    for _ in range(3):
        shape = (4, config.channels, config.image, config.image) if config.family == "vit" else (4, config.tokens)
        inputs = torch.randn(shape, generator=rng)
        if config.family != "vit":
            inputs = torch.randint(1, config.vocab, shape, generator=rng)
        optimizer.zero_grad(set_to_none=True)
        step(optimizer, torch.stack([output.square().mean() for output in net(inputs)]).sum())
    return [p.detach().clone() for p in parameters]


def ordinary(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    loss.backward()
    optimizer.step()


def inside(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    with stepping_in_backward(optimizer):
        loss.backward()
    assert all(p.grad is None for group in optimizer.param_groups for p in group["params"])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", ["vit-nano", "bert-nano", "llama-nano"])  # llama's table is used twice
def test_the_bits_are_those_of_the_ordinary_step(name: str, optimizer: str) -> None:
    for one, other in zip(trained(name, optimizer, ordinary), trained(name, optimizer, inside), strict=True):
        assert torch.equal(one, other)


def test_gradients_are_never_there_together() -> None:
    net = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(8)))
    inputs, optimizer = torch.ones(1, 256), make_optimizer("sgd", net.parameters(), lr=0.1)

    def step(one: Callable[[torch.optim.Optimizer, Tensor], None]) -> None:
        optimizer.zero_grad()
        one(optimizer, net(inputs).sum())

    inside_bytes, ordinary_bytes = (peak_allocated(lambda one=one: step(one)) for one in (inside, ordinary))
    gradient = 256 * 256 * 4
    assert inside_bytes < 2 * gradient < 8 * gradient < ordinary_bytes


def test_outside_the_context_nothing_is_stepped() -> None:
    theta = torch.ones(3, requires_grad=True)
    optimizer = make_optimizer("sgd", [theta], lr=0.1)
    with stepping_in_backward(optimizer):
        theta.sum().backward()
    assert theta.tolist() == pytest.approx([0.9] * 3)
    theta.sum().backward()
    assert theta.tolist() == pytest.approx([0.9] * 3)
    assert theta.grad is not None


def test_gradients_of_an_earlier_pass_are_refused() -> None:
    theta = torch.ones(3, requires_grad=True)
    optimizer = make_optimizer("sgd", [theta], lr=0.1)
    theta.sum().backward()
    with pytest.raises(TrainingError, match=r"shape \(3,\) has a gradient already"), stepping_in_backward(optimizer):
        pass


def test_a_second_backward_is_refused_and_the_groups_are_whole_again() -> None:
    theta, other = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = make_optimizer("sgd", [theta, other], lr=0.1)
    with stepping_in_backward(optimizer):
        theta.sum().backward()
        with pytest.raises(TrainingError, match="a second backward reached"):
            theta.sum().backward()
    assert [len(group["params"]) for group in optimizer.param_groups] == [2]
