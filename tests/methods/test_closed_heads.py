"""Exits that start in closed form: who tells when, what it is worth, and that a restart changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cos2p.errors import ConfigError
from cos2p.methods import Method, Settings, methods
from cos2p.methods.base import RunContext
from cos2p.methods.closed_heads import check_has_classes, statistics_assignment
from cos2p.methods.head_start import HeadStart
from cos2p.models.sizes import model
from cos2p.training.statistics import StatisticsSettings, statistics_memory, statistics_spec
from tests.methods.fleet import Fleet, check_a_restart_changes_nothing, digits_house
from tests.methods.played import play

MEANS = {"name": "cos2p", "exits": {"start": "means"}}


def test_every_device_tells_once_and_trains_from_then_on() -> None:
    fleet = Fleet(digits_house(rounds=3, mu=1.0, t_clk=0.0, redispatch="at-aggregation"), MEANS).run()
    kinds = [(order.client, order.trainer) for order in fleet.orders]
    for client in fleet.context.members:
        assert [kind for name, kind in kinds if name == client] == ["statistics", "submodel", "submodel"]


def test_nobody_trains_before_the_first_version_even_if_tasks_follow_at_once() -> None:
    fleet = Fleet(digits_house(rounds=3, mu=1.0, t_clk=0.0, redispatch="at-once"), MEANS).run()
    assert {order.version for order in fleet.orders if order.trainer == "submodel"} >= {1}
    assert 0 not in {order.version for order in fleet.orders if order.trainer == "submodel"}


@pytest.mark.parametrize(("start", "least"), [("means", 0.17), ("discriminant", 0.25)])
def test_one_pass_over_random_features_is_better_than_chance(start: str, least: float) -> None:
    method = {"name": "cos2p", "exits": {"start": start}}
    simulation, events = play(method, schedule={"rounds": 1, "mu": 1.0, "evaluate_every": 1})
    assert simulation.figures.result()["top1"] > least
    told = [values for kind, values in events if kind in ("dispatched", "merged")]
    assert all(low == top for low, top in (values["window"] for values in told)), "nobody trained a block"
    assert {tuple(values.get("kept", ())) for values in told} == {()}
    assert simulation.figures.n_star is None


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    check_a_restart_changes_nothing({"name": "cos2p", "exits": {"start": "discriminant"}}, tmp_path, updates=8)


def small_memory(context: RunContext, memory: int) -> int:
    member = next(iter(context.members.values()))
    member = replace(member, batch=64, device=member.device.model_copy(update={"memory": memory}))
    settings = statistics_assignment(context, member, (2,), "means").settings
    assert isinstance(settings, StatisticsSettings)
    return settings.batch


def test_a_small_device_passes_fewer_samples_at_a_time() -> None:
    context = digits_house(rounds=1)
    member = next(iter(context.members.values()))
    settings = StatisticsSettings(depths=(2,), batch=8)
    memory = statistics_memory(context.config, statistics_spec(context.config), settings, member.samples).total
    assert small_memory(context, 10**9) == 64
    assert 1 <= small_memory(context, memory) <= 8
    assert small_memory(context, 1) == 1  # the server then refuses it, with both numbers


def test_a_language_model_has_no_classes_to_tell_of() -> None:
    with pytest.raises(ConfigError, match=r"exits.start = 'fresh'"):
        check_has_classes(model("llama-nano", vocab=100, task="language-modeling"))


OTHERS = ("fedavg", "fedasync", "fedbuff", "fedrolex", "ramfed", "fedavg-platon", "prunefl", "heterofl", "fedmezo")


@pytest.mark.parametrize("name", OTHERS)
def test_any_method_can_begin_so(name: str) -> None:
    fleet = Fleet(digits_house(updates=6, mu=1.0, t_clk=0.0), {"name": name, "start": "means"}).run()
    head = f"exits.{fleet.context.config.depth}.linear.weight"
    kinds = [order.trainer for order in fleet.orders]
    told = kinds.count("statistics")
    assert told == len(fleet.context.members)
    assert "statistics" not in kinds[told:]
    assert all(order.version > 0 for order in fleet.orders if order.trainer != "statistics"), "the head comes first"
    assert not torch.equal(fleet.server.weights[head], fleet.start[head])


@pytest.mark.parametrize("name", ["fedavg", "ramfed", "fedavg-platon"])
def test_a_restart_of_any_changes_nothing(name: str, tmp_path: Path) -> None:
    check_a_restart_changes_nothing({"name": name, "start": "discriminant"}, tmp_path, updates=8)


def test_with_a_checkpoint_every_method_begins_so_unless_told_otherwise() -> None:
    for name, kind in methods().items():
        if issubclass(kind.settings_type, HeadStart) and name != "fedncm":
            assert kind.pretrained(language=False) == {"start": "discriminant"}, name
            assert kind.pretrained(language=True) == {}, name


def test_a_field_of_that_name_may_mean_something_else_in_a_method_of_ones_own() -> None:
    class Begins(Settings):
        start: int = 3

    class Own(Method):
        settings_type = Begins

    assert Own.pretrained(language=False) == {}
