from __future__ import annotations

from dataclasses import replace
from statistics import median_low

import pytest
import torch

from cos2p.aggregation.merge import Contribution
from cos2p.aggregation.robust.bound import DEVICES, MIN_DEVICES, RECENT, NormBound
from cos2p.models.spec import SubmodelSpec
from cos2p.server.update_reader import root_mean_square
from cos2p.submodel.slicing import trained_shapes
from tests.tiny import VIT

FULL = SubmodelSpec.full(VIT)


def update(client: str, value: float) -> Contribution:
    """The same number everywhere."""
    delta = {name: torch.full(shape, value) for name, shape in trained_shapes(VIT, FULL).items()}
    return Contribution(client, FULL, delta, 1, 0, {})


def known(*values: float, factor: float = 2.0) -> NormBound:
    bound = NormBound(VIT, factor)
    for number, value in enumerate(values):
        bound.apply(update(f"pi-{number}", value))
    return bound


def test_a_long_update_is_shortened_to_a_multiple_of_the_usual() -> None:
    shortened = known(0.01, 0.02, 0.03).apply(update("liar", 9.9))
    assert root_mean_square(shortened.delta) == pytest.approx(0.04)


def test_what_is_not_too_long_keeps_its_very_tensors() -> None:
    item = update("pi-9", 0.039)
    assert known(0.01, 0.02, 0.03).apply(item) is item


def test_two_voices_are_no_fleet() -> None:
    item = update("liar", 9.9)
    assert known(0.01, 0.02).apply(item) is item


def test_only_the_segments_that_are_too_long_are_shortened() -> None:
    """Unit 3 of block 1 alone leaps: its rows of fc1 and its column of fc2, nothing else."""
    item = update("liar", 0.02)
    delta = {name: tensor.clone() for name, tensor in item.delta.items()}
    delta["blocks.1.fc1.weight"][3] = 5.0
    delta["blocks.1.fc1.bias"][3] = 5.0
    delta["blocks.1.fc2.weight"][:, 3] = 5.0
    bounded = known(0.02, 0.02, 0.02).apply(replace(item, delta=delta)).delta
    assert bounded["blocks.1.fc1.weight"][3].tolist() == pytest.approx([0.04] * 16)
    assert bounded["blocks.1.fc2.weight"][:, 3].tolist() == pytest.approx([0.04] * 16)
    assert torch.equal(bounded["blocks.1.fc1.weight"][4], item.delta["blocks.1.fc1.weight"][4])
    assert bounded["blocks.0.fc1.weight"] is delta["blocks.0.fc1.weight"]


def test_a_liar_does_not_raise_the_measure_by_lying_again() -> None:
    bound = known(0.01, 0.01, 0.01, 0.01)
    for _ in range(50):
        bound.apply(update("liar", 9.9))
    assert bound.usual("heads") == pytest.approx(0.01)
    assert root_mean_square(bound.apply(update("liar", 9.9)).delta) == pytest.approx(0.02)


def test_the_measure_follows_the_fleet() -> None:
    bound = known(0.1, 0.1, 0.1)
    for _ in range(3):
        for number in range(3):
            bound.apply(update(f"pi-{number}", 0.01))
    assert bound.usual("units") == pytest.approx(0.01)


def test_what_nobody_trains_is_no_measure() -> None:
    assert known(0.0, 0.0, 0.0).usual("heads") is None


def test_it_remembers_a_bounded_number_of_devices_and_comes_back_from_a_checkpoint() -> None:
    bound = NormBound(VIT, 2.0)
    small = update("x", 0.01)
    for number in range(DEVICES + 5):
        bound.learn([replace(small, client=f"pi-{number}", delta={"embed.cls": torch.ones(1, 1, 16)})])
    assert bound.device_count == DEVICES
    again = NormBound(VIT, 2.0)
    again.load_state(bound.state())
    assert again.state() == bound.state()


def test_the_usual_is_the_median_of_the_devices_medians_however_often_they_answer() -> None:
    bound, reported = NormBound(VIT, 1e9), {}  # type: NormBound, dict[str, list[float]]
    for number, value in enumerate((3.0, 1.0, 2.0, 5.0, 4.0, 2.5, 0.5, 9.0, 1.5, 7.0)):
        client = f"pi-{number % 4}"
        reported[client] = [*reported.get(client, []), value][-RECENT:]
        bound.apply(update(client, value))
        if len(reported) >= MIN_DEVICES:
            assert bound.usual("units") == pytest.approx(median_low(median_low(own) for own in reported.values()))
    again = NormBound(VIT, 1e9)
    again.load_state(bound.state())
    assert again.usual("units") == bound.usual("units")


@pytest.mark.parametrize("value", [0.0, 1e-30, 0.0399, 0.03999, 0.039999, 0.04001, 9.9, 1e15])
def test_only_what_is_above_the_bound_is_changed(value: float) -> None:
    item = update("pi-9", value)
    assert (known(0.01, 0.02, 0.03).apply(item) is item) == (value <= 0.04)


def test_a_kind_that_fewer_than_three_devices_send_is_measured_by_the_others() -> None:
    """One of three devices has the embeddings: what it sends there was not bounded before."""
    bound = NormBound(VIT, 2.0)
    for number, value in enumerate((0.01, 0.02, 0.03)):
        item = update(f"pi-{number}", value)
        bound.apply(replace(item, delta={n: t for n, t in item.delta.items() if not n.startswith("embed")}))
    delta = update("malicious", 0.02).delta
    far = {name: torch.full_like(tensor, 9.9) if name.startswith("embed") else tensor for name, tensor in delta.items()}
    shortened = bound.apply(replace(update("malicious", 0.02), delta=far)).delta
    assert max(float(tensor.abs().max()) for tensor in shortened.values()) < 0.05


def test_one_with_more_samples_may_come_further() -> None:
    bound = known(0.01, 0.01, 0.01)
    assert bound.excess(update("malicious", 0.1)) == pytest.approx(10.0)
    assert bound.excess(replace(update("large", 0.1), samples=20)) == pytest.approx(0.5)
