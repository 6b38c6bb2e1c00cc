"""The window that never moves."""

from __future__ import annotations

import torch

from cos2p.methods import build_method
from cos2p.methods.cos2p.method import TopWindow
from tests.methods.budgets import asked
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import VIT, context


def top_window(**settings: object) -> TopWindow:
    method = build_method({"name": "topwindow", **settings}, context(VIT.with_(depth=8)))
    assert isinstance(method, TopWindow)
    return method


def test_it_is_at_the_top_at_every_turn() -> None:
    method = top_window()
    for turn in range(5):
        spec = asked(method, "pi-0", turn).spec
        assert (spec.frozen, spec.top, spec.exits[-1]) == (4, 8, 8)


def test_what_is_below_stays_as_it_was() -> None:
    fleet = Fleet(digits_house(updates=6), {"name": "topwindow", "masks": {"rounds": 1, "epochs": 1}}).run()
    frozen = min(order.spec.frozen for order in fleet.orders)
    assert frozen == 1
    for name, tensor in fleet.start.items():
        if name.startswith(("embed.", "blocks.0.")):
            assert torch.equal(fleet.server.weights[name], tensor)
