"""What the server asks of the mask phase: whom, when, on which candidates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from cos2p import SubmodelSpec, model
from cos2p.messages import Order
from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.methods.cos2p import Cos2p
from cos2p.methods.cos2p.keeps import agreement
from cos2p.models.spec import BlockKeep, BlockSize
from cos2p.training.costs import submodel_memory
from cos2p.training.settings import LocalSettings, MaskPhase
from tests.methods.test_cos2p import answered, assign
from tests.tiny import VIT, context


def method(**masks: Any) -> Cos2p:
    built = build_method({"name": "cos2p", "masks": masks, "window": {"schedule": "fixed"}}, context(rates=(0.25,) * 3))
    assert isinstance(built, Cos2p)
    return built


def phase(given: Cos2p, **call: Any) -> MaskPhase:
    local = assign(given, **call).settings
    assert isinstance(local, LocalSettings)
    return local.mask


def test_scores_are_asked_for_at_first_visits_and_by_the_kind_always() -> None:
    warm = method(start="first-order")
    assert (phase(warm).scores, phase(warm).passes) == ("new", 6)
    answered(warm, "pi-0", assign(warm))
    assert phase(warm, cycle=1).scores == "none"
    alone = method(heads="first-order", units="first-order", share=0.25)
    for cycle in range(2):
        found = phase(alone, cycle=cycle)
        assert (found.scores, found.epochs, found.passes, found.share) == ("all", 0, 1, 0.25)
        answered(alone, "pi-0", assign(alone, cycle=cycle))
    assert assign(alone, version=99).quotas is None


def test_two_kinds_of_learning_at_once_are_refused() -> None:
    with pytest.raises(ValidationError, match="one phase"):
        method(heads="first-order")
    assert method(heads="first-order", units="fixed").settings.masks.learned == {"first-order"}


def test_candidates_are_a_share_of_what_is_not_kept() -> None:
    """A quarter of the model: two of four blocks, half of their 4 heads and 10 units."""
    few = assign(method(candidates=0.4)).spec.window
    assert [(len(keep.heads), len(keep.units)) for keep in few] == [(3, 7), (3, 7)]
    none = assign(method(candidates=0.0))
    assert none.quotas is not None
    assert [(len(k.heads), len(k.units)) for k in none.spec.window] == [(q.heads, q.units) for q in none.quotas]


def test_a_mask_phase_in_the_memory_of_the_training_takes_fewer_samples_at_a_time() -> None:
    """A sixteenth of the model, a large batch: all candidates at once take more than what is trained after."""
    found = {}
    for memory in ("device", "training"):
        given = build_method(
            {"name": "cos2p", "masks": {"memory": memory}, "window": {"schedule": "fixed"}},
            context(model("vit-mini"), rates=(1 / 16,), samples=64),
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
        found[memory] = (local.mask.micro_batch, masks.total / plain.total)
    assert found["device"][0] == 64
    assert found["device"][1] > 1.2
    assert found["training"][0] < 64
    assert found["training"][1] <= 1.0


def _cut(spec: SubmodelSpec, quotas: tuple[BlockSize, ...]) -> SubmodelSpec:
    kept = zip(spec.window, quotas, strict=True)
    return replace(spec, window=tuple(BlockKeep(k.heads[: q.heads], k.units[: q.units]) for k, q in kept))


def order_of(spec: SubmodelSpec, quotas: tuple[BlockSize, ...], local: LocalSettings) -> Order:
    return Order("pi-0", "pi-0#0", 0, 0, 0, 0, "submodel", local.model_dump(mode="json"), 0.1, spec, quotas)


def test_agreement_by_hand() -> None:
    """A head of VIT has 4·4·16 weights and 3·4 biases, a unit 2·16 and one: 268 and 33."""
    assert agreement(VIT, BlockKeep((0, 1), (0, 1)), BlockKeep((1, 2), (0, 5))) == pytest.approx(0.5)
    assert agreement(VIT, BlockKeep((0,), (0,)), BlockKeep((1,), (0,))) == pytest.approx(33 / 301)
    assert agreement(VIT, BlockKeep((), ()), BlockKeep((), ())) == 1.0


def test_a_mask_that_two_phases_agree_on_stands_also_after_a_restart() -> None:
    """`answered` keeps the last candidates, so the second answer is the first."""
    given, asking = method(settled=0.9), method()
    for each in (given, asking):
        for cycle in range(2):
            assert assign(each, cycle=cycle).quotas is not None
            answered(each, "pi-0", assign(each, cycle=cycle))
    assert assign(given, cycle=2).quotas is None
    assert assign(asking, cycle=2).quotas is not None
    assert assign(given, "pi-1").quotas is not None
    restarted = method(settled=0.9)
    restarted.load_state(*given.state())
    assert restarted.settled == given.settled != asking.settled
    assert "settled" not in asking.state()[0]
