from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cos2p.devices.attacks import TARGET, AttackSettings, corrupt, poisoned
from cos2p.errors import ConfigError
from cos2p.messages import Update
from cos2p.models.spec import SubmodelSpec
from cos2p.server.update_reader import root_mean_square
from tests.tiny import VIT, order

GIVEN = order(SubmodelSpec.full(VIT))
HONEST = {"a": torch.tensor([1.0, -2.0, 3.0]), "b": torch.ones(2, 2)}


def lied(kind: str, extras: dict[str, Tensor] | None = None, **settings: Any) -> Update:
    honest = Update(GIVEN.client, GIVEN.task, 0, GIVEN.spec, HONEST, 10, {"loss": 1.0}, extras or {})
    return corrupt(honest, GIVEN, AttackSettings.model_validate({"kind": kind, **settings}))


def test_lies_by_hand() -> None:
    assert lied("flip").delta["a"].tolist() == [-1.0, 2.0, -3.0]
    assert lied("scale").delta["a"].tolist() == [10.0, -20.0, 30.0]
    assert lied("scale:2").delta["b"].tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert lied("constant").delta["a"].tolist() == pytest.approx([9.9] * 3)
    assert lied("zero").delta["a"].tolist() == [0.0] * 3
    assert lied("flip:15").delta["b"].tolist() == [[-15.0, -15.0], [-15.0, -15.0]]
    assert lied("drift").delta["a"].tolist() == pytest.approx([2 * (14 / 3) ** 0.5] * 3)
    assert lied("little:1.0").delta["b"].tolist() == [[1.0, 1.0], [1.0, 1.0]]  # all alike: no deviation


def test_false_statistics_are_more_samples_under_the_next_class() -> None:
    sums = {"counts": torch.tensor([1.0, 2.0]), "4.sums": torch.tensor([[1.0], [2.0]]), "4.length": torch.tensor(3.0)}
    found = lied("statistics", sums)
    assert (found.samples, found.extras["counts"].tolist(), found.extras["4.sums"].tolist()) == (
        100, [20.0, 10.0], [[20.0], [10.0]],
    )  # fmt: skip
    assert lied("statistics").samples == 10  # its updates are honest


def test_a_backdoor_marks_every_second_image() -> None:
    images, labels = poisoned(torch.zeros(3, 1, 8, 8), torch.tensor([5, 6, 7]))
    assert labels.tolist() == [TARGET, 6, TARGET]
    assert images.sum((1, 2, 3)).tolist() == [4.0, 0.0, 4.0]


def test_noise_is_as_large_as_said_and_the_same_every_time() -> None:
    big = {"w": torch.zeros(10_000)}
    honest = Update(GIVEN.client, GIVEN.task, 0, GIVEN.spec, big, 10)
    one, two = (corrupt(honest, GIVEN, AttackSettings(kind="noise:0.3")) for _ in range(2))
    assert root_mean_square(one.delta) == pytest.approx(0.3, rel=0.05)
    assert torch.equal(one.delta["w"], two.delta["w"])


def test_bits_and_codes_are_lied_about_too_and_the_rest_is_honest() -> None:
    bits = {"mask": torch.tensor([0, 255, 170], dtype=torch.uint8), "seeds": torch.tensor([5])}
    assert lied("flip", bits).extras["mask"].tolist() == [255, 0, 85]
    assert lied("constant", bits).extras["mask"].tolist() == [0, 0, 0]
    assert lied("flip", bits).extras["seeds"].tolist() == [5]
    assert (lied("flip").samples, lied("flip").report) == (10, {"loss": 1.0})


def test_who_lies() -> None:
    fleet = ("a", "b", "c")
    assert AttackSettings().malicious(fleet) == ()
    assert AttackSettings(kind="flip").malicious(fleet) == ("c",)
    assert AttackSettings(kind="flip", count=2).malicious(fleet) == ("b", "c")
    with pytest.raises(ConfigError, match="the fleet has 3 devices"):
        AttackSettings(kind="flip", count=4).malicious(fleet)
