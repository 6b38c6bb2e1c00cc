from __future__ import annotations

from cos2p.methods import build_method
from cos2p.methods.base import Call
from cos2p.models.layout import init_weights
from cos2p.models.spec import SubmodelSpec
from tests.methods.fleet import Fleet, digits_house, with_rates
from tests.tiny import VIT, assert_close, context, same


def spec(name: str, client: str, attempt: int) -> SubmodelSpec:
    tiny = context(VIT, rates=(0.25, 0.25))
    method = build_method({"name": name}, tiny)
    return method.assign(Call(tiny.members[client], 0, 0, attempt, init_weights(VIT, 0))).spec


def test_every_task_of_every_client_is_a_draw_of_its_own() -> None:
    specs = {spec("ramfed", client, attempt) for client in ("pi-0", "pi-1") for attempt in range(4)}
    assert len(specs) == 8


def test_both_draw_the_same_submodels() -> None:
    assert spec("ramfed", "pi-0", 3) == spec("rafed", "pi-0", 3)


def test_with_the_whole_model_it_is_fedavg() -> None:
    everybody = with_rates(digits_house(rounds=1), 1.0, 1.0, 1.0)
    fedavg = Fleet(everybody, {"name": "fedavg"}).run().server.weights
    assert_close(Fleet(everybody, {"name": "ramfed"}).run().server.weights, fedavg, atol=1e-6)
    assert same(Fleet(everybody, {"name": "rafed"}).run().server.weights, fedavg)


def test_memory_makes_a_difference_from_the_second_round_on() -> None:
    def weights(name: str, rounds: int) -> list[float]:
        fleet = Fleet(with_rates(digits_house(rounds=rounds), 0.5), {"name": name}).run()
        return fleet.server.weights["blocks.0.fc1.weight"].flatten().tolist()

    assert weights("ramfed", 1) == weights("rafed", 1)  # one client: 1/N is the mean over the holders
    assert weights("ramfed", 2) != weights("rafed", 2)
