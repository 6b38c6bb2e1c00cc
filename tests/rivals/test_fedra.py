"""FedRA: random blocks, the others left out; adapters averaged over those who had them."""

from __future__ import annotations

from collections import Counter

import torch

from cos2p.memory.parts import Part
from cos2p.methods import build_method
from cos2p.methods.adapters.factors import is_adapter
from cos2p_rivals.fedra import FedRA
from tests.methods.budgets import asked, training
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import VIT, context

DEEP = VIT.with_(depth=6)


def of_blocks(count: int, **settings: object) -> FedRA:
    """The method on devices that can hold so many blocks."""
    given = {"name": "fedra", **settings}
    house = training(context(DEEP), *[Part("blocks", count)] * 3)
    method = build_method(given, house)
    assert isinstance(method, FedRA)
    return method


def test_as_many_blocks_as_fit_are_drawn_evenly_and_in_order() -> None:
    method, held = of_blocks(2), Counter[int]()
    for turn in range(600):
        blocks = asked(method, "pi-0", turn).settings.blocks  # type: ignore[attr-defined]
        assert len(blocks) == 2
        assert list(blocks) == sorted(set(blocks))
        held.update(blocks)
    # 600 draws of 2 of 6: 200 each, σ = √(600·⅓·⅔) = 11.5
    assert all(abs(held[block] - 200) < 4 * 11.5 for block in range(6))


def test_ends_can_be_kept() -> None:
    method = of_blocks(3, keep_ends=True)
    drawn = {asked(method, "pi-0", turn).settings.blocks for turn in range(40)}  # type: ignore[attr-defined]
    assert all({0, 5} <= set(blocks) for blocks in drawn)
    assert len(drawn) == 4  # any one of those between


def test_a_device_is_sent_its_blocks_alone() -> None:
    method = of_blocks(2)
    fleet = Fleet(method.context, {"name": "fedra"}, {}, None)
    order = fleet.orders[0]
    sent = {name.split(".")[1] for name in fleet.server.orders.task(order).prefix if name.startswith("blocks.")}
    assert sent == set(map(str, order.settings["blocks"]))


def test_adapters_of_blocks_that_nobody_had_stay_bitwise() -> None:
    house = training(digits_house(rounds=1), *[Part("blocks", 1)] * 3)
    fleet = Fleet(house, {"name": "fedra"})
    before = dict(fleet.server.weights)
    held = {block for order in fleet.orders for block in order.settings["blocks"]}
    fleet.run()
    for name, tensor in fleet.server.weights.items():
        if is_adapter(name):
            moved = not torch.equal(tensor, before[name])
            assert moved <= (int(name.split(".")[1]) in held)
    assert all(len(order.settings["blocks"]) == 1 for order in fleet.orders)
