"""Virtual durations: FLOPs over speed, bytes over bandwidth, and nothing forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cos2p import ModelConfig, SubmodelSpec, make_spec, model_config
from cos2p.devices.clock import lost_after, task_phases
from cos2p.devices.device import device
from cos2p.messages import Order
from cos2p.methods import make_contract
from cos2p.models.spec import BlockSize
from cos2p.training.costs import update_bytes
from cos2p.training.settings import LocalSettings, MaskPhase

CONFIG = model_config("vit-nano")
BOARD = device("board", flops=1e9, memory="1GB", down="1MB/s", up="0.5MB/s", latency=0.25)


def order(spec: SubmodelSpec, quotas: tuple[BlockSize, ...] | None = None, **changes: Any) -> Order:
    settings = LocalSettings(epochs=2, batch=10, mask=MaskPhase(epochs=3)).model_dump(mode="json")
    plain = Order("board", "board#0", 0, 0, 0, seed=0, trainer="submodel", settings=settings, lr=1e-3, spec=spec)
    return replace(plain, quotas=quotas, **changes)


def test_bytes_over_bandwidth_plus_latency() -> None:
    phases = task_phases(
        make_contract(CONFIG, order(make_spec(CONFIG, 0.25))), BOARD, samples=100, test_samples=0, download=2_000_000
    )
    assert phases.download == pytest.approx(0.25 + 2.0)
    sent = update_bytes(CONFIG, order(make_spec(CONFIG, 0.25)))
    assert phases.upload == pytest.approx(0.25 + sent / 500_000)


def test_flops_over_speed_for_every_epoch() -> None:
    spec = make_spec(CONFIG, 0.25)
    once = make_contract(CONFIG, order(spec)).flops(samples=100, test_samples=0)
    phases = task_phases(make_contract(CONFIG, order(spec)), BOARD, samples=100, test_samples=0, download=0)
    assert phases.training == pytest.approx(once.training / 1e9)
    longer = replace(order(spec), settings={**order(spec).settings, "epochs": 4})
    assert make_contract(CONFIG, longer).flops(100, 0).training == pytest.approx(2 * once.training)


def test_a_frozen_prefix_is_paid_once_per_sample_and_not_per_epoch() -> None:
    low, high = order(make_spec(CONFIG, 0.25, start=0)), order(make_spec(CONFIG, 0.25, start=4))
    assert make_contract(CONFIG, low).flops(100, 20).prefix == 0
    prefix = make_contract(CONFIG, high).flops(100, 20).prefix
    assert prefix > 0
    assert make_contract(CONFIG, high).flops(200, 40).prefix == pytest.approx(2 * prefix)
    longer = replace(high, settings={**high.settings, "epochs": 20})
    assert make_contract(CONFIG, longer).flops(100, 20).prefix == prefix


def test_the_mask_phase_counts_only_where_there_is_one_and_at_the_candidates_width() -> None:
    wide = make_spec(CONFIG, 0.5, ratio=4.0)
    quotas = tuple(BlockSize(2, 32) for _ in wide.window)
    assert make_contract(CONFIG, order(wide)).flops(100, 0).masks == 0
    with_masks = make_contract(CONFIG, order(wide, quotas)).flops(100, 0)
    assert with_masks.masks > 0
    assert (
        with_masks.training < make_contract(CONFIG, order(wide)).flops(100, 0).training
    )  # trained at the quota's width
    assert update_bytes(CONFIG, order(wide, quotas)) < update_bytes(CONFIG, order(wide))


def test_the_test_of_the_personal_submodel_takes_time_too() -> None:
    spec = make_spec(CONFIG, 0.25)
    without, with_test = (make_contract(CONFIG, order(spec)).flops(100, n).training for n in (0, 50))
    assert with_test > without


def test_jitter_depends_on_the_attempt_and_the_seed_alone() -> None:
    shaky = device("board", flops=1e9, memory="1GB", down="1MB/s", up="1MB/s", jitter=0.3)
    spec = make_spec(CONFIG, 0.25)

    def total(**changes: Any) -> float:
        return task_phases(make_contract(CONFIG, order(spec, **changes)), shaky, 100, 0, 1000).total

    assert total() == total() == total(version=7, task="board#99")
    assert len({total(attempt=n) for n in range(5)} | {total(seed=9)}) == 6


def test_tasks_are_lost_as_often_as_the_device_says() -> None:
    spec = make_spec(CONFIG, 0.25)
    flaky = device("board", flops=1e9, memory="1GB", down="1MB/s", up="1MB/s", drop_rate=0.2)
    lost = [lost_after(flaky, order(spec, attempt=n), 10.0) for n in range(1000)]
    moments = [at for at in lost if at is not None]
    assert 150 < len(moments) < 250
    assert all(0 <= at <= 10 for at in moments)
    assert lost_after(BOARD, order(spec), 10.0) is None


@pytest.mark.parametrize("config", [model_config("bert-nano"), model_config("llama-nano")], ids=["bert", "llama"])
def test_texts_take_what_they_are_long(config: ModelConfig) -> None:
    """As if the model ended there; and half of them twice as long take the mean of both."""

    def seconds(longest: int, *widths: int) -> float:
        given = make_contract(config.with_(max_tokens=longest), order(make_spec(config, 0.25, start=1)))
        lengths = torch.tensor(widths) if widths else None
        return task_phases(given, BOARD, 100, 20, 0, lengths).total - given.upload() / 500_000

    assert seconds(64, *[24] * 120) == pytest.approx(seconds(24))
    assert seconds(64, *[16] * 60, *[32] * 60) == pytest.approx((seconds(16) + seconds(32)) / 2)
    assert seconds(64, *[64] * 120) == pytest.approx(seconds(64))
