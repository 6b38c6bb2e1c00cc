from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cos2p import SubmodelSpec
from cos2p.methods import run_task
from cos2p.models.layout import Weights
from cos2p.models.transformer import ElasticTransformer
from cos2p.server.server import Server
from cos2p.submodel.slicing import extract
from cos2p.training.shard import Shard
from tests.runtime.played import join_all, server
from tests.tiny import VIT, assert_close, context, copy, shard

FULL = SubmodelSpec.full(VIT)
SGD = {"optimizer": "sgd", "lr": 0.1, "lr_schedule": "constant", "epochs": 1}


def one_round(shards: dict[str, Shard], weights: str = "uniform", batch: int | None = None) -> tuple[Server, Weights]:
    """Every client trains for real; returns the server and the weights it began with."""
    samples = max(len(own.train) for own in shards.values())
    played = server(
        context(rates=(1.0,) * len(shards), samples=samples, training=SGD), "fedavg", {"weights": weights}, rounds=4
    )
    before = copy(played.weights)
    join_all(played)
    for name, own in shards.items():
        task = played.orders.task(next(order for order in played.orders.values() if order.client == name))
        if batch is not None:
            task.order.settings["batch"] = batch  # type: ignore[index]
        played.receive(name, run_task(VIT, task, own, {})[0].to_bytes())
    assert played.versions.current == 1
    return played, before


def gradients(weights: Weights, own: Shard) -> Weights:
    """Of the mean loss over all of a client's data."""
    model = ElasticTransformer(VIT, FULL).load(copy(extract(weights, VIT, FULL)))
    inputs, labels = own.train.batch(range(len(own.train)), own.normalize)  # type: ignore[arg-type]
    F.cross_entropy(model(inputs)[0], labels).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_one_full_batch_step_is_a_gradient_step_on_the_weighted_loss(weights: str) -> None:
    shards = {"pi-0": shard(VIT, 4, 2, seed=0), "pi-1": shard(VIT, 12, 2, seed=5)}
    played, before = one_round(shards, weights, batch=12)
    shares = (0.5, 0.5) if weights == "uniform" else (0.25, 0.75)
    slopes = [gradients(before, own) for own in shards.values()]
    expected = {
        name: before[name] - 0.1 * sum(p * slope[name] for p, slope in zip(shares, slopes, strict=True))
        for name in slopes[0]
    }
    assert_close({name: played.weights[name] for name in expected}, expected, atol=1e-6)


def test_the_round_is_the_mean_of_the_clients_models() -> None:
    """Full batches: alone every client is called pi-0 and would shuffle differently."""
    shards = {f"pi-{i}": shard(VIT, seed=10 * i) for i in range(3)}
    together, before = one_round(shards, batch=10)
    alone = [one_round({"pi-0": own}, batch=10)[0].weights for own in shards.values()]
    mean = {name: sum(end[name] for end in alone) / 3 for name in before}
    assert_close(together.weights, mean, atol=1e-6)


def test_identical_clients_are_one_client() -> None:
    own = shard(VIT)
    together, _ = one_round({"pi-0": own, "pi-1": own}, batch=10)
    alone, before = one_round({"pi-0": own}, batch=10)
    assert_close(together.weights, alone.weights, atol=1e-6)
    assert not torch.equal(alone.weights["blocks.0.q.weight"], before["blocks.0.q.weight"])


def test_everyone_trains_the_full_model_and_the_server_waits_for_all() -> None:
    played = server(context(rates=(0.0625, 1.0)), "fedavg")
    orders = [effect.order for effect in join_all(played) if hasattr(effect, "order")]
    assert [order.spec for order in orders] == [FULL, FULL]
    assert all(order.quotas is None and order.settings["lambda2"] == 0.0 for order in orders)
    trigger, redispatch = played.method.rules()
    assert (trigger.mu, trigger.t_clk, redispatch) == (1.0, 0.0, "at-aggregation")
