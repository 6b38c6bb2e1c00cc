"""Progressive training: stages from the bottom to the top, what is below stays bitwise."""

from __future__ import annotations

import pytest
import torch

from cos2p.errors import ConfigError
from cos2p.memory.parts import Part
from cos2p.methods import build_method
from cos2p_rivals.chain import Chain
from tests.methods.budgets import asked, training
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import VIT, context, same

DEEP = VIT.with_(depth=6)


def chain(*counts: int, rounds: int = 6, **settings: object) -> Chain:
    """The method on devices that can train so many blocks each, wherever a stage begins."""
    house = context(DEEP, rounds=rounds)
    given = training(house, *(Part("blocks", count) for count in counts))
    method = build_method({"name": "chain", **settings}, given)
    assert isinstance(method, Chain)
    return method


def test_stages_go_up_and_share_the_run() -> None:
    method = chain(2, 2, 2)
    windows = [(task.spec.frozen, task.spec.top) for task in (asked(method, "pi-0", v) for v in range(6))]
    assert windows == [(0, 2), (0, 2), (2, 4), (2, 4), (4, 6), (4, 6)]
    assert [asked(method, "pi-0", v).spec.exits for v in (0, 2, 4)] == [(2,), (4,), (6,)]


def test_a_larger_device_takes_the_next_blocks_too() -> None:
    method = chain(2, 4, 2)
    assert [(asked(method, n, 2).spec.frozen, asked(method, n, 2).spec.top) for n in ("pi-0", "pi-1")] == [
        (2, 4),
        (2, 6),
    ]


def test_thin_blocks_above_carry_the_loss_to_the_top() -> None:
    spec = asked(chain(2, 2, 2, form="thin", thin_share=0.25), "pi-0").spec
    assert spec.exits == (6,)
    assert [(len(k.heads), len(k.units)) for k in spec.window] == [(4, 10)] * 2 + [(1, 2)] * 4


def test_a_first_block_and_updates_instead_of_rounds() -> None:
    method = chain(2, 2, 2, first=2)
    assert [asked(method, "pi-0", v).spec.frozen for v in (0, 5)] == [2, 4]
    with pytest.raises(ConfigError, match="first is 6; the model has blocks 0 to 5"):
        build_method({"name": "chain", "first": 6}, context(DEEP))


def test_after_a_stage_what_is_below_stays_bitwise() -> None:
    house = training(digits_house(updates=12), *[Part("blocks", 1)] * 3)
    fleet = Fleet(house, {"name": "chain"}).run(answers=6)
    middle = {name: tensor.clone() for name, tensor in fleet.server.weights.items()}
    assert not torch.equal(middle["blocks.0.q.weight"], fleet.start["blocks.0.q.weight"])
    assert torch.equal(middle["blocks.1.q.weight"], fleet.start["blocks.1.q.weight"])
    fleet.run()
    below = [name for name in middle if name.startswith(("embed.", "blocks.0.", "exits.1."))]
    assert same({n: fleet.server.weights[n] for n in below}, {n: middle[n] for n in below})
    assert not torch.equal(fleet.server.weights["blocks.1.q.weight"], middle["blocks.1.q.weight"])


def test_with_one_stage_it_is_fedavg() -> None:
    whole = Fleet(digits_house(rounds=2), {"name": "chain", "embeddings": True}).run()
    assert same(whole.server.weights, Fleet(digits_house(rounds=2), {"name": "fedavg"}).run().server.weights)
