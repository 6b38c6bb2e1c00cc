from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cos2p import model_config
from cos2p.errors import ConfigError
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.numerics import eight_bit
from cos2p.numerics.eight_bit import EIGHT_BIT_TEMPORARY_BYTES, SMALL
from cos2p.numerics.optimizers import STATE_BYTES, make_optimizer, state_bytes
from cos2p.seeding import torch_rng
from tests.numerics.temporaries import TemporaryBytes

NAMES = ["adan", "adamw"]


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]


def steps(name: str, thetas: list[Tensor], count: int, seed: int = 0, **options: Any) -> torch.optim.Optimizer:
    rng = torch_rng(seed, "eight bit")
    optimizer = make_optimizer(name, thetas, lr=0.01, **options)
    for _ in range(count):
        for theta in thetas:
            theta.grad = torch.randn(theta.shape, generator=rng, dtype=theta.dtype)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("name", NAMES)
def test_small_tensors_go_the_way_of_the_float_optimizer(name: str) -> None:
    coded, plain = ([torch.ones(60, 60, requires_grad=True)] for _ in range(2))
    steps(f"{name}-8bit", coded, 5, weight_decay=0.1)
    steps(name, plain, 5, weight_decay=0.1)
    torch.testing.assert_close(coded[0], plain[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_the_first_step_of_a_large_tensor_is_that_of_floats(name: str) -> None:
    coded, plain = ([torch.ones(70, 70, requires_grad=True)] for _ in range(2))
    steps(f"{name}-8bit", coded, 1)
    steps(name, plain, 1)
    torch.testing.assert_close(coded[0], plain[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_states_are_counted_to_the_byte(name: str) -> None:
    shapes = [(300, 333), (SMALL,), (SMALL - 1,), (7,)]
    optimizer = steps(f"{name}-8bit", [torch.ones(shape, requires_grad=True) for shape in shapes], 2)
    sizes = [300 * 333, SMALL, SMALL - 1, 7]
    assert sum(t.nbytes for t in state_tensors(optimizer)) == state_bytes(f"{name}-8bit", sizes)
    assert state_bytes(f"{name}-8bit", [300 * 333]) < 0.26 * state_bytes(name, [300 * 333])
    assert state_bytes(f"{name}-8bit", [7]) == state_bytes(name, [7]) == 7 * STATE_BYTES[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_minimum_of_a_quadratic_is_found_as_with_floats(name: str) -> None:
    """Σ a·(θ − 1)², with a over four decades and noise in the gradient: the way down and the end of it."""
    curvature = torch.logspace(-2, 2, 8192)

    def losses(optimizer_name: str) -> list[float]:
        rng, theta = torch_rng(3, "quadratic"), torch.zeros(8192, requires_grad=True)
        optimizer, seen = make_optimizer(optimizer_name, [theta], lr=0.01), []
        for step in range(300):
            optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / 300)
            error = theta.detach() - 1
            seen.append((curvature * error**2).sum().item())
            theta.grad = curvature * (2 * error + 0.1 * torch.randn(8192, generator=rng))
            optimizer.step()
        return seen

    floats, codes = losses(name), losses(f"{name}-8bit")
    assert codes[50] == pytest.approx(floats[50], rel=0.05)
    assert codes[-1] == pytest.approx(floats[-1], rel=0.1)
    assert codes[-1] < 0.01 * codes[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_a_transformer_learns_as_with_floats(name: str) -> None:
    config = model_config("vit-nano", dim=64, mlp=256, depth=2)
    rng = torch_rng(4, "transformer")
    images, labels = torch.randn(64, 1, 8, 8, generator=rng), torch.randint(0, config.classes, (64,), generator=rng)

    def losses(optimizer_name: str) -> list[float]:
        net = ElasticTransformer(config, SubmodelSpec.full(config)).load(init_weights(config, seed=0))
        optimizer, seen = make_optimizer(optimizer_name, net.parameters(), lr=2e-3), []
        for _ in range(60):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(net(images)[-1], labels)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        return seen

    floats, codes = losses(name), losses(f"{name}-8bit")
    assert sum(codes) == pytest.approx(sum(floats), rel=0.03)
    assert codes[-1] < 0.2 * codes[0]


@pytest.mark.parametrize("name", NAMES)
def test_no_temporary_is_as_large_as_the_tensor(name: str) -> None:
    theta = torch.ones(EIGHT_BIT_TEMPORARY_BYTES // 2, requires_grad=True)  # twice the bound
    optimizer = steps(f"{name}-8bit", [theta], 1)
    with TemporaryBytes() as temporaries:
        optimizer.step()
    assert 0 < temporaries.peak <= EIGHT_BIT_TEMPORARY_BYTES
    assert temporaries.alive == 0


@pytest.mark.parametrize("name", NAMES)
def test_neither_chunks_nor_runs_change_the_result(name: str) -> None:
    results = []
    for chunk in (eight_bit.CHUNK_SCALARS, eight_bit.CHUNK_SCALARS, 512):
        theta = torch.ones(5000, requires_grad=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(eight_bit, "CHUNK_SCALARS", chunk)
            steps(f"{name}-8bit", [theta], 4)
        results.append(theta.detach())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("name", NAMES)
def test_a_strided_tensor_and_a_double_keep_float_states(name: str) -> None:
    strided = torch.ones(70, 80).T.requires_grad_()
    double = torch.ones(5000, dtype=torch.float64, requires_grad=True)
    optimizer = steps(f"{name}-8bit", [strided, double], 2)
    assert {t.dtype for t in state_tensors(optimizer)} == {torch.float32, torch.float64}


def test_refusals() -> None:
    theta = torch.ones(5000, requires_grad=True)
    with pytest.raises(ConfigError, match="AdamW needs two values"):
        make_optimizer("adamw-8bit", [theta], lr=0.1, betas=(0.9, 0.9, 0.9))
    with pytest.raises(ConfigError, match=r"eps=0.0"):
        make_optimizer("adamw-8bit", [theta], lr=0.1, eps=0.0)
    with pytest.raises(ConfigError, match="three values"):
        make_optimizer("adan-8bit", [theta], lr=0.1, betas=(0.9, 0.9))
