"""The rate that follows from what was measured: by hand with made-up measurements, and once for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cos2p.devices.measure import Measurement
from cos2p.devices.profile import Profile, Sample, profile, read_device, recommended_rate, write_device
from cos2p.errors import BudgetError, ConfigError, TrainingError
from cos2p.models.sizes import model_config
from cos2p.models.spec import SubmodelSpec

NANO = model_config("vit-nano")


def samples(*rows: tuple[float, float, int]) -> tuple[Sample, ...]:
    """(rate, seconds of a step, peak); the prefix takes no time and the ledger agrees."""
    return tuple(Sample(rate, seconds, 0.0, peak, peak, 1e9) for rate, seconds, peak in rows)


def profiled(memory: int, target: float = 0.0, **changes: Any) -> Profile:
    measured = samples((0.0625, 0.1, 100), (0.25, 0.2, 200), (1.0, 0.8, 1000))
    return Profile("m", memory, 10, 100, 2, target, changes.get("measured", measured), 0.0, 0.0)


def test_memory_alone_decides_without_a_target() -> None:
    assert recommended_rate(profiled(1000)) == 1.0
    assert recommended_rate(profiled(999)) == 0.75  # on the line from 200 to 1000 bytes: 733 at 0.75
    assert recommended_rate(profiled(200)) == 0.25
    assert recommended_rate(profiled(100)) == 0.0625


def test_time_decides_where_memory_does_not() -> None:
    # 100 samples in batches of 10, 2 epochs: 20 steps. 0.1 s a step is 2 s a task, 0.2 is 4 s, 0.8 is 16 s.
    assert profiled(1000).task_seconds(0.25) == pytest.approx(4.0)
    assert recommended_rate(profiled(1000, target=16.0)) == 1.0
    assert recommended_rate(profiled(1000, target=15.9)) == 0.75
    assert recommended_rate(profiled(1000, target=2.0)) == 0.0625
    assert (
        recommended_rate(profiled(1000, target=1.9)) == 0.03125 or recommended_rate(profiled(1000, target=1.9)) == 0.0
    )


def test_no_rate_is_recommended_beyond_what_was_measured() -> None:
    only_small = samples((0.0625, 0.1, 100), (0.25, 0.2, 200))
    assert recommended_rate(profiled(10**9, measured=only_small)) == 0.25


def test_the_prefix_counts_once_per_task() -> None:
    slow_prefix = (Sample(0.25, 0.2, 0.5, 100, 100, 1e9),)
    # 10 batches through the prefix at 0.5 s, 20 steps at 0.2 s
    assert profiled(1000, measured=slow_prefix).task_seconds(0.25) == pytest.approx(5.0 + 4.0)


class Stand:
    """Measures nothing: a step takes `rate` seconds, and everything above `breaks` dies."""

    def __init__(self, breaks: float = 2.0) -> None:
        self.breaks, self.measured = breaks, list[int]()

    def __call__(self, config: object, spec: SubmodelSpec, workload: object, **_: Any) -> Measurement:
        self.measured.append(len(spec.window))
        if len(spec.window) / NANO.depth > self.breaks:
            raise TrainingError("killed")
        return Measurement(10**6, {}, 0, len(spec.window) / 100, 0.0, 0.0)


def test_rates_are_measured_from_the_smallest_and_stop_where_the_device_breaks() -> None:
    stand, reported = Stand(breaks=0.5), list[float]()
    found = profile(
        NANO, "vit-nano", memory=10**9, measuring=stand, on_sample=lambda rate, outcome: reported.append(rate)
    )
    assert stand.measured == sorted(stand.measured)
    assert max(sample.rate for sample in found.measured) == 0.25  # 4 of 8 blocks; 0.5625 has 6 and broke
    assert reported == [0.015625, 0.0625, 0.25, 0.5625]
    assert found.rate == 0.25


def test_what_cannot_fit_is_not_tried() -> None:
    with pytest.raises(BudgetError, match="smaller batch"):
        profile(NANO, "vit-nano", memory=1000, measuring=Stand())


def test_figures_survive_the_file(tmp_path: Path) -> None:
    found = profile(NANO, "vit-nano", memory=10**9, measuring=Stand())
    write_device(found, tmp_path / "device.toml", "kitchen")
    read = read_device(tmp_path / "device.toml")
    assert (read["name"], read["rate"], read["memory"]) == ("kitchen", found.rate, 10**9)
    assert len(read["measured"]) == len(found.measured)
    (tmp_path / "bad.toml").write_text("memory = 5\n")
    with pytest.raises(ConfigError, match="flops is None"):
        read_device(tmp_path / "bad.toml")


@pytest.mark.memory
@pytest.mark.slow  # 9 s
def test_a_real_profile_of_a_small_model() -> None:
    found = profile(NANO, "vit-nano", memory=200_000_000, rates=(0.0625, 0.5625), threads=1)
    small, large = found.measured
    assert small.step_seconds > 0
    assert small.peak < large.peak <= large.predicted
    assert found.rate == 0.5625
    assert found.flops == pytest.approx(large.flops / large.step_seconds)


@pytest.mark.gpu
def test_a_real_profile_of_a_gpu() -> None:
    found = profile(NANO, "vit-nano", memory=400_000_000, rates=(0.0625, 0.5625), accelerator="auto")
    small, large = found.measured
    assert found.accelerator == "cuda:0"
    assert 0 < small.peak < large.peak <= large.predicted
