"""Statistics of features from devices of which one is dishonest, and from honest ones that differ."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cos2p.aggregation.head_merge import closed_form
from cos2p.aggregation.robust.statistics import StatisticsFilter
from cos2p.models.layout import Weights
from cos2p.seeding import torch_rng
from cos2p.training.statistics import class_sums, unpacked

CLASSES, DIM, DEVICES, EACH = 10, 16, 8, 60


def samples(rng: torch.Generator, count: int, centres: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """Features of one device, whose classes are drawn from a Dirichlet distribution of its own."""
    gamma = torch.distributions.Gamma(alpha, 1.0)
    torch.manual_seed(int(torch.randint(2**31, (1,), generator=rng)))
    shares = gamma.sample(torch.Size([CLASSES])).clamp_min(1e-6)
    labels = torch.multinomial(shares, count, replacement=True, generator=rng)
    shift = 0.1 * torch.randn(DIM, generator=rng)  # a device's own camera
    return centres[labels] + shift + 0.6 * torch.randn(count, DIM, generator=rng), labels


def fleet(seed: int, alpha: float = 1.5, sizes: tuple[int, ...] = (EACH,) * DEVICES) -> tuple[list[Weights], Tensor]:
    rng = torch_rng(seed, "statistics")
    centres = torch.randn(CLASSES, DIM, generator=rng)
    return [class_sums(*samples(rng, size, centres, alpha), CLASSES) for size in sizes], centres


def accuracy(reported: list[Weights], centres: Tensor) -> float:
    total = {name: torch.stack([extras[name] for extras in reported]).sum(0) for name in reported[0]}
    weight, bias = closed_form(total, 1, "discriminant")
    rng = torch_rng(99, "test")
    labels = torch.randint(CLASSES, (2000,), generator=rng)
    features = centres[labels] + 0.6 * torch.randn(2000, DIM, generator=rng)
    return float(((features @ weight.T + bias).argmax(1) == labels).float().mean())


def moved_on(extras: Weights, factor: int = 10) -> Weights:
    """So many times the samples, each class under the name of the next."""
    found = {name: tensor * factor for name, tensor in extras.items()}
    return found | {name: found[name].roll(1, 0) for name in ("counts", "1.sums")}


def bounded(reported: list[Weights], at_once: int = 99) -> list[Weights]:
    """What counts, with so many devices in each round."""
    own, found = StatisticsFilter(), []
    for begin in range(0, len(reported), at_once):
        part = {f"device-{begin + n}": extras for n, extras in enumerate(reported[begin : begin + at_once])}
        found += [each.extras for each in own.bound(part).values() if each.counts]
    return found


@pytest.mark.parametrize("factor", [1, 10])
@pytest.mark.parametrize("at_once", [99, 3])
def test_one_that_moves_its_classes_on_does_not_move_the_exit(factor: int, at_once: int) -> None:
    for seed in range(3):
        reported, centres = fleet(seed)
        honest = accuracy(reported, centres)
        attacked = [*reported[:-1], moved_on(reported[-1], factor)]
        if factor > 1:
            assert accuracy(attacked, centres) < honest - 0.3  # what it does to those who believe it
        assert accuracy(bounded(attacked, at_once), centres) > honest - 0.03


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), alpha=st.sampled_from([0.1, 0.5, 1.5, 100.0]))
def test_honest_devices_that_lack_classes_or_have_few_samples_all_count(seed: int, alpha: float) -> None:
    reported, centres = fleet(seed, alpha, sizes=(5, 10, 20, 60, 60, 100, 200, 600))
    found = bounded(reported)
    assert len(found) == len(reported)
    assert accuracy(found, centres) > accuracy(reported, centres) - 0.05


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), devices=st.integers(1, 12))
def test_moments_stay_those_of_vectors(seed: int, devices: int) -> None:
    """Less the class means nothing has less than no scatter, whatever was bounded."""
    reported, _ = fleet(seed, 0.5, sizes=(EACH,) * devices)
    for extras in bounded([moved_on(reported[0]), *reported[1:]]):
        sums, counts = extras["1.sums"].double(), extras["counts"].double()
        inside = unpacked(extras["1.moments"].double(), DIM) - (sums / counts.clamp_min(1e-9)[:, None]).T @ sums
        assert float(torch.linalg.eigvalsh(inside).min()) > -1e-4 * float(counts.sum())


def test_where_all_are_alike_the_very_tensors_count() -> None:
    labels = torch.arange(CLASSES).repeat(6)
    rng = torch_rng(0, "alike")
    centres = torch.randn(CLASSES, DIM, generator=rng)
    reported = [
        class_sums(centres[labels] + 0.3 * torch.randn(60, DIM, generator=rng), labels, CLASSES) for _ in range(8)
    ]
    for extras, found in zip(reported, bounded(reported), strict=True):
        assert all(torch.equal(extras[name], found[name]) for name in extras)


def test_two_devices_are_not_compared() -> None:
    reported, _ = fleet(0)
    pair = [reported[0], moved_on(reported[1])]
    assert all(found is extras for extras, found in zip(pair, bounded(pair), strict=True))
