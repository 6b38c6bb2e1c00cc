from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from cos2p import ModelConfig, SubmodelSpec
from cos2p.methods import build_method
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.runtime.evaluation import Classes
from cos2p.runtime.run_folder import write_results
from cos2p.submodel.slicing import trained_shapes
from cos2p.tracking.figures import RunFigures
from cos2p_rivals.fedrolex_official import FedRolexOfficial
from cos2p_rivals.heterofl.cut import fitted_config, places, scaled_config, scaled_slices, take_scaled
from cos2p_rivals.heterofl.device import Scaler
from cos2p_rivals.heterofl.method import HeteroFl, ScaledMethod
from tests.methods.fleet import Fleet, digits, digits_house, with_rates
from tests.submodel.strategies import CONFIGS, random_inputs, random_weights
from tests.tiny import VIT, assert_close, context, same


def official(
    config: ModelConfig = VIT, rates: tuple[float, ...] = (0.25, 1.0), rounds: int = 4, **settings: Any
) -> FedRolexOfficial:
    method = build_method({"name": "fedrolex-official", **settings}, context(config, rates=rates, rounds=rounds))
    assert isinstance(method, FedRolexOfficial)
    return method


def test_the_official_step_is_one_in_every_dimension() -> None:
    assert [official(step="official").shift(q) for q in (0, 1, 9)] == [(0, 0, 0), (1, 1, 1), (9, 9, 9)]


def test_turns_fit_the_run_however_short() -> None:
    """16 residual entries, 16 rows, 10 units in 20 rounds: five turns are 4, 4 and 2.5 (3) entries a round."""
    assert official(rounds=20, turns=5).shift(1) == (4, 4, 3)
    assert official(rounds=10_000, turns=5).shift(7) == (7, 7, 7)  # never less than one


def test_small_devices_lie_inside_large_ones_in_every_round() -> None:
    method = official(rates=(0.25, 0.5))
    for q in range(5):
        small, large = (scaled_slices(VIT, method.part(client, q)) for client in ("pi-0", "pi-1"))
        for name in small:
            for inner, outer in zip(small[name], large[name], strict=True):
                assert inner is None or outer is None or set(inner.tolist()) <= set(outer.tolist())


def test_with_the_whole_model_it_is_fedavg_whatever_the_roll() -> None:
    """Rolled rows of q, k, v may regroup into other heads, so this holds in rounds that roll by whole heads."""
    everybody = with_rates(digits_house(rounds=1), 1.0, 1.0)
    fleet = Fleet(everybody, {"name": "fedrolex-official"}).run()
    assert_close(fleet.server.weights, Fleet(everybody, {"name": "fedavg"}).run().server.weights, atol=1e-6)


@pytest.mark.parametrize("name", ["fedrolex-official", "heterofl"])
def test_what_nobody_held_stays_bitwise(name: str) -> None:
    fleet = Fleet(with_rates(digits_house(rounds=2), 0.2), {"name": name}).run()
    method = fleet.method
    assert isinstance(method, ScaledMethod)
    expected: Weights = {n: t.clone() for n, t in fleet.start.items()}
    changed = 0
    for q in range(2):
        part = method.part(fleet.orders[0].client, q)
        for tensor_name, cuts in scaled_slices(fleet.context.config, part).items():
            at = places(cuts)
            changed += int((expected[tensor_name][at] != fleet.server.weights[tensor_name][at]).sum())
            expected[tensor_name][at] = fleet.server.weights[tensor_name][at]
    assert changed > 0
    assert all((expected[n] == fleet.server.weights[n]).all() for n in expected)


def test_heterofl_never_moves() -> None:
    method = build_method({"name": "heterofl"}, context(VIT))
    assert isinstance(method, ScaledMethod)
    assert method.part("pi-0", 0) == method.part("pi-0", 99)
    residual = method.part("pi-0", 5).residual
    assert (residual.start, residual.count) == (0, 7)  # r = 0.4375 is the largest that a quarter allows here


@pytest.mark.parametrize("config", [VIT, CONFIGS["bert"]])
def test_heterofl_is_evaluated_as_its_largest_device_trained_it(config: ModelConfig) -> None:
    method = build_method({"name": "heterofl"}, context(config, rates=(0.1, 0.4)))
    assert isinstance(method, HeteroFl)
    weights, inputs = random_weights(config, 1), random_inputs(config, 1)
    evaluated = method.evaluated_weights(weights)
    small = fitted_config(config, evaluated)
    assert small == scaled_config(config, method.rates["pi-1"])
    spec = SubmodelSpec.full(small)
    trained = ElasticTransformer(small, spec).load(take_scaled(weights, config, method.part("pi-1", 0)))
    Scaler(method.rates["pi-1"]).begin(trained)
    with torch.no_grad():
        server = ElasticTransformer(small, spec).load({n: evaluated[n] for n in trained_shapes(small, spec)})
        torch.testing.assert_close(server(inputs)[0], trained(inputs)[0], atol=1e-4, rtol=1e-4)
    assert set(evaluated) == set(weights)


def test_what_heterofl_evaluates_is_what_a_run_saves(tmp_path: Path) -> None:
    fleet = Fleet(digits_house(rounds=1), {"name": "heterofl"}).run()
    recipe = digits().recipe.model_copy(update={"method": {"name": "heterofl"}})
    write_results(recipe, fleet.server, RunFigures(), Classes(), "rounds", tmp_path, wall=0.0)
    saved = safetensors.torch.load_file(tmp_path / "weights.safetensors")
    assert same(saved, fleet.method.evaluated_weights(fleet.server.weights))
    assert fitted_config(fleet.context.config, saved).dim < fleet.context.config.dim


def test_heterofl_with_a_full_device_is_evaluated_whole() -> None:
    method = build_method({"name": "heterofl"}, context(VIT, rates=(0.1, 1.0)))
    weights = random_weights(VIT, 1)
    assert method.evaluated_weights(weights) is weights
    assert fitted_config(VIT, weights) is VIT


def test_of_a_llama_the_roll_goes_around_its_heads() -> None:
    config = CONFIGS["llama tied"]
    rolled = official(config, step="official")
    starts = [rolled.part("pi-0", round).inner.start for round in range(config.groups + 1)]
    assert sorted(starts[:-1]) == list(range(config.groups))
    assert starts[-1] == starts[0]
