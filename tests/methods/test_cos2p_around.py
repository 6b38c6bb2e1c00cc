"""Co-S²P for pretrained models: what does not train stays in its place, and the loss is at the true top."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cos2p.errors import RecipeError
from cos2p.messages import Order, Task, Update
from cos2p.methods import build_method, make_contract, run_task
from cos2p.methods.base import Assignment, Call
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.submodel.slicing import extract_prefix
from cos2p.training.prefix import encode
from tests.methods.test_cos2p import assign, method
from tests.tiny import VIT, context, same

FIXED = {"heads": "fixed", "units": "fixed"}


def around(**window: Any) -> dict[str, Any]:
    return {"masks": FIXED, "window": {"rest": "kept", **window}}


def test_the_loss_is_at_the_true_top_wherever_the_window_is() -> None:
    to = method(context(VIT, (0.25,)), **around())
    for cycle in range(VIT.depth):
        spec = assign(to, cycle=cycle).spec.check(VIT)
        assert spec.exits == (VIT.depth,)
        assert spec.rest
        assert spec.suffix


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"window": {"rest": "kept"}}, "masks have nothing to remove"),
        ({"masks": FIXED, "window": {"rest": "kept"}, "rescale": True}, "makes up for what is removed"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], said: str) -> None:
    values = Recipe.load("quickstart").model_dump(mode="json")
    with pytest.raises(RecipeError, match=said):
        Recipe.parse({**values, "method": {"name": "cos2p", **settings}})


def run_setup_of(settings: dict[str, Any]) -> RunSetup:
    recipe = Recipe.load("quickstart", ["data.train_samples=200", "data.test_samples=50", "training.epochs=1"])
    return build_run_setup(recipe.model_copy(update={"method": {"name": "cos2p", **settings}}))


def done(settings: dict[str, Any]) -> tuple[RunSetup, Task, Update]:
    """A real task of the weakest device, as it would do it."""
    run_setup = run_setup_of(settings)
    to = build_method(run_setup.recipe.method, run_setup.context)
    weights, member = first_weights(run_setup.recipe, run_setup.config), next(iter(run_setup.context.members.values()))
    assignment: Assignment = to.assign(Call(member, 0, 2, 2, weights))
    order = Order(
        member.name, "t", 0, 2, 2, 0, assignment.trainer.name, assignment.settings.model_dump(mode="json"), 1e-3,
        assignment.spec, assignment.quotas,
    )  # fmt: skip
    task = Task(
        order,
        weights=make_contract(run_setup.config, order).sent(weights),
        prefix=encode(extract_prefix(weights, run_setup.config, order.spec), "float32"),
    )
    update, _ = run_task(run_setup.config, Task.from_bytes(task.to_bytes()), run_setup.shards[member.name], {})
    return run_setup, task, update


@pytest.mark.parametrize("rest", ["removed", "kept"])
def test_a_device_trains_its_part_and_nothing_else(rest: str) -> None:
    run_setup, task, update = done({"masks": FIXED, "window": {"rest": rest}})
    again = done({"masks": FIXED, "window": {"rest": rest}})[2]
    assert update.delta.keys() == task.weights.keys()
    assert same(update.delta, again.delta)
    assert any(bool(delta.abs().max() > 0) for name, delta in update.delta.items() if "blocks." in name)
    assert all(bool(torch.isfinite(delta).all()) for delta in update.delta.values())
    member = run_setup.context.members[update.client]
    assert make_contract(run_setup.config, task.order).memory(member.samples).total > 0
