from __future__ import annotations

from dataclasses import replace

import torch

from cos2p import SubmodelSpec
from cos2p.messages import Order, Update
from cos2p.methods import run_task
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from cos2p.training.settings import LocalSettings
from cos2p_rivals.fedasync import ProximalTask, ProximalTrainer
from tests.submodel.strategies import random_weights
from tests.tiny import VIT, order, same, shard, task

SPEC = SubmodelSpec.full(VIT)


def proximal(rho: float) -> Order:
    plain = order(SPEC, lambda2=0.0, optimizer="sgd", epochs=4)
    local = LocalSettings.model_validate(dict(plain.settings))
    return replace(plain, trainer="proximal", settings=ProximalTask(local=local, rho=rho).model_dump(mode="json"))


def trained(rho: float) -> Update:
    return run_task(VIT, task(VIT, random_weights(VIT, 2), proximal(rho)), shard(VIT), {})[0]


def test_without_pull_it_is_plain_training() -> None:
    plain = order(SPEC, lambda2=0.0, optimizer="sgd", epochs=4)
    expected = run_task(VIT, task(VIT, random_weights(VIT, 2), plain), shard(VIT), {})[0]
    assert same(trained(0.0).delta, expected.delta)


def test_a_stronger_pull_stays_closer_to_the_model_as_it_came() -> None:
    moved = [sum(float(t.square().sum()) for t in trained(rho).delta.values()) for rho in (0.0, 10.0, 50.0)]
    assert moved[0] > moved[1] > moved[2]


def test_the_gradient_gets_rho_times_the_distance() -> None:
    device = ProximalTrainer(VIT, proximal(0.25))
    device.start = extract(random_weights(VIT, 1), VIT, SPEC)
    device.model = ElasticTransformer(VIT, SPEC).load({name: tensor + 2.0 for name, tensor in device.start.items()})
    for parameter in device.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    device.before_step()
    for parameter in device.model.parameters():
        torch.testing.assert_close(parameter.grad, torch.full_like(parameter, 1.5))
