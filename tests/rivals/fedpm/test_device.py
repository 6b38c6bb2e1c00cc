from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from cos2p import ModelConfig, SubmodelSpec
from cos2p.costs.fitting import make_spec
from cos2p.errors import UpdateRefused
from cos2p.messages import Order, Task
from cos2p.methods import build_method, make_contract, run_task
from cos2p.models.layout import Weights, init_weights
from cos2p.testing.gpu import peak_allocated
from cos2p_rivals.fedpm.device import ScoreSettings, SegmentScoreSettings
from cos2p_rivals.fedpm.network import (
    draw,
    is_masked,
    masked_shapes,
    pack_bits,
    random_weight,
    random_weights,
    to_scores,
    unpack_bits,
    without_dropped,
)
from tests.runtime.played import check_update
from tests.tiny import VIT, context, same, shard

KINDS = {"fedpm": ScoreSettings, "fedpm-segments": SegmentScoreSettings}


def scored(spec: SubmodelSpec, kind: str = "fedpm", lr: float = 1e-2, **settings: Any) -> Order:
    local = KINDS[kind].model_validate({"epochs": 2, "batch": 4, "lambda2": 0.0, **settings})
    return Order("pi-1", "pi-1#0", 0, 0, 0, 7, kind, local.model_dump(mode="json"), lr, spec)


def full_theta(config: ModelConfig = VIT, variant: str = "elements") -> Weights:
    return build_method({"name": "fedpm", "variant": variant}, context(config)).initial_weights(init_weights(config, 0))


def task(given: Order, config: ModelConfig = VIT) -> Task:
    variant = "elements" if given.trainer == "fedpm" else "segments"
    return Task(given, make_contract(config, given).sent(full_theta(config, variant)))


def test_the_random_network_is_the_same_for_everybody_and_a_submodels_is_its_part() -> None:
    name = "blocks.1.o.weight"
    once, again, other = (random_weight(VIT, name, seed, 1.0) for seed in (7, 7, 8))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert set(once.abs().unique().tolist()) == {0.25}  # 1/√16
    spec = make_spec(VIT, 0.5, ratio=0.0, seed=3)
    own = random_weights(VIT, spec, 7, 1.0)[name]
    columns = [h * 4 + i for h in spec.keep(1).heads for i in range(4)]
    assert torch.equal(own, once[:, columns])


@pytest.mark.parametrize(("ste", "slope"), [("identity", 1.0), ("official", 0.3)])
def test_the_gradient_at_the_draw(ste: Any, slope: float) -> None:
    theta = torch.full((1000,), 0.3)
    score = to_scores(theta).requires_grad_()
    weight = torch.linspace(-1, 1, 1000)
    out = draw(score, weight, torch.Generator().manual_seed(0), ste)
    share = float((out != 0).float().mean())
    assert 0.25 < share < 0.35
    assert torch.equal(out[out != 0].detach(), weight[out != 0])
    out.sum().backward()
    assert score.grad is not None
    torch.testing.assert_close(score.grad, weight * 0.3 * 0.7 * slope)


@hypothesis.given(st.lists(st.integers(0, 9), min_size=1, max_size=4), st.integers(0, 100))
def test_bits_come_back_as_they_went(sizes: list[int], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    masks = {f"m{i}": torch.rand(size, 2, generator=rng) < 0.5 for i, size in enumerate(sizes)}
    packed = pack_bits(masks)
    assert packed.nbytes == math.ceil(2 * sum(sizes) / 8)
    back = unpack_bits(packed, {name: tuple(mask.shape) for name, mask in masks.items()})
    for name, mask in masks.items():
        torch.testing.assert_close(back[name], torch.where(mask, 0.99, 0.01))


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_sends_one_bit_for_each_score_and_leaves_the_weights_alone(kind: str) -> None:
    given = scored(make_spec(VIT, 0.5, ratio=0.0), kind, rescale=True)
    sent = task(given)
    before = {name: tensor.clone() for name, tensor in sent.weights.items()}
    update, _ = run_task(VIT, sent, shard(VIT), {})
    assert same(before, sent.weights)
    assert update.delta.keys() == make_contract(VIT, given).answer(given.spec).keys()
    assert not any(is_masked(VIT, name) for name in update.delta)
    assert any(tensor.abs().max() > 0 for tensor in update.delta.values())
    wire = sum(t.nbytes for part in (update.delta, update.extras) for t in part.values())
    assert wire == make_contract(VIT, given).upload()
    check_update(update, given, VIT, max_rms=10.0)


def test_scores_move_and_the_mask_follows_them() -> None:
    """With a high rate the masks of two seeds of data agree with the trained θ more than two fresh draws would."""
    spec = SubmodelSpec.full(VIT)
    slow, fast = (scored(spec, score_lr_factor=factor) for factor in (1e-6, 200.0))
    masks = []
    for given in (slow, fast):
        update, _ = run_task(VIT, task(given), shard(VIT), {})
        masks.append(
            torch.cat([m.flatten() for m in unpack_bits(update.extras["mask"], masked_shapes(VIT, spec)).values()])
        )
    theta = full_theta()
    start = torch.cat([theta[name].flatten() for name in sorted(masked_shapes(VIT, spec))])
    likely = (start > 0.5).float() * 0.98 + 0.01
    agree = [float((mask - likely).abs().lt(0.5).float().mean()) for mask in masks]
    assert agree[0] > 0.6  # a draw from θ itself
    assert agree[1] < agree[0] - 0.02  # θ has moved


def test_it_learns() -> None:
    config = VIT.with_(dim=32, mlp=64)
    losses = []
    for factor, epochs in ((1e-6, 1), (50.0, 30)):
        given = scored(SubmodelSpec.full(config), lr=2e-3, epochs=epochs, score_lr_factor=factor)
        update, _ = run_task(config, task(given, config), shard(config), {})
        losses.append(update.report["loss"])
    assert losses[1] < losses[0] - 0.2


def test_a_device_without_any_segment_trains_the_dense_part() -> None:
    spec = make_spec(VIT, 1 / 64, ratio=0.0)
    assert not any(keep.heads or keep.units for keep in spec.window)
    for kind in KINDS:
        given = scored(spec, kind)
        update, _ = run_task(VIT, task(given), shard(VIT), {})
        check_update(update, given, VIT, max_rms=10.0)
        assert update.extras["mask"].numel() == 0


def test_segments_send_weights_only_where_the_device_cannot_make_them() -> None:
    spec, weights = make_spec(VIT, 0.5, ratio=0.0), full_theta(variant="segments")
    random, given = (
        make_contract(VIT, scored(spec, "fedpm-segments", network=n)).sent(weights) for n in ("random", "given")
    )
    assert "blocks.0.q.weight" not in random
    assert "blocks.0.q.weight" in given
    assert given["fedpm.0.heads"].shape == (2,)


def test_a_dropped_head_or_unit_has_no_output() -> None:
    weights = {n: t for n, t in init_weights(VIT, 0).items() if n.startswith("blocks.0.")}
    masks = {"fedpm.0.heads": torch.tensor([1, 0, 1, 1]), "fedpm.0.units": torch.tensor([0] + [1] * 9)}
    masked = without_dropped(weights, masks, VIT)
    assert masked["blocks.0.o.weight"][:, 4:8].abs().max() == 0
    assert torch.equal(masked["blocks.0.o.weight"][:, 8:], weights["blocks.0.o.weight"][:, 8:])
    assert masked["blocks.0.fc2.weight"][:, 0].abs().max() == 0
    assert torch.equal(masked["blocks.0.fc2.weight"][:, 1:], weights["blocks.0.fc2.weight"][:, 1:])


@pytest.mark.parametrize("kind", KINDS)
def test_the_ledger_covers_what_a_task_allocates(kind: str) -> None:
    config = ModelConfig("vit", dim=128, depth=3, heads=4, mlp=512, classes=10, image=16, patch=4, channels=3)
    given = scored(make_spec(config, 0.5, ratio=0.0), kind, epochs=1, batch=8, rescale=True)
    data, work = shard(config, train=8, test=0), task(given, config)
    promised = make_contract(config, given).memory(8)
    # Next to it: the random tensor that is cut, at full size and as integers.
    making = 8 * 512 * 128 * 2
    start = sum(t.nbytes for t in work.weights.values())
    used = start + peak_allocated(lambda: run_task(config, work, data, {}))
    assert used <= promised.total - promised.overhead + making
    assert used > 0.5 * (promised.total - promised.overhead)


def test_the_ledger_of_segments_is_smaller() -> None:
    spec = make_spec(VIT, 0.5, ratio=0.0)
    small = make_contract(VIT, scored(spec, "fedpm-segments")).memory(10).total
    assert small < make_contract(VIT, scored(spec)).memory(10).total


@pytest.mark.parametrize(
    "extras",
    [{}, {"mask": torch.zeros(3, dtype=torch.uint8)}, {"mask": torch.zeros(9999)}, {"bits": torch.zeros(1)}],
)
def test_a_mask_of_another_size_is_refused(extras: dict[str, Tensor]) -> None:
    given = scored(SubmodelSpec.full(VIT))
    update, _ = run_task(VIT, task(given), shard(VIT), {})
    assert make_contract(VIT, given).upload() > update.extras["mask"].nbytes
    with pytest.raises(UpdateRefused, match=r"mask is|expected next to|not an update"):
        check_update(replace(update, extras=extras), given, VIT, max_rms=10.0)
