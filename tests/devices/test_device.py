from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from cos2p.devices import PRESETS, Device, device
from cos2p.devices.device import UTILISATION
from cos2p.errors import ConfigError


def own(**fields: Any) -> Device:
    return device("own", **{"flops": 1e9, "memory": "1GB", "down": "10MB/s", "up": "1MB/s"} | fields)


def test_the_promised_presets_are_there_with_their_sources() -> None:
    assert sorted(PRESETS) == [
        "jetson-agx-orin-64gb",
        "jetson-agx-xavier-32gb",
        "jetson-xavier-nx-16gb",
        "jetson-xavier-nx-8gb",
        "laptop",
        "raspberry-pi-4",
    ]
    assert all(preset.source and preset.name == name for name, preset in PRESETS.items())


@pytest.mark.parametrize(
    ("name", "peak", "total"),
    [
        ("jetson-xavier-nx-8gb", 845e9, 8e9),
        ("jetson-xavier-nx-16gb", 845e9, 16e9),
        ("jetson-agx-xavier-32gb", 1.41e12, 32e9),
        ("jetson-agx-orin-64gb", 5.32e12, 64e9),
        ("raspberry-pi-4", 48e9, 4e9),
        ("laptop", 307e9, 16e9),
    ],
)
def test_presets_follow_from_the_published_peaks_and_leave_the_system_its_memory(
    name: str, peak: float, total: float
) -> None:
    assert PRESETS[name].flops == pytest.approx(UTILISATION * peak, rel=0.002)
    assert 0.5 * total <= PRESETS[name].memory < total


def test_a_preset_can_be_renamed_and_changed_without_touching_the_others() -> None:
    pi = device("raspberry-pi-4", name="kitchen", memory="600MB", drop_rate=0.1)

    assert (pi.name, pi.memory, pi.drop_rate) == ("kitchen", 600_000_000, 0.1)
    assert pi.flops == PRESETS["raspberry-pi-4"].flops
    assert PRESETS["raspberry-pi-4"].drop_rate == 0.0


def test_durations_are_work_over_speed() -> None:
    one = own(latency=0.5)

    assert one.compute_seconds(3e9) == 3.0
    assert one.download_seconds(20_000_000) == 2.5
    assert one.upload_seconds(20_000_000) == 20.5


def test_jitter_is_a_factor_around_one_and_zero_jitter_is_none() -> None:
    rng = np.random.default_rng(0)
    factors = [own(jitter=0.2).jitter_factor(rng) for _ in range(4000)]

    assert own().jitter_factor(rng) == 1.0
    assert min(factors) > 0
    assert np.median(factors) == pytest.approx(1.0, abs=0.02)
    assert np.log(factors).std() == pytest.approx(0.2, abs=0.01)


def test_an_unknown_preset_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown device 'jetson-nano'; known: jetson-agx-orin-64gb, .*raspberry-pi-4"
    ):
        device("jetson-nano")
    with pytest.raises(ConfigError, match="down, up missing"):
        device("jetson-nano", flops=1e9, memory="1GB")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"flops": 0}, "flops is 0: .*greater than 0"),
        ({"flops": math.inf}, "flops is inf: .*finite"),
        ({"memory": "many"}, "memory is 'many': .*600MB"),
        ({"memory": 0}, "memory is 0: .*greater than 0"),
        ({"up": "0MB/s"}, "up is '0MB/s': .*greater than 0"),
        ({"drop_rate": 1.5}, "drop_rate is 1.5"),
        ({"jitter": -0.1}, "jitter is -0.1"),
        ({"name": "<script>"}, "name is '<script>'"),
        ({"name": ""}, "name is ''"),
        ({"colour": "red"}, "colour is 'red': .*not permitted"),
    ],
)
def test_a_wrong_figure_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        own(**fields)


def test_it_survives_json_and_cannot_be_changed() -> None:
    pi = device("raspberry-pi-4", downtime=100)

    assert Device.model_validate_json(pi.model_dump_json()) == pi
    assert hash(pi) == hash(pi.model_copy())
    with pytest.raises(ValidationError, match="frozen"):
        pi.memory = 1  # type: ignore[misc]
    assert all(field.description for field in Device.model_fields.values())
