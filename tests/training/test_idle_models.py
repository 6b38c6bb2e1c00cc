from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.messages import Task, Update
from cos2p.methods import make_trainer
from cos2p.models.flat_tensors import FlatTensors
from cos2p.training.idle_models import IdleModels
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, order, same, shard, task

FULL = SubmodelSpec.full(VIT)


def done(number: int, idle: IdleModels | None, trainer: str = "submodel", **settings: object) -> tuple[Update, object]:
    """A task as a worker does it: from bytes, with the models of the tasks before. The update and its model."""
    given = replace(order(FULL, attempt=number, **settings), lr=0.01 / (1 + number))
    data = task(VIT, random_weights(VIT, number), given).to_bytes()
    came = Task.from_bytes(data)
    who = make_trainer(VIT, came.order)
    who.idle = idle
    update, _ = who.run(came, shard(VIT, seed=number), {})
    who.leave()
    return update, who.model


@pytest.mark.parametrize("optimizer", ["adan", "adamw", "sgd"])
def test_a_model_and_its_optimiser_serve_task_after_task_with_the_same_bits(optimizer: str) -> None:
    idle = IdleModels()
    models = set()
    for number in range(3):
        kept, model = done(number, idle, optimizer=optimizer, weight_decay=0.01)
        made, _ = done(number, None, optimizer=optimizer, weight_decay=0.01)
        models.add(id(model))
        assert isinstance(kept.delta, FlatTensors)
        assert same(kept.delta, made.delta)
        assert kept.report == made.report
    assert len(models) == 1


@pytest.mark.parametrize("settings", [{"rescale": True}, {"memory_optimizations": {"recompute": "yes"}}])
def test_a_model_that_is_changed_for_a_task_is_not_kept(settings: dict[str, object]) -> None:
    idle = IdleModels()
    first, second = (done(number, idle, **settings)[1] for number in range(2))
    assert first is not second


def test_neither_gradients_nor_states_of_the_optimiser_are_kept() -> None:
    idle = IdleModels()
    _, model = done(0, idle)
    assert isinstance(model, torch.nn.Module)
    assert all(parameter.grad is None for parameter in model.parameters())
    (ready,) = idle._kept.values()
    optimizer = ready.optimizer("adan", 0.1, 0.0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert not optimizer.state
