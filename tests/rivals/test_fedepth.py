"""Block coordinate descent: one group at a time, the loss at the true top, everything else as it was."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from cos2p.memory.parts import Part
from cos2p.methods import build_method, make_trainer
from cos2p.models.spec import SubmodelSpec
from cos2p.models.transformer import ElasticTransformer
from cos2p.submodel.slicing import extract
from cos2p.training.losses import exits_loss
from cos2p_rivals.fedepth import FeDepth
from tests.methods.budgets import asked, fitted, training, with_memory
from tests.methods.fleet import Fleet, digits, digits_house
from tests.tiny import VIT, assert_close, context, same

DEEP = VIT.with_(depth=6)


def of_blocks(count: int, **settings: object) -> FeDepth:
    """The method on devices that can hold groups of so many blocks."""
    given = {"name": "fedepth", **settings}

    method = build_method(given, training(context(DEEP), *[Part("blocks", count)] * 3))
    assert isinstance(method, FeDepth)
    return method


def blocks_of(method: FeDepth, turn: int, client: str = "pi-0") -> tuple[int, int]:
    spec = asked(method, client, turn).spec
    return spec.frozen, spec.top


@pytest.mark.parametrize(
    ("order", "expected"), [("up", [(0, 2), (2, 4), (4, 6), (0, 2)]), ("down", [(4, 6), (2, 4), (0, 2), (4, 6)])]
)
def test_groups_come_in_turn(order: str, expected: list[tuple[int, int]]) -> None:
    method = of_blocks(2, order=order)
    assert [blocks_of(method, turn) for turn in range(4)] == expected
    assert [(b.start, b.stop) for b in (method.next_blocks(method.context.members["pi-0"], t) for t in range(4))] == (
        expected
    )


def test_a_last_group_that_is_short_begins_lower() -> None:
    assert [blocks_of(of_blocks(4), turn) for turn in range(2)] == [(0, 4), (2, 6)]


def test_lisa_draws_evenly() -> None:
    method = of_blocks(2, order="random")
    held = Counter(blocks_of(method, turn) for turn in range(900))
    # 900 draws of 3: 300 each, σ = √(900·⅓·⅔) = 14.1
    assert all(abs(count - 300) < 4 * 14.1 for count in held.values())
    assert len(held) == 3


def test_together_all_devices_are_at_the_same_place() -> None:
    method = of_blocks(2, together=True, order="random")
    places = [
        {asked(method, f"pi-{n}", turn=7 * n, version=round_).spec.frozen for n in range(3)} for round_ in range(9)
    ]
    assert all(len(place) == 1 for place in places)
    assert len(set().union(*places)) > 1


def test_a_device_that_holds_no_group_trains_the_head() -> None:
    house = fitted({"name": "fedepth"}, digits_house(rounds=1), lambda m, c: m.head_alone(m.context.members[c]))  # type: ignore[attr-defined]
    fleet = Fleet(house, {"name": "fedepth"}).run()
    moved = {n for n, t in fleet.server.weights.items() if not (t == fleet.start[n]).all()}
    assert moved
    assert all(name.startswith("exits.2.") for name in moved)


def test_only_the_group_and_the_head_move_and_the_gradient_is_that_of_the_whole_model() -> None:
    fleet = Fleet(digits_house(rounds=1), {"name": "fedepth", "blocks": 1, "precision": "float32"})
    order, config = fleet.orders[0], fleet.context.config
    assert (order.spec.frozen, order.spec.top, order.spec.suffix) == (0, 1, True)
    task, shard = fleet.server.orders.task(order), digits().shards[order.client]
    trainer = make_trainer(config, order)
    trainer.run(task, shard, {})
    model = trainer.build(order.spec)
    inputs, labels = shard.train.batch(torch.arange(8), shard.normalize)
    whole = ElasticTransformer(config, SubmodelSpec.full(config)).load(
        {n: t.clone() for n, t in extract(fleet.start, config, SubmodelSpec.full(config)).items()}
    )
    exits_loss(whole(inputs), labels, 0.0).backward()
    assert whole.embed is not None
    exits_loss(model(inputs, whole.embed(inputs).detach()), labels, 0.0).backward()
    wanted = {n: p.grad for n, p in whole.named_parameters()}
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert_close(found, {n: wanted[n] for n in found}, atol=1e-5)  # type: ignore[arg-type]
    fleet.run()
    moved = {n for n, t in fleet.server.weights.items() if not (t == fleet.start[n]).all()}
    assert all(name.startswith(("blocks.0.", "exits.2.")) for name in moved)


def test_with_one_group_and_embeddings_it_is_fedavg() -> None:
    whole = Fleet(digits_house(rounds=2), {"name": "fedepth", "embeddings": True}).run()
    fedavg = Fleet(digits_house(rounds=2), {"name": "fedavg"}).run()
    assert same(whole.server.weights, fedavg.server.weights)


def test_bytes_decide_the_group() -> None:
    house = context(DEEP)
    big = build_method({"name": "fedepth"}, with_memory(house, *[10**9] * 3))
    assert blocks_of(big, 0) == (0, 6)  # type: ignore[arg-type]
