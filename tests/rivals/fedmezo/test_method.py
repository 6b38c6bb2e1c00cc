from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p.messages import Order, Update
from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.server.protocol import ClientJoined
from cos2p.submodel.rates import prunable, segment_costs
from tests.methods.played import answer, first_orders, of, play, run_setup_of
from tests.tiny import VIT, assert_close, context, same


def test_two_rounds_on_digits() -> None:
    simulation, events = play({"name": "fedmezo"})
    result = simulation.figures.result()
    assert result["rounds"] == 2
    assert 0 < result["top1"] <= 1
    assert 0 < result["client_top5"] <= 1  # a dozen forward-only steps leave a constant answer
    assert not of(events, "refused")
    assert set(simulation.server.method.state()[0]["losses"]) == set(simulation.run_setup.context.members)


def test_seeds_and_tensors_give_the_same_server_model() -> None:
    models = []
    uploads = []
    for wire in ("tensors", "seeds"):
        run_setup = run_setup_of({"name": "fedmezo", "wire": wire, "lr_factor": 1.0})
        server, orders = first_orders(run_setup)
        for order in orders:
            update = answer(run_setup, server, order)
            uploads.append(len(update.to_bytes()))
            server.receive(order.client, update)
        assert server.versions.current == 1
        models.append(server.weights)
    assert_close(models[0], models[1], atol=1e-5)
    assert max(uploads[4:]) < min(uploads[:4])


def test_what_nobody_held_stays_bitwise() -> None:
    run_setup = run_setup_of({"name": "fedmezo"})
    server, orders = first_orders(run_setup)
    before = dict(server.weights)
    for order in orders:
        server.receive(order.client, answer(run_setup, server, order))
    held = set().union(*(order.spec.keep(0).units for order in orders))
    free = [u for u in range(run_setup.config.mlp) if u not in held]
    assert free
    assert torch.equal(before["blocks.0.fc1.weight"][free], server.weights["blocks.0.fc1.weight"][free])
    kept = sorted(held)
    assert not torch.equal(before["blocks.0.fc1.weight"][kept], server.weights["blocks.0.fc1.weight"][kept])


@pytest.mark.parametrize("rate", [1 / 64, 1 / 16, 0.25, 0.5625, 1.0])
def test_the_submodel_is_fedrolexs_and_keeps_the_budget(rate: float) -> None:
    owner = context(rates=(rate, 1.0))
    ours, theirs = (build_method({"name": name}, owner) for name in ("fedmezo", "fedrolex"))
    weights = init_weights(VIT, 0)
    head, unit = segment_costs(VIT)
    for version in range(5):
        call = Call(owner.members["pi-0"], version, version, version, weights)
        spec = ours.assign(call).spec
        assert spec == theirs.assign(call).spec
        cost = sum(len(keep.heads) * head + len(keep.units) * unit for keep in spec.window)
        assert cost <= rate * prunable(VIT) + 1e-6


def test_one_client_with_the_whole_model_is_plain_local_training() -> None:
    from tests.runtime.small import VALUES

    device = {**VALUES["fleet"]["devices"][1], "count": 1, "rate": 1.0}
    run_setup = run_setup_of({"name": "fedmezo"}, fleet={"devices": [device]})
    server, (order,) = first_orders(run_setup)
    start = dict(server.weights)
    update = answer(run_setup, server, order)
    server.receive(order.client, update)
    trained = {name: start[name] - update.delta[name] for name in update.delta}
    assert_close(trained, {name: server.weights[name] for name in trained}, atol=1e-7)


def test_a_device_of_high_loss_takes_longer_steps_if_that_is_wanted() -> None:
    method = build_method({"name": "fedmezo", "personal": 0.5, "lr_factor": 1.0}, context())
    weights = init_weights(VIT, 0)
    calls = {n: Call(m, 0, 0, 0, weights) for n, m in method.context.members.items()}
    assert method.assign(calls["pi-0"]).lr_factor == 1.0  # nothing is known yet
    for name, loss in (("pi-0", 3.0), ("pi-1", 2.0), ("pi-2", 1.0)):
        order = first_order(name)
        method.accepted(order, replace(order_update(name), report={"loss": loss}))
    factors = [method.assign(calls[name]).lr_factor for name in ("pi-0", "pi-1", "pi-2")]
    assert factors == pytest.approx([1.5, 1.0, 0.5])
    again = build_method({"name": "fedmezo", "personal": 0.5, "lr_factor": 1.0}, context())
    again.load_state(*method.state())
    assert again.assign(calls["pi-0"]).lr_factor == pytest.approx(1.5)


def first_order(client: str) -> Order:
    from tests.tiny import order

    return order(SubmodelSpec.full(VIT), client=client)


def order_update(client: str) -> Update:
    return Update(client, f"{client}#0", 0, SubmodelSpec.full(VIT), {}, 10)


def test_a_hostile_update_changes_nothing() -> None:
    run_setup = run_setup_of({"name": "fedmezo", "wire": "seeds"})
    server, orders = first_orders(run_setup)
    before = dict(server.weights)
    bad = answer(run_setup, server, orders[0])
    bad = replace(bad, extras={**bad.extras, "scales": bad.extras["scales"] * 1e30})
    effects = server.receive(orders[0].client, bad)
    assert same(before, server.weights)
    assert any("root mean square" in str(e) for e in effects)
    assert server.handle(ClientJoined(orders[0].client)) is not None
