"""Whole tasks of every trainer on a GPU that is not there: nothing is left on the host, and no step waits for a value.

A trainer of your own is checked the same way: see `cos2p.testing`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from cos2p import ModelConfig
from cos2p.messages import Order
from cos2p.methods import methods, run_task, trainers
from cos2p.models.layout import init_weights
from cos2p.models.spec import BlockSize
from cos2p.testing import stand_in_gpu
from cos2p.training.shard import Shard
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import VIT, order, shard, task, window

FORMS: dict[str, dict[str, Any]] = {
    "fedpm-segments": {"variant": "segments"},
    "factored": {"factors": {"below": 1.0}, "masks": {"heads": "random", "units": "random"}},
}
"""Settings with which a method gives a trainer's tasks, where it does not by default."""

PER_STEP = {"mezo": 1}
"""How often a step waits for the GPU: only where the step itself is a number that goes to the server."""


def first_task(trainer: str) -> tuple[Fleet, Order]:
    """A fleet of a method with this trainer, and the first order for it."""
    for name, method in sorted(methods().items()):
        if trainers()[trainer] not in method.trainers:
            continue
        fleet = Fleet(digits_house(updates=9), {"name": name, **FORMS.get(trainer, {})})
        for _ in range(6):
            found = [order for order in fleet.orders if order.trainer == trainer]
            if found:
                return fleet, found[0]
            fleet.answer()
    raise AssertionError(f"no method gives a task of {trainer!r} by default; name its settings in FORMS")


def longer(given: Order, times: int) -> Order:
    """The same order with so many epochs, or steps."""
    local = dict(given.settings.get("local", given.settings)) | {"epochs": times, "batch": 16}
    if "steps" in local:
        local["steps"] = times
    return replace(given, settings={**given.settings, "local": local} if "local" in given.settings else local)


def asked(fleet: Fleet, given: Order, times: int) -> int:
    """How often the host waited for the GPU in the whole task."""
    config, whole = fleet.context.config, fleet.shards[given.client]
    rows = torch.arange(16)
    part = Shard(whole.train.subset(rows), whole.test.subset(rows[:4]), whole.normalize)
    before = fleet.server.orders.task(given)
    with stand_in_gpu() as gpu:
        update, memory = run_task(config, replace(before, order=longer(given, times)), part, {}, device=gpu.device)
    assert all(tensor.device.type == "cpu" for tensor in (*update.delta.values(), *update.extras.values()))
    assert all(tensor.device.type == "cpu" for tensor in memory.values())
    return gpu.asked


@pytest.mark.parametrize("trainer", sorted(trainers()))
def test_a_task_stays_on_the_gpu(trainer: str) -> None:
    fleet, given = first_task(trainer)
    short, long = asked(fleet, given, 1), asked(fleet, given, 2)  # a step more
    assert short > 0  # what was learned has to come back
    assert long - short == PER_STEP.get(trainer, 0)


@pytest.mark.gpu
@pytest.mark.parametrize("trainer", sorted(trainers()))
def test_a_task_on_a_real_gpu_is_the_same_but_for_rounding(trainer: str) -> None:
    """One short epoch: before rounding has had time to grow."""
    fleet, given = first_task(trainer)
    given, config, own = longer(given, 1), fleet.context.config, fleet.shards[given.client]
    here, there = (
        run_task(config, replace(fleet.server.orders.task(given), order=given), own, {}, device=torch.device(place))[0]
        for place in ("cpu", "cuda:0")
    )
    assert here.spec == there.spec
    for name, tensor in here.delta.items():
        torch.testing.assert_close(there.delta[name], tensor, rtol=1e-2, atol=1e-4)
    assert here.report["loss"] == pytest.approx(there.report["loss"], rel=1e-2) if "loss" in here.report else True


def test_masks_are_trained_without_waiting() -> None:
    weights, counts = init_weights(VIT, 0), []
    for epochs in (1, 2):
        given = order(window(VIT, 1), (BlockSize(2, 5),) * 2, epochs=1, mask={"epochs": epochs})
        with stand_in_gpu() as gpu:
            run_task(VIT, task(VIT, weights, given), shard(VIT, 4, 2), {}, device=gpu.device)
        counts.append(gpu.asked)
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    "memory_optimizations", [{"eight_bit": True, "recompute": "yes"}, {"step_in_backward": True}], ids=min
)
def test_savings_are_made_on_the_gpu(memory_optimizations: dict[str, Any]) -> None:
    wide = replace(VIT, dim=64, mlp=128, depth=2)  # tensors that are large enough for codes
    weights, counts = init_weights(wide, 0), []
    for epochs in (1, 2):
        given = order(window(wide, 1, 1), epochs=epochs, memory_optimizations=memory_optimizations)
        with stand_in_gpu() as gpu:
            run_task(wide, task(wide, weights, given), shard(wide, 4, 2), {}, device=gpu.device)
        counts.append(gpu.asked)
    assert counts[0] == counts[1]


SMALL: dict[str, Any] = {"dim": 16, "depth": 3, "heads": 4, "mlp": 12, "vocab": 30, "max_tokens": 8}
TEXTS = {
    "language": ModelConfig("llama", task="language-modeling", kv_heads=2, **SMALL),
    "classes by the last token": ModelConfig("llama", classes=3, **SMALL),
    "classes": ModelConfig("bert", classes=3, **SMALL),
}


@pytest.mark.parametrize(
    ("kind", "frozen"),
    [
        ("language", 1),
        ("classes by the last token", 1),
        pytest.param("language", 0, marks=pytest.mark.slow),  # 1 s, and there are many like it
        pytest.param("classes", 1, marks=pytest.mark.slow),  # 1 s
    ],
)
def test_texts_stay_on_the_gpu(kind: str, frozen: int) -> None:
    config, counts = TEXTS[kind], []
    weights, spec = init_weights(config, 0), window(config, frozen, exits=(frozen + 1, frozen + 2))
    for epochs in (1, 2):
        given, own = task(config, weights, order(spec, epochs=epochs)), shard(config, 4, 2)
        with stand_in_gpu() as gpu:
            run_task(config, given, own, {}, device=gpu.device)
        counts.append(gpu.asked)
    assert counts[0] == counts[1]


def test_a_tensor_left_on_the_host_is_an_error() -> None:
    with stand_in_gpu() as gpu, pytest.raises(RuntimeError, match="same device"):
        torch.ones(3) + torch.ones(3, device=gpu.device)


def test_a_draw_on_the_gpu_is_an_error() -> None:
    with stand_in_gpu() as gpu, pytest.raises(RuntimeError, match="draw on the host"):
        torch.bernoulli(torch.ones(3, device=gpu.device), generator=torch.Generator())


def test_the_host_computes_for_real_beside_it() -> None:
    with stand_in_gpu() as gpu:
        there = torch.arange(4.0).to(gpu.device)
        assert (torch.arange(4.0) * 2).tolist() == [0.0, 2.0, 4.0, 6.0]
        assert there.device == gpu.device
        assert gpu.asked == 0
        there.sum().item()
        assert gpu.asked == 1
