from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from cos2p.errors import UpdateRefused
from cos2p.messages import Update
from cos2p.models.layout import Weights
from cos2p.models.spec import BlockKeep, SubmodelSpec
from cos2p.server.protocol import ClientJoined
from cos2p.server.server import Server
from cos2p.server.update_reader import root_mean_square
from tests.aggregation.brute import random_delta
from tests.runtime.played import answer, check_update, join_all, notes, sent, server, snapshot
from tests.test_messages import HOSTILE
from tests.tiny import VIT, same

Wrong = Callable[[Update], Update]


def with_delta(change: Callable[[Weights], Any]) -> Wrong:
    def apply(update: Update) -> Update:
        delta = dict(update.delta)
        change(delta)
        return replace(update, delta=delta)

    return apply


def with_spec(change: Callable[[SubmodelSpec], SubmodelSpec]) -> Wrong:
    def apply(update: Update) -> Update:
        spec = change(update.spec)
        try:
            delta = random_delta(VIT, spec, 0)
        except ValueError:  # not a submodel of this model at all
            delta = update.delta
        return replace(update, spec=spec, delta=delta)

    return apply


def widened(spec: SubmodelSpec) -> SubmodelSpec:
    return replace(spec, window=(BlockKeep.full(VIT), *spec.window[1:]))


def other_unit(spec: SubmodelSpec) -> SubmodelSpec:
    first = spec.window[0]
    spare = next(unit for unit in range(VIT.mlp) if unit not in first.units)
    return replace(spec, window=(BlockKeep.of(first.heads, (*first.units[1:], spare)), *spec.window[1:]))


def corrupted(value: float) -> Wrong:
    def change(delta: Weights) -> None:
        name = "blocks.1.q.weight" if "blocks.1.q.weight" in delta else next(iter(delta))
        delta[name] = delta[name].clone()
        delta[name].flatten()[3] = value

    return with_delta(change)


WRONG: dict[str, tuple[Wrong, str]] = {
    "another client": (lambda u: replace(u, client="pi-2"), "its client is 'pi-2', the task's is 'pi-0'"),
    "a client that never was": (lambda u: replace(u, client="stranger"), "its client is 'stranger'"),
    "a task never given": (lambda u: replace(u, task="pi-0#99"), "its task is 'pi-0#99', the task's is 'pi-0#0'"),
    "another client's task": (lambda u: replace(u, task="pi-1#0"), "its task is 'pi-1#0'"),
    "a later version": (lambda u: replace(u, version=1), "its version is 1, the task's is 0"),
    "a negative version": (lambda u: replace(u, version=-1), "its version is -1"),
    "a block too far": (with_spec(lambda s: replace(s, frozen=s.frozen + 9)), "not one of this model"),
    "a unit that does not exist": (
        with_spec(lambda s: replace(s, window=(BlockKeep((0,), (10,)), *s.window[1:]))),
        "has no unit 10",
    ),
    "another window": (
        with_spec(lambda s: replace(s, frozen=s.frozen + 1, exits=tuple(e + 1 for e in s.exits))),
        "its window or exits are not those of the task",
    ),
    "one exit only": (with_spec(lambda s: replace(s, exits=(s.frozen + 1, s.top))), "its window or exits"),
    "more than the quota": (with_spec(widened), "4 heads and 10 units kept, 2 and 5 allowed"),
    "a unit more than the quota": (
        with_spec(lambda s: replace(s, window=(BlockKeep((0, 1), (0, 1, 2, 3, 4, 5)), *s.window[1:]))),
        "2 heads and 6 units kept, 2 and 5 allowed",
    ),
    "a head more than the quota": (
        with_spec(lambda s: replace(s, window=(BlockKeep((0, 1, 2), (0, 1)), *s.window[1:]))),
        "3 heads and 2 units kept, 2 and 5 allowed",
    ),
    "a tensor too few": (with_delta(lambda d: d.pop("blocks.0.q.weight")), r"blocks\.0\.q\.weight is missing"),
    "no tensor at all": (with_delta(lambda d: d.clear()), "is missing"),
    "a tensor too many": (with_delta(lambda d: d.update({"blocks.3.q.weight": torch.zeros(1)})), r"blocks\.3\.q"),
    "a frozen thing": (with_delta(lambda d: d.update({"malice": torch.zeros(1)})), "malice"),
    "a wrong shape": (with_delta(lambda d: d.update({"blocks.0.q.bias": torch.zeros(3)})), r"shape \(3,\)"),
    "a transposed matrix": (
        with_delta(lambda d: d.update({"blocks.0.q.weight": d["blocks.0.q.weight"].t().contiguous()})),
        r"shape \(16, 8\)",
    ),
    "double precision": (
        with_delta(lambda d: d.update({"blocks.0.q.bias": d["blocks.0.q.bias"].double()})),
        "float64",
    ),
    "integers": (with_delta(lambda d: d.update({"blocks.0.q.bias": d["blocks.0.q.bias"].int()})), "int32"),
    "not a number": (corrupted(math.nan), "values that are not finite"),
    "infinite": (corrupted(math.inf), "values that are not finite"),
    "minus infinite": (corrupted(-math.inf), "values that are not finite"),
    "too large": (with_delta(lambda d: d.update({n: t + 99 for n, t in d.items()})), "root mean square is 99"),
    "one huge number": (corrupted(3e38), "root mean square is"),
    "no samples": (lambda u: replace(u, samples=0), "trained on 0 samples"),
    "more samples than the device has": (lambda u: replace(u, samples=11), "trained on 11 samples; 1 to 10"),
    "samples beyond measure": (lambda u: replace(u, samples=10**400), "not an update"),
}


def playing() -> Server:
    """An update of the round under way is merged; `pi-0` is at work on its first task, which has a mask phase."""
    played = server(rates=(0.25, 0.25, 0.25), mu=1.0, redispatch="at-aggregation", max_update_rms=10.0)
    join_all(played)
    played.receive("pi-1", answer(played, "pi-1").to_bytes())
    return played


def check_refused(played: Server, before: tuple[dict[str, Any], dict[str, Weights]], effects: list[Any]) -> None:
    """Nothing has changed but the sender's task, and the reason is written down."""
    values, groups = snapshot(played)
    assert groups.keys() == before[1].keys()
    assert all(same(groups[name], before[1][name]) for name in groups)
    assert values["current"] == before[0]["current"]
    assert values["method"]["masks"] == before[0]["method"]["masks"]
    for key in ("version", "merged", "finished", "reported"):
        assert values["coordinator"][key] == before[0]["coordinator"][key]
    (note,) = notes(effects, "refused")
    assert (note["client"], note["task"]) == ("pi-0", "pi-0#0")
    (order,) = sent(effects)
    assert (order.client, order.task, order.cycle) == ("pi-0", "pi-0#1", 0)


@pytest.mark.parametrize(("wrong", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_update_changes_nothing_and_its_client_gets_a_new_task(wrong: Wrong, reason: str) -> None:
    played = playing()
    bad = wrong(answer(played, "pi-0"))
    before = snapshot(played)
    with pytest.raises(UpdateRefused, match=reason) as refusal:
        check_update(bad, played.orders["pi-0#0"], VIT, max_rms=10.0, max_samples=10)
    effects = played.receive("pi-0", bad)
    check_refused(played, before, effects)
    assert notes(effects, "refused")[0]["reason"] == str(refusal.value)


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_bytes_that_are_no_update_are_refused_alike(data: bytes) -> None:
    played = playing()
    before = snapshot(played)
    effects = played.receive("pi-0", data)
    check_refused(played, before, effects)
    assert notes(effects, "refused")[0]["reason"].startswith("not an update: ")


def test_segments_that_were_not_offered_are_refused() -> None:
    """Candidates were a part of the block, and the device keeps another one."""
    played = playing()
    order = played.orders["pi-0#0"]
    assert order.quotas is not None
    offered = replace(order.spec, window=tuple(BlockKeep(k.heads[:3], k.units[:7]) for k in order.spec.window))
    narrow = replace(order, spec=offered)
    good = answer(played, "pi-0")
    check_update(good, narrow, VIT)
    kept = BlockKeep((0, 3), good.spec.window[0].units)
    spec = replace(good.spec, window=(kept, *good.spec.window[1:]))
    with pytest.raises(UpdateRefused, match="block 0: it keeps segments that were not offered"):
        check_update(replace(good, spec=spec), narrow, VIT)


def test_without_a_mask_phase_the_spec_has_to_be_the_tasks_own() -> None:
    played = playing()
    order = replace(played.orders["pi-0#0"], quotas=None, spec=answer(played, "pi-0").spec)
    good = answer(played, "pi-0")
    check_update(good, order, VIT)
    with pytest.raises(UpdateRefused, match="its heads or units are not those of the task"):
        check_update(with_spec(other_unit)(good), order, VIT)
    fewer = replace(good.spec, window=(BlockKeep((), ()), *good.spec.window[1:]))
    with pytest.raises(UpdateRefused, match="its heads or units are not those of the task"):
        check_update(with_spec(lambda _: fewer)(good), order, VIT)


def test_a_device_may_keep_less_than_its_quota() -> None:
    played = playing()
    good = answer(played, "pi-0")
    fewer = replace(good.spec, window=(BlockKeep((), ()), *good.spec.window[1:]))
    check_update(with_spec(lambda _: fewer)(good), played.orders["pi-0#0"], VIT)


def test_the_good_update_is_let_in_and_its_size_is_told() -> None:
    played = playing()
    good = answer(played, "pi-0")
    numbers = torch.cat([tensor.flatten() for tensor in good.delta.values()])
    expected = numbers.double().square().mean().sqrt().item()
    assert check_update(good, played.orders["pi-0#0"], VIT) == pytest.approx(expected, rel=1e-5)
    effects = played.receive("pi-0", good.to_bytes())
    assert notes(effects, "refused") == []
    assert notes(effects, "merged")[0]["size"] == pytest.approx(expected, rel=1e-5)


def test_a_repeated_answer_is_noted_and_does_not_disturb_the_work_under_way() -> None:
    played = server(rates=(0.25, 0.25, 0.25), mu=1.0, redispatch="at-once")
    join_all(played)
    data = answer(played, "pi-0").to_bytes()
    played.receive("pi-0", data)
    before = snapshot(played)
    (note,) = notes(played.receive("pi-0", data), "refused")
    assert (note["task"], note["reason"]) == ("pi-0#0", "its task is closed: answered before, or given up")
    after = snapshot(played)
    assert after[0] == before[0]
    assert all(same(after[1][name], before[1][name]) for name in before[1])


def test_who_has_no_open_task_is_only_noted() -> None:
    played = playing()
    before = snapshot(played)
    for sender in ("pi-1", "stranger"):  # one has reported and waits, the other was never here
        effects = played.receive(sender, replace(answer(played, "pi-0"), client=sender))
        assert [note["reason"] for note in notes(effects, "refused")] == ["it has no open task"]
        assert len(effects) == 1
    assert snapshot(played)[0] == before[0]


def test_who_is_refused_time_and_again_is_benched() -> None:
    played = playing()
    excluded = []
    for _ in range(5):
        excluded = notes(played.receive("pi-0", b"garbage"), "excluded")
    assert [note["client"] for note in excluded] == ["pi-0"]
    assert "not an update" in excluded[0]["reason"]
    assert notes(played.receive("pi-0", b"garbage"), "refused")[0]["reason"] == "it is excluded from this run"
    again = played.handle(ClientJoined("pi-0"))  # it says that it is ready: nothing changes
    assert [note["client"] for note in notes(again, "excluded")] == ["pi-0"]
    assert len(again) == 1


def test_an_excluded_client_has_no_open_task_and_keeps_no_version() -> None:
    """It was at work on version 0 while the others made version 1, which only its task still needs."""
    played = server(rates=(0.25, 0.25, 0.25, 0.25), mu=0.5, t_clk=0.0)
    join_all(played)
    late = answer(played, "pi-0").to_bytes()
    for other in ("pi-1", "pi-2", "pi-3") * 2:
        played.receive(other, answer(played, other).to_bytes())
    assert played.coordinator.in_flight()["pi-0"].version == min(played.versions.held) == 0
    assert [note["client"] for note in notes(played.exclude("pi-0", "it commanded others"), "excluded")] == ["pi-0"]
    assert "pi-0" not in played.coordinator.in_flight()
    assert 0 not in played.versions.held
    before = snapshot(played)
    (refused,) = notes(played.receive("pi-0", late), "refused")
    assert refused["reason"] == "it is excluded from this run"
    after = snapshot(played)
    assert after[0] == before[0]
    assert all(same(after[1][name], before[1][name]) for name in before[1])


def test_root_mean_square_by_hand() -> None:
    assert root_mean_square({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([[0.0], [5.0]])}) == pytest.approx(
        math.sqrt(50 / 4)
    )
    assert root_mean_square({}) == 0.0
    assert root_mean_square({"a": torch.tensor([3e30])}) == pytest.approx(3e30)
    assert math.isnan(root_mean_square({"a": torch.tensor([math.nan])}))
    assert math.isinf(root_mean_square({"a": torch.tensor([-math.inf, 1.0])}))
