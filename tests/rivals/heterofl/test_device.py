from __future__ import annotations

import pytest
import torch

from cos2p import SubmodelSpec
from cos2p.costs.shape import Workload
from cos2p.messages import Order, Task
from cos2p.methods import make_contract, run_task
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from cos2p.training.settings import LocalSettings
from cos2p_rivals.heterofl.cut import scaled_config, scaled_cut, take_scaled
from cos2p_rivals.heterofl.device import ScaledTask, Scaler
from tests.costs.by_spec import flops
from tests.submodel.strategies import random_inputs, random_weights
from tests.tiny import VIT, assert_close, order, shard, task

FULL = SubmodelSpec.full(VIT)


def thin_order(rate: float, shift: int = 0, rescale: bool = True) -> Order:
    local = LocalSettings(epochs=2, batch=4, lambda2=0.0, rescale=rescale)
    settings = ScaledTask(local=local, thin=scaled_cut(VIT, rate, (shift, shift, shift)))
    return Order("pi-1", "pi-1#0", 0, 0, 0, 7, "thin", settings.model_dump(mode="json"), 1e-2, FULL)


def test_the_whole_model_trains_as_ever() -> None:
    weights, own = random_weights(VIT, 1), shard(VIT)
    expected, _ = run_task(VIT, task(VIT, weights, order(FULL, lambda2=0.0)), own, {})
    given = thin_order(1.0)
    update, _ = run_task(VIT, Task(given, make_contract(VIT, given).sent(weights)), own, {})
    assert_close(update.delta, expected.delta, atol=1e-6)
    assert update.spec == FULL


def test_costs_are_those_of_the_small_model() -> None:
    known = make_contract(VIT, thin_order(0.5))
    small = scaled_config(VIT, 0.5)
    step = flops(small, SubmodelSpec.full(small), Workload(batch=4, samples=8), "weight")
    assert known.flops(8, 0).training == pytest.approx(2 * 2 * step)
    assert known.memory(8).weights == 2 * 4 * sum(
        tensor.numel() for tensor in known.sent(random_weights(VIT, 0)).values()
    )
    assert known.memory(8).total < make_contract(VIT, thin_order(1.0)).memory(8).total


def test_the_scaler_keeps_outputs_at_the_full_models_size() -> None:
    """Dividing by r what sees a share r of its inputs: a sum of equal terms comes out as in the full model."""
    weights = {name: torch.ones_like(tensor) for name, tensor in random_weights(VIT, 0).items()}
    small = scaled_config(VIT, 0.5)
    thin_model = ElasticTransformer(small, SubmodelSpec.full(small)).load(
        take_scaled(weights, VIT, scaled_cut(VIT, 0.5))
    )
    full_model = ElasticTransformer(VIT, FULL).load(extract(weights, VIT, FULL))
    Scaler(0.5).begin(thin_model)
    for name in ("q", "v", "fc1"):
        scaled = getattr(thin_model.blocks["0"], name)(torch.ones(1, small.dim))
        whole = getattr(full_model.blocks["0"], name)(torch.ones(1, VIT.dim))
        assert scaled[0, 0].item() - 2.0 == whole[0, 0].item() - 1.0  # bias apart, which is scaled too


def test_the_personal_submodel_is_tested_as_it_was_trained() -> None:
    small = scaled_config(VIT, 0.5)
    weights = take_scaled(random_weights(VIT, 3), VIT, scaled_cut(VIT, 0.5))
    model = ElasticTransformer(small, SubmodelSpec.full(small)).load(weights)
    Scaler(0.5).begin(model)
    inputs = random_inputs(VIT, 3)
    with torch.no_grad():
        assert torch.equal(model.train()(inputs)[0], model.eval()(inputs)[0])


def test_without_scaler_it_is_plain_training_of_the_small_model() -> None:
    weights, own, given = random_weights(VIT, 1), shard(VIT), thin_order(0.5, shift=3, rescale=False)
    sent = make_contract(VIT, given).sent(weights)
    update, _ = run_task(VIT, Task(given, sent), own, {})
    small = scaled_config(VIT, 0.5)
    plain = order(SubmodelSpec.full(small), lambda2=0.0)
    expected, _ = run_task(small, Task(plain, sent), own, {})
    assert_close(update.delta, expected.delta, atol=0)
