"""What the server asks of the mask phase: whom, when, on which candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from cos2p import SubmodelSpec, model_config
from cos2p.messages import Order
from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.methods.cos2p import Cos2p
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.training.costs import submodel_memory
from cos2p.training.settings import LocalSettings, MaskPhase
from tests.methods.test_cos2p import answered, assign
from tests.tiny import context


def method(**masks: Any) -> Cos2p:
    built = build_method({"name": "cos2p", "masks": masks, "window": {"schedule": "top"}}, context(rates=(0.25,) * 3))
    assert isinstance(built, Cos2p)
    return built


def phase(given: Cos2p, **call: Any) -> MaskPhase:
    local = assign(given, **call).settings
    assert isinstance(local, LocalSettings)
    return local.mask


def test_scores_are_asked_for_by_their_kind_alone() -> None:
    assert (phase(method()).scores, phase(method()).passes, phase(method()).share) == (False, 5, 1.0)
    alone = method(heads="first-order", units="first-order")
    for cycle in range(2):
        found = phase(alone, cycle=cycle)
        assert (found.scores, found.epochs, found.passes, found.share) == (True, 0, 1, 0.25)
        answered(alone, "pi-0", assign(alone, cycle=cycle))
    assert assign(alone, version=99).quotas is None


def test_two_kinds_of_learning_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="one phase"):
        method(heads="first-order")
    assert method(heads="first-order", units="fixed").settings.masks.learned == {"first-order"}


def test_scores_in_the_memory_of_the_training_take_fewer_samples_at_a_time() -> None:
    """A sixteenth of the model, a large batch: all candidates at once take more than what is trained after."""
    found = {}
    for kind in ("trainable", "first-order"):
        given = build_method(
            {"name": "cos2p", "masks": {"heads": kind, "units": kind}, "window": {"schedule": "top"}},
            context(model_config("vit-mini"), rates=(1 / 16,), samples=64),
        )
        assert isinstance(given, Cos2p)
        member = replace(given.context.members["pi-0"], batch=64)
        task = given.assign(Call(member, 0, 0, 0, {}))
        local = task.settings
        assert isinstance(local, LocalSettings)
        kept = task.quotas
        assert kept is not None
        order = order_of(task.spec, kept, local)
        masks = submodel_memory(given.context.config, order, local, 64)
        plain = submodel_memory(
            given.context.config, replace(order, quotas=None, spec=_cut(task.spec, kept)), local, 64
        )
        found[kind] = (local.mask.micro_batch, masks.total / plain.total)
    assert found["trainable"][0] == 64
    assert found["trainable"][1] > 1.2
    assert found["first-order"][0] < 64
    assert found["first-order"][1] <= 1.0


def _cut(spec: SubmodelSpec, quotas: tuple[BlockSize, ...]) -> SubmodelSpec:
    kept = zip(spec.window, quotas, strict=True)
    return replace(spec, window=tuple(BlockKeep(k.heads[: q.heads], k.units[: q.units]) for k, q in kept))


def order_of(spec: SubmodelSpec, quotas: tuple[BlockSize, ...], local: LocalSettings) -> Order:
    return Order("pi-0", "pi-0#0", 0, 0, 0, 0, "submodel", local.model_dump(mode="json"), 0.1, spec, quotas)
