"""`training.lr = "auto"` on the server: one rate from what all devices found, whatever a few of them say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cos2p.errors import RecipeError
from cos2p.messages import Order
from cos2p.methods import methods
from cos2p.models.spec import SubmodelSpec
from cos2p.recipe import Recipe
from cos2p.server.orders import RateSearch
from cos2p.tracking.event_kinds import Rated
from cos2p.training.rate_trial import FALLBACK, HARM, LADDERS, WORST, best_place, reported
from cos2p.training.settings import TrainingSettings
from tests.methods.fleet import Fleet, digits_house
from tests.tiny import VIT

LADDER = LADDERS["adan"]
AUTO = TrainingSettings(lr="auto")
Ratios = st.lists(st.floats(0, WORST), min_size=len(LADDER), max_size=len(LADDER))


def order(client: str) -> Order:
    return Order(client, "t", 0, 0, 0, 0, "submodel", {}, 1e-3, SubmodelSpec.full(VIT), rates=tuple(LADDER))


def searched(*found: list[float]) -> RateSearch:
    search = RateSearch(AUTO)
    for number, ratios in enumerate(found):
        search.note(order(f"d{number}"), reported(ratios))
    return search


def test_a_rate_of_the_recipe_is_never_searched_for() -> None:
    search = RateSearch(TrainingSettings(lr=3e-3))
    search.note(order("a"), reported([0.5] * len(LADDER)))
    assert search.rate() == 3e-3
    assert not search.to_try("a")
    assert search.settle(1) == []


def test_half_of_the_devices_settle_it_and_nobody_tries_twice() -> None:
    good = [0.9, 0.8, 0.7, 0.8, 5.0, 9.0]
    search = searched(good)
    assert search.settle(4) == []
    assert not search.to_try("d0")
    assert search.to_try("d1") == LADDER
    search.note(order("d1"), reported(good))
    (event,) = search.settle(4)
    assert (event.lr, event.devices) == (LADDER[3], 2)
    assert not search.to_try("new")
    assert search.settle(4) == []


def test_where_nobody_could_try_a_low_rate_is_taken() -> None:
    search = RateSearch(AUTO)
    search.note(order("a"), {"loss": 1.0})
    (event,) = search.settle(1)
    assert (event.lr, event.devices, event.losses) == (LADDER[FALLBACK], 0, [])


@given(st.lists(Ratios, min_size=3, max_size=9), st.lists(Ratios, max_size=9))
def test_fewer_than_half_cannot_raise_the_rate_over_the_edge_of_all_others(
    honest: list[list[float]], hostile: list[list[float]]
) -> None:
    hostile = hostile[: (len(honest) - 1)]
    edge = max(map(best_place, honest))
    rate = searched(*honest, *hostile).rate()
    # A place is open only if the median is, and the median has an honest device on either side of it.
    open_for = [max(honest[i][place] <= HARM for i in range(len(honest))) for place in range(len(LADDER))]
    reachable = next((place - 1 for place, fine in enumerate(open_for) if not fine), len(LADDER) - 1)
    assert LADDER.index(rate) <= max(0, reachable)
    assert rate in LADDER
    if all(ratios == honest[0] for ratios in honest):
        assert LADDER.index(rate) <= edge


@pytest.mark.parametrize("method", ["cos2p", "fedavg", "fedasync", "fedbuff", "fedlora", "fedmezo"])
def test_devices_try_once_and_the_rest_of_the_run_has_one_rate(method: str) -> None:
    assert method in methods()
    training = TrainingSettings(lr="auto", lr_schedule="constant", epochs=1)
    fleet = Fleet(replace(digits_house(updates=15), as_bound=True, training=training), {"name": method}).run()
    assert not [note for note in fleet.notes if note.kind in ("refused", "failed")]
    (rated,) = [note for note in fleet.notes if isinstance(note, Rated)]
    tried = [order.client for order in fleet.orders if order.rates]
    assert sorted(tried) == sorted(set(tried))
    assert rated.devices >= 2
    last = fleet.orders[-3:]
    assert not any(order.rates for order in last)
    assert len({order.lr / rated.lr for order in last}) == 1


def test_a_restart_keeps_what_was_found(tmp_path: Any) -> None:
    training = TrainingSettings(lr="auto", epochs=1)
    fleet = Fleet(replace(digits_house(updates=12), training=training), {"name": "fedrolex"})
    fleet.run(answers=1)
    before = fleet.server.orders.rates.state()
    assert before["found"]
    fleet.restart(tmp_path)
    assert fleet.server.orders.rates.state() == before


def test_private_runs_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"training\.lr: 'auto' is not for private runs.*set a number"):
        Recipe.load("quickstart", ["training.lr=auto", "privacy.noise=central", "privacy.epsilon=4"])
    assert Recipe.load("quickstart", ["training.lr=auto"]).training.lr == "auto"
