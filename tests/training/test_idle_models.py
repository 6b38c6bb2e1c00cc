from __future__ import annotations

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.messages import Task, Update
from cos2p.methods import make_trainer
from cos2p.models.one_piece import OnePiece
from cos2p.training.idle_models import IdleModels
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, order, same, shard, task

FULL = SubmodelSpec.full(VIT)


def done(number: int, idle: IdleModels | None, trainer: str = "submodel", **settings: object) -> tuple[Update, object]:
    """A task as a worker does it: from bytes, with the models of the tasks before. The update and its model."""
    given = order(FULL, attempt=number, **settings)
    data = task(VIT, random_weights(VIT, number), given).to_bytes()
    came = Task.from_bytes(data)
    who = make_trainer(VIT, came.order)
    who.idle = idle
    update, _ = who.run(came, shard(VIT, seed=number), {})
    who.leave()
    return update, who.model


def test_a_model_serves_task_after_task_with_the_same_bits() -> None:
    idle = IdleModels()
    models = set()
    for number in range(3):
        kept, model = done(number, idle)
        made, _ = done(number, None)
        models.add(id(model))
        assert isinstance(kept.delta, OnePiece)
        assert same(kept.delta, made.delta)
        assert kept.report == made.report
    assert len(models) == 1


@pytest.mark.parametrize("settings", [{"rescale": True}, {"savings": {"recompute": "yes"}}])
def test_a_model_that_is_changed_for_a_task_is_not_kept(settings: dict[str, object]) -> None:
    idle = IdleModels()
    first, second = (done(number, idle, **settings)[1] for number in range(2))
    assert first is not second


def test_gradients_are_not_kept() -> None:
    _, model = done(0, IdleModels())
    assert isinstance(model, torch.nn.Module)
    assert all(parameter.grad is None for parameter in model.parameters())
