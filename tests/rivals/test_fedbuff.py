from __future__ import annotations

import pytest

from cos2p.methods import build_method
from cos2p.tracking.event_kinds import Aggregated
from cos2p_rivals.fedbuff import FedBuff
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import context, same


@pytest.mark.parametrize(("mu", "clients", "expected"), [(0.5, 8, 4), (0.5, 3, 2), (0.07, 100, 7), (1.0, 5, 5)])
def test_the_buffer_waits_for_as_many_updates_as_the_schedule_does(mu: float, clients: int, expected: int) -> None:
    method = build_method({"name": "fedbuff"}, context(rates=(1.0,) * clients, mu=mu))
    assert isinstance(method, FedBuff)
    assert method.buffer == expected


def test_the_model_is_bitwise_the_same_until_the_buffer_is_full() -> None:
    fleet = Fleet(digits_house(updates=9), {"name": "fedbuff", "buffer": 3})
    fleet.run(answers=2)
    assert same(fleet.server.weights, fleet.start)
    fleet.run(answers=1)
    assert fleet.server.versions.current == 1
    assert not same(fleet.server.weights, fleet.start)


def test_a_buffer_larger_than_the_fleet_takes_devices_twice() -> None:
    fleet = Fleet(digits_house(rounds=1), {"name": "fedbuff", "buffer": 5}).run()
    assert fleet.done == "rounds"
    assert [note.updates for note in fleet.notes if isinstance(note, Aggregated)] == [5]


def test_a_part_filled_buffer_is_emptied_at_the_end() -> None:
    fleet = Fleet(digits_house(updates=5), {"name": "fedbuff", "buffer": 3}).run()
    assert [note.updates for note in fleet.notes if isinstance(note, Aggregated)] == [3, 2]


def test_all_at_once_is_fedavg() -> None:
    """K = N, everybody fresh."""
    fleet = Fleet(digits_house(rounds=1), {"name": "fedbuff", "buffer": 3}).run()
    fedavg = Fleet(digits_house(rounds=1), {"name": "fedavg"}).run()
    for name, tensor in fedavg.server.weights.items():
        assert (fleet.server.weights[name] - tensor).abs().max() < 1e-6
