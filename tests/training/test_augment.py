"""Training on images that change from batch to batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p.data.augment import Change
from cos2p.methods import run_task
from cos2p.models.spec import BlockSize
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, order, same, shard, task, window

ALL: tuple[Change, ...] = ("pad", "flip")


@pytest.mark.parametrize("frozen", [0, 2])
@pytest.mark.parametrize("quotas", [None, (BlockSize(2, 5), BlockSize(2, 5))])
def test_a_task_is_reproducible_and_says_that_its_prefix_was_run_again(
    frozen: int, quotas: tuple[BlockSize, ...] | None
) -> None:
    work = task(VIT, random_weights(VIT, 0), order(window(VIT, frozen), quotas=quotas))
    plain, changed = shard(VIT), replace(shard(VIT), augment=ALL)
    first, again, without = (run_task(VIT, work, own, {})[0] for own in (changed, changed, plain))
    assert same(first.delta, again.delta)
    assert not same(first.delta, without.delta)
    assert ("prefix_recomputed" in first.report) == (frozen > 0)
    assert "prefix_recomputed" not in without.report


def test_a_batchs_own_features_are_those_that_would_have_been_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With changes that change nothing, training is that on the cache."""
    work = task(VIT, random_weights(VIT, 0), order(window(VIT, 2), optimizer="sgd"))
    monkeypatch.setattr("cos2p.data.augment.LEAST_AREA", 1.0)
    nothing: tuple[Change, ...] = ("scale",)
    kept, fresh = (run_task(VIT, work, own, {})[0] for own in (shard(VIT), replace(shard(VIT), augment=nothing)))
    assert fresh.report["prefix_recomputed"] == 1
    for name, tensor in kept.delta.items():
        torch.testing.assert_close(fresh.delta[name], tensor, atol=1e-6, rtol=1e-4)
