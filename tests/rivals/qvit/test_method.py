from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cos2p import model_config
from cos2p.errors import ConfigError
from cos2p.methods import build_method, make_contract, run_task
from cos2p.methods.base import Call
from cos2p.models.layout import Weights, init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.submodel.rates import cut
from cos2p_rivals.leading import leading_spec
from cos2p_rivals.qvit.device import QuantSettings
from cos2p_rivals.qvit.method import QuantMethod
from cos2p_rivals.qvit.model import QuantTransformer
from cos2p_rivals.qvit.quantizers import UNSET
from cos2p_rivals.qvit.wire import quant_table
from tests.methods.fleet import Fleet, digits, digits_house, with_rates
from tests.methods.played import check_two_rounds, of
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, assert_close, context, order

NAMES = ("fedavg-qvit",)


def built(name: str, *rates: float) -> QuantMethod:
    method = build_method({"name": name}, context(rates=rates))
    assert isinstance(method, QuantMethod)
    return method


@pytest.mark.parametrize("name", NAMES)
def test_two_rounds_on_digits(name: str) -> None:
    _, events = check_two_rounds({"name": name})
    bits = {note["client"][:10]: note["report"]["bits"] for note in of(events, "merged")}
    assert bits == ({"jetson-xav": 2, "jetson-agx": 8})


def test_one_client_with_the_whole_model_is_its_local_training() -> None:
    """As numbers; as codes the server's model and what stayed on the device add up to it."""
    models: dict[str, Weights] = {}
    for wire in ("codes", "float32"):
        fleet = Fleet(with_rates(digits_house(rounds=1), 1.0), {"name": "fedavg-qvit", "wire": wire})
        config, given = fleet.context.config, fleet.orders[0]
        task = fleet.server.orders.task(given)
        update, memory = run_task(config, task, digits().shards[given.client], {})
        fleet.run()
        left = {name.removeprefix("qvit."): tensor for name, tensor in memory.items()}
        local = {name: task.weights[name] - delta for name, delta in update.delta.items()}
        assert_close(local, {name: fleet.server.weights[name] for name in local}, atol=1e-6)
        models[wire] = {n: t + left[n] if n in left else t for n, t in fleet.server.weights.items()}
        assert bool(left) == (wire == "codes")
    assert_close(models["codes"], models["float32"], atol=1e-5)


def test_without_training_nobody_is_pulled_onto_a_grid() -> None:
    still = replace(digits_house(rounds=2), training=digits().context.training.model_copy(update={"lr": 1e-12}))
    fleet = Fleet(with_rates(still, 0.0625, 0.25), {"name": "fedavg-qvit"})
    first = dict(fleet.server.weights)
    fleet.run()
    for name in ("blocks.0.q.weight", "blocks.1.fc2.weight", "embed.patch.weight"):
        torch.testing.assert_close(fleet.server.weights[name], first[name], atol=1e-5, rtol=0.0)


def test_steps_are_averaged_among_equal_bits_only() -> None:
    fleet = Fleet(with_rates(digits_house(rounds=1), 0.0625, 0.0625, 0.25), {"name": "fedavg-qvit"})
    first = dict(fleet.server.weights)
    sent = {o.client: o for o in fleet.orders}
    tasks = {name: fleet.server.orders.task(given) for name, given in sent.items()}
    updates = {n: run_task(fleet.context.config, t, digits().shards[n], {})[0] for n, t in tasks.items()}
    fleet.run()
    now = fleet.server.weights
    by_bits = {n: QuantSettings.model_validate(o.settings).bits for n, o in sent.items()}
    assert sorted(by_bits.values()) == [2, 2, 8]
    two = [u for n, u in updates.items() if by_bits[n] == 2]
    name = "qvit.b2.0.queries.step"
    mean = sum((u.delta[name] for u in two), torch.zeros(4)) / 2
    torch.testing.assert_close(now[name], first[name] - mean)
    assert torch.equal(now["qvit.b4.0.queries.step"], first["qvit.b4.0.queries.step"])
    assert not torch.equal(now["qvit.b8.0.queries.step"], now[name])
    every = sum((u.delta["qvit.norms.0.q.weight"] for u in updates.values()), torch.zeros(4)) / 3
    torch.testing.assert_close(now["qvit.norms.0.q.weight"], first["qvit.norms.0.q.weight"] - every)


def test_what_nobody_held_stays_bitwise() -> None:
    fleet = Fleet(with_rates(digits_house(rounds=1), 1 / 64, 1 / 32), {"name": "fedavg-qvit"})
    first, config = dict(fleet.server.weights), fleet.context.config
    held = set().union(*(given.spec.keep(1).units for given in fleet.orders))
    fleet.run()
    free = [u for u in range(config.mlp) if u not in held]
    assert free
    for name in ("blocks.1.fc1.weight", "qvit.b2.1.fc1.step", "qvit.b2.1.to_fc2.step"):
        assert torch.equal(fleet.server.weights[name][free], first[name][free])
        assert not torch.equal(fleet.server.weights[name][sorted(held)], first[name][sorted(held)])
    assert (first["qvit.b2.1.fc1.step"] == UNSET).all()


def test_bits_and_width_follow_the_rate() -> None:
    method = built("fedavg-qvit", 1 / 64, 1 / 16, 1 / 8, 0.25, 1.0)
    weights = method.initial_weights(init_weights(VIT, 0))
    found = [method.assign(Call(m, 0, 0, 0, weights)) for m in method.context.members.values()]
    assert [a.settings.model_dump()["bits"] for a in found] == [2, 2, 4, 8, 8]
    assert [a.spec == SubmodelSpec.full(VIT) for a in found] == [False, True, True, True, True]
    assert found[0].spec == leading_spec(VIT, cut(VIT, 0.25, ratio=0.0))
    assert method.over_budget


@pytest.mark.parametrize("name", NAMES)
def test_other_families_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"reads the cls token; set model\.pooling to 'cls', not 'mean'"):
        build_method({"name": name}, context(model_config("vit-nano", pooling="mean")))
    with pytest.raises(ConfigError, match="for vision transformers, the model is a llama"):
        build_method({"name": name}, context(model_config("llama-nano")))


def test_the_server_evaluates_the_quantised_model_of_the_largest_device() -> None:
    """In the full model's shapes, with the steps of rescaled outputs rescaled too."""
    method = built("fedavg-qvit", 1 / 64, 1 / 32)
    spec = leading_spec(VIT, cut(VIT, 0.5, ratio=0.0))
    weights: Weights = method.initial_weights(random_weights(VIT, 1))
    inputs = random_inputs(VIT, 2)
    small = QuantTransformer(VIT, spec, 2, rescale=True)
    small.load(_held(method, weights, spec))
    small.train()
    small.see_weights()
    with torch.no_grad():
        small(inputs)
        small.eval()
        small.fold_rescale()
        expected = small(inputs)[0]
        whole = method.evaluation_model(VIT, method.evaluated_weights(_scattered(small, weights, spec)), [VIT.depth])
        torch.testing.assert_close(whole.eval()(inputs)[0], expected, atol=1e-4, rtol=1e-4)


def _held(method: QuantMethod, weights: Weights, spec: SubmodelSpec) -> Weights:
    settings = method.assign(Call(method.context.members["pi-1"], 0, 0, 0, weights)).settings.model_dump()
    given = replace(order(spec, client="pi-1"), trainer="qvit", settings=settings)
    return {name: tensor.clone() for name, tensor in make_contract(VIT, given).sent(weights).items()}


def _scattered(small: QuantTransformer, weights: Weights, spec: SubmodelSpec) -> Weights:
    full = {name: tensor.clone() for name, tensor in weights.items()}
    for name, entry in quant_table(VIT, 2, spec).items():
        rows, value = entry.rows(VIT, spec), small.get_parameter(name).detach()
        full[name] = value.clone() if rows is None else full[name].index_copy(0, rows, value)
    return full
