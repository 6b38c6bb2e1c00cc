from __future__ import annotations

from cos2p.tracking.event_kinds import Merged
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import same


def test_every_update_is_a_version_and_its_sender_goes_on_at_once() -> None:
    fleet = Fleet(digits_house(updates=6), {"name": "fedasync"}).run()
    assert fleet.server.versions.current == 6
    merged = [note for note in fleet.notes if isinstance(note, Merged)]
    assert [event.staleness for event in merged] == [0, 1, 2, 2, 2, 2]  # three devices in turn: N − 1
    weights = [round((event.weight or {})["heads"], 4) for event in merged[:3]]
    assert weights == [0.6, 0.4243, 0.3464]  # α is never used up
    assert len(fleet.orders) == 3 + 5


def test_without_weight_nothing_moves() -> None:
    fleet = Fleet(digits_house(updates=3), {"name": "fedasync", "alpha": 0.0}).run()
    assert same(fleet.server.weights, fleet.start)


def test_the_proximal_term_needs_a_copy_of_the_model() -> None:
    with_term = Fleet(digits_house(updates=1), {"name": "fedasync"})
    without = Fleet(digits_house(updates=1), {"name": "fedasync", "rho": 0.0})
    sent = sum(tensor.nbytes for tensor in with_term.server.orders.task(with_term.orders[0]).weights.values())
    assert _needed(with_term) - _needed(without) == sent


def _needed(fleet: Fleet) -> int:
    return fleet.server.dispatched(fleet.orders[0], 0).peak_memory or 0
