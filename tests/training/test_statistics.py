"""What a device tells of its data: sums that equal those of the whole model, and a door that knows what sums can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from cos2p.errors import UpdateRefused
from cos2p.messages import Order, Task, Update
from cos2p.methods import make_contract, run_task
from cos2p.models.config import ModelConfig
from cos2p.models.context import make_context
from cos2p.models.layout import Weights, init_weights
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer, Exit
from cos2p.training.statistics import StatisticsSettings, packed, statistics_memory, statistics_spec, unpacked
from tests.methods.fleet import digits
from tests.tiny import VIT, read_update

DEPTHS = (1, 2)


def order(config: ModelConfig, client: str, batch: int = 7) -> Order:
    settings = StatisticsSettings(depths=DEPTHS, moments=True, batch=batch)
    return Order(
        client, "t", 0, 0, 0, 0, "statistics", settings.model_dump(mode="json"), 1e-3, statistics_spec(config)
    )  # fmt: skip


def statistics(batch: int = 7) -> Update:
    run_setup = digits()
    client = next(iter(run_setup.shards))
    asked, weights = order(run_setup.config, client, batch), init_weights(run_setup.config, 0)
    task = Task(
        asked,
        weights=make_contract(run_setup.config, asked).sent(weights),
        prefix=make_contract(run_setup.config, asked).sent_frozen(weights),
    )
    return read_update(run_task(run_setup.config, task, run_setup.shards[client], {})[0].to_bytes())


def expected(depth: int) -> Weights:
    """The same from a model that holds everything, the whole shard at once."""
    run_setup = digits()
    shard, config = next(iter(run_setup.shards.values())), run_setup.config
    model = ElasticTransformer(config, SubmodelSpec.full(config, DEPTHS)).load(init_weights(config, 0))
    inputs, labels = shard.train.batch(torch.arange(len(shard.train)), shard.normalize)
    context = make_context(config, inputs)
    assert model.embed is not None
    with torch.no_grad():
        x = model.embed(inputs)
        for block in range(depth):
            x = model.blocks[str(block)](x, context)
        head = model.exits[str(depth)]
        assert isinstance(head, Exit)
        features = head.features(x, context)
    unit = F.normalize(features, dim=1)
    return {
        "counts": torch.bincount(labels, minlength=config.classes).float(),
        f"{depth}.sums": torch.zeros(config.classes, config.dim).index_add_(0, labels, unit),
        f"{depth}.length": features.norm(dim=1).sum(),
        f"{depth}.moments": packed(unit.T @ unit),
    }


def test_the_sums_are_those_of_the_whole_model_whatever_the_batch() -> None:
    for batch in (1, 7, 1000):
        update = statistics(batch)
        assert update.delta == {}
        for depth in DEPTHS:
            for name, value in expected(depth).items():
                torch.testing.assert_close(update.extras[name], value, rtol=1e-4, atol=1e-5)


def change(name: str, to: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Update], Update]:
    return lambda update: replace(update, extras={**update.extras, name: to(update.extras[name])})


def moved(x: torch.Tensor, place: int, by: float) -> torch.Tensor:
    return torch.cat((x[:place], x[place : place + 1] + by, x[place + 1 :]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (change("2.sums", lambda x: 3 * x), "longer than its count"),
        (change("counts", lambda x: x + 1), "its counts add up to"),
        (change("counts", lambda x: x - 2 * x), "its counts add up to"),
        (change("2.length", lambda x: x * 1e9), "are not let in"),
        (change("2.length", lambda x: -x), "are not let in"),
        (change("2.length", lambda x: x * 1e-9), "are not let in"),
        (change("2.moments", lambda x: 2 * x), "trace"),
        (change("2.moments", lambda x: moved(x, 1, 3.0)), "not those of any vectors"),
        (change("2.sums", lambda x: 0.5 * x + 0.5 * x.flip(0)), "longer|not those of any vectors"),
    ],
)
def test_the_door_lets_in_only_what_unit_vectors_can_add_up_to(wrong: Callable[[Update], Update], said: str) -> None:
    update = statistics()
    trainer = make_contract(digits().config, order(digits().config, update.client))
    trainer.check(update, 10.0)
    with pytest.raises(UpdateRefused, match=said):
        trainer.check(wrong(update), 10.0)


def test_what_is_sent_has_no_classifier_and_what_comes_back_is_as_large_as_said() -> None:
    update = statistics()
    trainer = make_contract(digits().config, order(digits().config, update.client))
    assert not [name for name in trainer.sent(init_weights(digits().config, 0)) if "linear" in name]
    assert trainer.upload() == sum(tensor.nbytes for tensor in update.extras.values())


def test_half_of_a_symmetric_matrix_is_enough() -> None:
    x = torch.randn(5, 5)
    assert torch.equal(unpacked(packed(x + x.T), 5), x + x.T)


def test_telling_takes_less_memory_than_training_a_block() -> None:
    """Nothing is trained, so nothing is compared or tested afterwards."""
    config = replace(VIT, dim=128, mlp=512, heads=4, kv_heads=4, head_dim=32)
    settings = StatisticsSettings(depths=(config.depth,), batch=4, features="disk")
    spec = statistics_spec(config)
    block = 4 * sum(tensor.numel() for name, tensor in init_weights(config, 0).items() if name.startswith("blocks.0."))
    statistics = statistics_memory(config, spec, settings, 16)
    assert statistics.total - statistics.overhead < 3 * block
