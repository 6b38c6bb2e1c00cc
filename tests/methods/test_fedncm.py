"""FedNCM: class means in closed form, whoever has which data; and heads of other methods that start from them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer, make_context
from tests.methods.fleet import Fleet, digits, digits_house
from tests.tiny import same


def test_the_head_is_the_means_of_all_data_in_one_round() -> None:
    fleet = Fleet(digits_house(rounds=1), {"name": "fedncm", "precision": "float32"}).run()
    config = fleet.context.config
    whole = ElasticTransformer(config, SubmodelSpec.full(config)).load(dict(fleet.start))
    sums = torch.zeros(config.classes, config.dim)
    with torch.no_grad():
        for shard in digits().shards.values():
            inputs, labels = shard.train.batch(torch.arange(len(shard.train)), shard.normalize)
            assert whole.embed is not None
            x, context = whole.embed(inputs), make_context(config, inputs)
            for block in whole.blocks.values():
                x = block(x, context)
            sums.index_add_(0, labels, F.normalize(whole.exits["2"].features(x, context), dim=1))  # type: ignore[operator]
    found = fleet.server.weights["exits.2.linear.weight"]
    torch.testing.assert_close(F.normalize(found, dim=1), F.normalize(sums, dim=1), atol=1e-5, rtol=1e-4)


def test_all_report_once_and_nothing_else_moves() -> None:
    once, thrice = (Fleet(digits_house(rounds=n), {"name": "fedncm"}).run() for n in (1, 3))
    assert len(thrice.orders) == len(thrice.server.context.members)
    assert thrice.server.versions.current == 1
    head = ("exits.2.linear.weight", "exits.2.linear.bias")
    torch.testing.assert_close(once.server.weights[head[0]], thrice.server.weights[head[0]], atol=1e-5, rtol=1e-4)
    others = [name for name in once.start if name not in head]
    assert same({n: thrice.server.weights[n] for n in others}, {n: once.start[n] for n in others})


@pytest.mark.parametrize("name", ["fedlora", "chain"])
def test_other_methods_start_from_it(name: str) -> None:
    given = {"name": name, "lr_factor": 1.0}
    fleet = Fleet(digits_house(updates=6), {**given, "start": "means"}).run()
    assert [order.trainer for order in fleet.orders[:3]] == ["statistics"] * 3
    assert "statistics" not in [order.trainer for order in fleet.orders[3:]]
    plain = Fleet(digits_house(updates=6), given).run()
    losses = [
        next(n.report["loss"] for n in f.notes if n.kind == "merged" and "loss" in n.report)  # type: ignore[attr-defined]
        for f in (fleet, plain)
    ]
    assert losses[0] < losses[1]
