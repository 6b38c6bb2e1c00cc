"""Exits that start or end in closed form: who tells when, what it is worth, and that a restart changes nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cos2p import ElasticTransformer, SubmodelSpec
from cos2p.aggregation.head_merge import closed_form
from cos2p.errors import ConfigError
from cos2p.memory.ways import fitted_order
from cos2p.methods import Method, Settings, build_method, methods
from cos2p.methods.base import HeadSettings, RunContext
from cos2p.methods.closed_heads import check_has_classes, statistics_task
from cos2p.models.context import make_context
from cos2p.models.layout import Weights
from cos2p.models.sizes import model_config
from cos2p.server.protocol import ClientLeft
from cos2p.training.statistics import StatisticsSettings, packed, statistics_memory, statistics_spec
from tests.methods.fleet import Fleet, digits, digits_house
from tests.methods.played import play

MEANS = {"name": "cos2p", "exits": {"start": "means"}}
BOTH = {"name": "cos2p", "exits": {"start": "means", "finish": "discriminant"}}


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
    reported = [values for kind, values in events if kind in ("dispatched", "merged")]
    assert all(low == top for low, top in (values["window"] for values in reported)), "nobody trained a block"
    assert {tuple(values.get("kept", ())) for values in reported} == {()}
    assert simulation.figures.n_star is None


def small_memory(context: RunContext, memory: int) -> int:
    member = next(iter(context.members.values()))
    member = replace(member, batch=64, device=member.device.model_copy(update={"memory": memory}))
    method = build_method({"name": "fedncm"}, replace(context, members={member.name: member}))
    order = fitted_order(method, member, statistics_task(method, member, "means"))
    settings = StatisticsSettings.model_validate(order.settings)
    return settings.memory_optimizations.at_once(settings.batch)


def test_a_small_device_passes_fewer_samples_at_a_time() -> None:
    context = digits_house(rounds=1)
    member = next(iter(context.members.values()))
    settings = StatisticsSettings(depths=(2,), batch=8)
    memory = statistics_memory(context.config, statistics_spec(context.config), settings, member.samples).total
    assert small_memory(context, 10**9) == 64
    assert 1 <= small_memory(context, memory) <= 16
    assert small_memory(context, 1) == 1  # the server then refuses it, with both numbers


def test_a_language_model_has_no_classes_to_tell_of() -> None:
    with pytest.raises(ConfigError, match=r"exits.start = 'fresh'"):
        check_has_classes(model_config("llama-nano", vocab=100, task="language-modeling"))


OTHERS = ("fedavg", "fedasync", "fedbuff", "fedrolex", "ramfed", "fedavg-platon", "prunefl", "heterofl", "fedmezo")


@pytest.mark.parametrize("name", OTHERS)
def test_any_method_can_begin_so(name: str) -> None:
    fleet = Fleet(digits_house(updates=6, mu=1.0, t_clk=0.0), {"name": name, "start": "means"}).run()
    head = f"exits.{fleet.context.config.depth}.linear.weight"
    kinds = [order.trainer for order in fleet.orders]
    reported = kinds.count("statistics")
    assert reported == len(fleet.context.members)
    assert "statistics" not in kinds[reported:]
    assert all(order.version > 0 for order in fleet.orders if order.trainer != "statistics"), "the head comes first"
    assert not torch.equal(fleet.server.weights[head], fleet.start[head])


ENDING = (
    *(name for name in OTHERS if name != "heterofl"),
    "cos2p",
    "fedlora",
    "fedra",
    "fedepth",
    "chain",
    "topwindow",
)


def closed_top(fleet: Fleet, weights: Weights) -> Tensor:
    """The discriminant of these weights' features, computed from all devices' samples at once."""
    config, shards = fleet.context.config, fleet.shards.values()
    model = ElasticTransformer(config, SubmodelSpec.full(config, (config.depth,))).load(weights).eval()
    sums: Weights = {}
    for shard in shards:
        inputs, labels = shard.train.batch(torch.arange(len(shard.train)), shard.normalize)
        with torch.no_grad():
            context, x_BTD = make_context(config, inputs), model.embed(inputs)
            for block in range(config.depth):
                x_BTD = model.blocks[str(block)](x_BTD, context)
            x_BD = model.exits[str(config.depth)].features(x_BTD, context)
        unit = torch.nn.functional.normalize(x_BD, dim=1)
        own = {
            "counts": torch.bincount(labels, minlength=config.classes).float(),
            "2.sums": torch.zeros(config.classes, config.dim).index_add_(0, labels, unit),
            "2.length": x_BD.norm(dim=1).sum(),
            "2.moments": packed(unit.T @ unit),
        }
        sums = {name: sums[name] + value if sums else value for name, value in own.items()}
    return closed_form(sums, 2, "discriminant", 0.3)[0]


@pytest.mark.parametrize("name", ENDING)
def test_any_method_can_end_so(name: str) -> None:
    """When all training is merged everybody tells of the model that is evaluated, adapters and all, and its head is
    just that of these features."""
    end = {"finish": "discriminant"}
    own = {"exits": end} if name in ("cos2p", "topwindow") else end
    house = digits_house(updates=9, mu=0.3, t_clk=0.0, redispatch="at-once")
    fleet = Fleet(house, {"name": name, **own})
    before: Weights = {}
    while fleet.done is None:
        if fleet.orders[-1].trainer == "statistics":
            before = before or dict(fleet.server.weights)
        fleet.answer()
    kinds = [order.trainer for order in fleet.orders]
    assert kinds[-3:] == ["statistics"] * 3
    assert "statistics" not in kinds[:-3], "three devices tell, at the end alone"
    assert {order.version for order in fleet.orders[-3:]} == {fleet.server.coordinator.version - 1}
    assert fleet.server.coordinator.merged == 9
    assert fleet.done == "max_updates"
    judged = fleet.method.evaluated_weights(before)
    head, wanted = fleet.server.weights["exits.2.linear.weight"], closed_top(fleet, judged)
    assert (head - wanted).abs().max() < 0.02 * wanted.abs().max()  # blocks travel in 16 bits
    rest = {
        n
        for n, t in before.items()
        if not n.startswith("exits.2.linear.") and not torch.equal(t, fleet.server.weights[n])
    }
    assert not rest, "telling changes the head alone"


def test_a_model_that_is_not_the_servers_own_cannot_end_so() -> None:
    with pytest.raises(ConfigError, match=r'HeteroFL is evaluated by another model .*method\.finish = "trained"'):
        Fleet(digits_house(updates=9), {"name": "heterofl", "finish": "discriminant"})


@pytest.mark.parametrize("schedule", [{"updates": 6}, {"rounds": 2}])
def test_there_has_to_be_something_left_to_train(schedule: dict[str, int]) -> None:
    for method in ({"name": "fedavg", "start": "means", "finish": "means"}, BOTH):
        with pytest.raises(ConfigError, match=r'only report sums of features.*finish = "trained"'):
            Fleet(digits_house(**schedule), method)


def test_where_some_take_part_the_last_round_has_as_many() -> None:
    """One of three devices at a time: six updates are not too few, though all three telling twice would take them."""
    house = digits_house(updates=6, mu=1.0, t_clk=0.0, redispatch="at-aggregation", clients_per_round=1)
    fleet = Fleet(house, {"name": "fedavg", "start": "means", "finish": "means"}).run()
    assert fleet.method.statistics_updates == 4
    assert fleet.server.coordinator.merged == 6
    assert [bool(order.settings.get("final")) for order in fleet.orders] == [False] * 5 + [True]


def test_devices_that_join_a_short_run_do_not_end_it() -> None:
    """Three tell at the start and three at the end of eight; with a fourth nothing would be left, and it goes on."""
    house = digits_house(updates=8, mu=1.0, t_clk=0.0, redispatch="at-aggregation")
    fleet = Fleet(house, BOTH).run(answers=4)
    member = next(iter(house.members.values()))
    for number in range(5):
        fleet.server.welcome(replace(member, name=f"late-{number}"))
    assert fleet.server.coordinator.rules.final_updates == 7
    fleet.run()
    assert fleet.done == "max_updates"


def test_who_does_not_want_to_tell_does_not_tell_at_the_end_either() -> None:
    form = {"name": "cos2p", "form": "pretrained", "exits": {"start": "fresh"}}
    fleet = Fleet(digits_house(rounds=2, mu=1.0, t_clk=0.0), form).run()
    assert {order.trainer for order in fleet.orders} == {"submodel"}
    assert not HeadSettings(finish="as-start").finish_form


def test_whoever_is_gone_is_not_waited_for_at_the_end() -> None:
    fleet = Fleet(digits_house(updates=12, mu=1.0, t_clk=0.0, redispatch="at-aggregation"), BOTH).run(answers=6)
    gone = fleet.orders[-1].client
    fleet.server.handle(ClientLeft(gone))
    fleet._pending = type(fleet._pending)(order for order in fleet._pending if order.client != gone)
    fleet.run()
    reported = [order.client for order in fleet.orders if order.settings.get("final")]
    assert sorted(reported) == sorted(fleet.context.members.keys() - {gone})
    assert fleet.done == "max_updates"
    assert fleet.server.coordinator.merged == 11


@pytest.mark.parametrize("answers", [8, 10])
def test_a_restart_shortly_before_the_end_changes_nothing(answers: int, tmp_path: Path) -> None:
    straight, broken = Fleet(digits_house(updates=12), BOTH).run(), Fleet(digits_house(updates=12), BOTH).run(answers)
    broken.restart(tmp_path)
    broken.run()
    assert all(torch.equal(a, broken.server.weights[name]) for name, a in straight.server.weights.items())


@pytest.mark.parametrize("end", ["updates", "rounds"])
def test_a_run_that_is_made_longer_in_its_last_round_trains_on(end: str, tmp_path: Path) -> None:
    """What was told stands until training moves on, and the longer run ends by telling too."""
    few = {"mu": 1.0, "t_clk": 0.0, "redispatch": "at-aggregation"}
    fleet = Fleet(digits_house(**few, **{end: 9 if end == "updates" else 3}), BOTH).run(answers=7)
    assert fleet.server.coordinator.in_final_round
    more = digits_house(**few, **{end: 15 if end == "updates" else 5})
    fleet.context = more
    fleet.restart(tmp_path)
    assert not fleet.server.coordinator.in_final_round
    fleet.run()
    assert [order.trainer for order in fleet.orders[9:]] == ["submodel"] * 3 + ["statistics"] * 3
    assert fleet.server.coordinator.merged == 15


def test_the_step_comes_down_to_where_training_ends() -> None:
    """The last round does not count: a run of nine updates that ends by telling steps as one of six."""
    training = digits().context.training.model_copy(update={"lr_schedule": "cosine"})

    def steps(**changes: Any) -> list[float]:
        house = digits_house(updates=changes.pop("updates"), mu=1.0, t_clk=0.0, redispatch="at-aggregation")
        fleet = Fleet(replace(house, training=training), {"name": "fedavg", **changes}).run()
        return [order.lr for order in fleet.orders if order.trainer != "statistics"]

    assert steps(updates=9, finish="means") == steps(updates=6)


OTHERWISE_EVALUATED = ("heterofl", "fedavg-adavit", "fedavg-qvit")


def test_with_a_checkpoint_every_method_begins_and_ends_so_unless_told_otherwise() -> None:
    for name, kind in methods().items():
        if issubclass(kind.settings_type, HeadSettings) and name != "fedncm":
            finish = {} if name in OTHERWISE_EVALUATED else {"finish": "as-start"}
            assert kind.pretrained(language=False) == {"start": "discriminant", **finish}, name
            assert kind.pretrained(language=True) == {}, name


def test_a_field_of_that_name_may_mean_something_else_in_a_method_of_ones_own() -> None:
    class Begins(Settings):
        start: int = 3

    class Own(Method):
        settings_type = Begins

    assert Own.pretrained(language=False) == {}
