"""What happens on a network becomes events and tasks: played by hand, in one process, with real tensors."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from cos2p.errors import TrainingError
from cos2p.fleet.server.inbox import Answered
from cos2p.fleet.spool import Notice
from cos2p.models.layout import Weights
from cos2p.models.spec import from_bits
from cos2p.recipe import Recipe
from cos2p.runtime.simulation import run as simulate
from cos2p.tracking.event_kinds import Arrived, Joined
from cos2p.tracking.events import read_events
from cos2p.training.embeddings import token_rows
from tests.fleet.bench import Bench
from tests.fleet.lab import small_recipe
from tests.runtime.texts import text_recipe


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, small_recipe(2, rounds=3, schedule__t_clk=0.0))
    made.start()
    yield made
    made.stop()


def make(tmp_path: Path, recipe: Recipe) -> Bench:
    made = Bench(tmp_path, recipe)
    made.start()
    return made


def same(a: Weights, b: Weights) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_a_run_from_first_to_last_round(bench: Bench) -> None:
    bench.join("dev-1")
    bench.join("dev-2")
    while bench.driver.finished is None:
        bench.answer("dev-1")
        bench.answer("dev-2")
        bench.wait(lambda: bench.driver.finished or {"dev-1", "dev-2"} <= bench.offers.keys())
    bench.wait(lambda: bench.events("finished"))
    result = bench.driver.figures.result()
    assert (bench.driver.finished, result["rounds"]) == ("rounds", 3)
    assert result["updates"] == len(bench.events("merged"))
    assert result["bytes_up"] == sum(event["bytes"] for event in bench.events("arrived"))


def test_the_same_order_of_arrival_gives_the_same_decisions_and_the_same_model(tmp_path: Path) -> None:
    """One recipe simulated, then played by hand in the order in which the simulated updates arrived."""
    recipe = small_recipe(2, rounds=3, method__name="cos2p-sync", run__workers=1)
    simulate(recipe, tmp_path / "virtual")
    log = list(read_events(tmp_path / "virtual" / "events.jsonl"))
    bench = make(tmp_path, recipe)
    for event in log:
        if isinstance(event, Joined):
            bench.join(event.client)
            bench.wait(lambda client=event.client: bench.events("joined", client))
        elif isinstance(event, Arrived):
            merged = len(bench.events("merged"))
            bench.answer(event.client)
            bench.wait(lambda merged=merged: len(bench.events("merged")) > merged)
    bench.wait(lambda: bench.events("finished"))
    for kind in ("dispatched", "merged", "aggregated"):
        simulated = [decided(event.to_dict()) for event in log if event.kind == kind]
        assert [decided(event) for event in bench.events(kind)] == simulated, kind
    virtual = safetensors.torch.load_file(tmp_path / "virtual" / "weights.safetensors")
    assert all(torch.allclose(bench.driver.server.weights[name], virtual[name], atol=1e-6) for name in virtual)
    bench.stop()


def test_the_model_that_is_judged_is_the_methods_own(tmp_path: Path) -> None:
    """HeteroFL's is the largest device's, thinner than the server's."""
    recipe = small_recipe(1, rounds=1, method={"name": "heterofl"}, schedule__evaluate_every=1)
    bench = make(tmp_path, recipe)
    bench.join("dev-1")
    bench.answer("dev-1")
    bench.wait(lambda: bench.events("finished"))
    method, weights = bench.driver.server.method, bench.driver.server.weights
    name = "blocks.0.fc1.weight"
    assert bench.evaluator.judged[-1][name].shape < weights[name].shape
    assert same(bench.evaluator.judged[-1], method.evaluated_weights(weights))
    bench.stop()


def decided(event: Mapping[str, Any]) -> dict[str, Any]:
    """What the server decided, without what was measured."""
    names = ("client", "task", "version", "cycle", "window", "exits", "masks", "lr", "staleness", "clients", "updates")
    return {name: event[name] for name in names if name in event}


def test_a_late_update_is_merged_with_its_staleness(bench: Bench) -> None:
    bench.join("dev-1")
    bench.join("dev-2")
    late = bench.train("dev-2")
    bench.answer("dev-1")
    bench.wait(lambda: bench.driver.server.coordinator.version == 1)
    bench.answer("dev-2", late)
    merged = bench.wait(lambda: bench.events("merged", "dev-2"))[0]
    assert (merged["version"], merged["staleness"]) == (0, 1)


def test_a_client_that_restarts_gets_a_new_task(bench: Bench) -> None:
    bench.join("dev-1")
    first = bench.train("dev-1")
    bench.join("dev-1", session="another")
    bench.wait(lambda: len(bench.events("dispatched", "dev-1")) == 2)
    assert bench.events("dispatched", "dev-1")[1]["task"] != first.task
    with pytest.raises(Exception, match="does not have"):
        bench.push("dev-1", first.task, first.to_bytes())


def test_an_older_process_of_a_client_has_nothing_to_say(bench: Bench) -> None:
    bench.join("dev-1", session="new")
    bench.wait(lambda: bench.events("joined", "dev-1"))
    bench.driver.ready("dev-1", "old", None)  # type: ignore[arg-type]  # never looked at
    time.sleep(0.3)
    assert len(bench.events("joined", "dev-1")) == 1


def test_who_is_silent_has_left_and_is_not_waited_for(tmp_path: Path) -> None:
    recipe = small_recipe(2, rounds=2, method__name="cos2p-sync", fleet__heartbeat_seconds=60)
    bench = make(tmp_path, recipe)
    bench.join("dev-1")
    bench.join("dev-2")
    bench.wait(lambda: len(bench.events("dispatched")) == 2)
    bench.answer("dev-1")
    bench.wait(lambda: bench.events("merged", "dev-1"))
    bench.clock = 59.0
    bench.driver.heartbeat("dev-1", "s")
    bench.clock = 61.0
    bench.wait(lambda: bench.driver.server.coordinator.version == 1)  # the round closed without dev-2
    assert [event["client"] for event in bench.events("left")] == ["dev-2"]
    bench.stop()


def test_slow_is_not_dead(tmp_path: Path) -> None:
    bench = make(tmp_path, small_recipe(1, rounds=1, schedule__t_clk=0.0, fleet__heartbeat_seconds=60))
    bench.join("dev-1")
    update = bench.train("dev-1")
    for _ in range(100):  # a task of an hour and a half
        bench.driver.heartbeat("dev-1", "s")
        bench.clock += 55.0
        time.sleep(0.005)
    assert not bench.events("left")
    bench.answer("dev-1", update)
    bench.wait(lambda: bench.events("finished"))
    bench.stop()


def test_who_was_silent_and_answers_after_all_is_merged(tmp_path: Path) -> None:
    bench = make(tmp_path, small_recipe(1, rounds=1, schedule__t_clk=0.0, fleet__heartbeat_seconds=60))
    bench.join("dev-1")
    update = bench.train("dev-1")
    bench.clock = 61.0
    bench.wait(lambda: bench.events("left", "dev-1"))
    bench.answer("dev-1", update)
    bench.wait(lambda: bench.events("finished"))
    assert len(bench.events("merged")) == 1
    bench.stop()


def test_who_is_heard_again_takes_part_again(tmp_path: Path) -> None:
    """It did its part, waits for the next version, and its link is down for a while."""
    recipe = small_recipe(2, schedule__redispatch="at-aggregation", schedule__mu=1.0, schedule__t_clk=0.0,
                          fleet__heartbeat_seconds=60)  # fmt: skip
    bench = make(tmp_path, recipe)
    bench.join("dev-1")
    bench.join("dev-2")
    bench.answer("dev-1")
    bench.wait(lambda: bench.events("merged", "dev-1"))
    bench.clock = 59.0
    bench.driver.heartbeat("dev-2", "s")
    bench.clock = 61.0
    bench.wait(lambda: bench.events("left", "dev-1"))
    bench.driver.heartbeat("dev-1", "s")
    bench.wait(lambda: len(bench.events("joined", "dev-1")) == 2)
    bench.answer("dev-2")
    bench.wait(lambda: len(bench.events("dispatched", "dev-1")) == 2)
    bench.stop()


def test_out_of_memory_lowers_the_rate_to_what_the_ledger_says(tmp_path: Path) -> None:
    recipe = small_recipe(
        1, model__dim=128, model__mlp=512, fleet__enforce_memory=False,
        fleet__devices=[{"preset": "laptop", "name": "dev", "rate": 1.0, "batch": 16}],
        method__masks={"heads": "fixed", "units": "fixed"},
    )  # fmt: skip
    bench = make(tmp_path, recipe)
    bench.join("dev-1", memory=20_000_000)
    first = bench.fetch("dev-1")
    assert len(first.order.spec.window) == 4
    numbers = {"memory": 20_000_000, "peak": 19_000_000, "asked": 4_000_000}
    bench.take_offer("dev-1")
    bench.driver.answered(Answered("dev-1", first.order.task, None, "out of memory: …", True, numbers))
    smaller = bench.fetch("dev-1")
    lowered = bench.events("lowered")[0]
    assert lowered["was"] == 1.0
    assert lowered["rate"] < 1.0
    assert bench.events("failed")[0]["measured"] == numbers
    assert sum(t.numel() for t in smaller.weights.values()) < sum(t.numel() for t in first.weights.values())
    bench.join("dev-1", session="restarted", memory=20_000_000)  # a restart does not give it the old rate back
    bench.wait(lambda: len(bench.events("joined")) == 2)
    assert bench.driver.server.context.members["dev-1"].rate == lowered["rate"]
    bench.stop()


def test_a_run_nobody_can_go_on_with_ends_with_the_reason(bench: Bench) -> None:
    bench.join("dev-1")
    for _ in range(bench.driver.server.coordinator.rules.max_failures):
        notice = bench.take_offer("dev-1")
        bench.driver.answered(Answered("dev-1", notice.task, None, "nothing works here"))
    with pytest.raises(TrainingError, match=r"no device is able to go on; dev-1: .*nothing works here"):
        bench.wait(lambda: False)


def test_a_device_with_more_data_or_memory_than_the_recipe_says_is_taken_as_it_is(tmp_path: Path) -> None:
    recipe = small_recipe(1, fleet__devices=[{"preset": "laptop", "name": "other", "batch": 16}])
    bench = Bench(tmp_path, recipe)
    bench.run_setup.shards["stranger"] = bench.run_setup.shards["other-1"]
    bench.start()
    bench.join("stranger", memory=6_000_000)
    bench.wait(lambda: bench.events("joined", "stranger"))
    member = bench.driver.server.context.members["stranger"]
    assert member.device.memory == 6_000_000
    assert 0 < member.rate < 1  # chosen by the ledger
    bench.answer("stranger", bench.train("stranger"))
    bench.wait(lambda: bench.events("merged", "stranger"))
    bench.stop()


def test_a_device_too_weak_for_any_submodel_is_told_and_the_others_go_on(bench: Bench) -> None:
    bench.join("dev-1")
    bench.join("dev-2", memory=10_000)
    unfit = bench.wait(lambda: bench.events("unfit"))
    assert unfit[0]["client"] == "dev-2"
    assert "has 10.0 kB" in unfit[0]["reason"]
    bench.answer("dev-1")
    bench.wait(lambda: bench.events("merged", "dev-1"))
    assert not bench.events("joined", "dev-2")


def test_texts_a_device_gets_the_rows_it_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, text_recipe(tmp_path))
    bench.start()
    one, other = bench.run_setup.shards
    rows = token_rows(bench.run_setup.shards[one], "rows")
    bench.join(one, rows=rows)
    bench.join(other, rows="00")
    assert "its texts have no token" in bench.wait(lambda: bench.events("unfit", other))[0]["reason"]
    assert bench.fetch(one).order.spec.rows == from_bits(rows)
    bench.answer(one)
    bench.wait(lambda: bench.events("merged", one))
    values = bench.driver.save().values
    assert [member["rows"] for member in json.loads(json.dumps(values))["members"]] == [rows]
    bench.stop()


def test_a_run_begins_with_those_who_can_take_part(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small_recipe(2, rounds=1))
    bench.driver.unfit("dev-2", "its data are nowhere")
    bench.driver.refused("dev-1", "", "its clock is 3600 s ahead")
    bench.join("dev-1")
    bench.driver.gather({"dev-1", "dev-2"}, 600.0)
    assert bench.kinds()[0] == "started"
    assert [event["reason"] for event in bench.events("refused", "dev-1")] == ["its clock is 3600 s ahead"]
    assert list(bench.driver.server.context.members) == ["dev-1"]
    assert [kind for kind in bench.kinds() if kind in ("unfit", "joined")] == ["unfit", "joined"]


def test_a_run_nobody_can_take_part_in_ends_with_the_reasons(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small_recipe(2, rounds=1))
    bench.driver.unfit("dev-2", "its data are nowhere")
    bench.join("dev-1", memory=10_000)
    with pytest.raises(
        TrainingError, match=r"no device is able to take part; dev-2: its data .*; dev-1: .* the device has 10"
    ):
        bench.driver.gather({"dev-1", "dev-2"}, 600.0)


def test_who_is_excluded_before_the_run_begins_is_not_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, small_recipe(2, rounds=1))
    bench.join("dev-2")
    bench.driver.exclude("dev-2", "it commands others")
    bench.join("dev-2", session="another")
    bench.join("dev-1")
    bench.driver.gather({"dev-1", "dev-2"}, 600.0)
    assert list(bench.driver.server.context.members) == ["dev-1"]
    assert [event["reason"] for event in bench.events("unfit", "dev-2")] == ["it commands others"]


# ---------------------------------------------------------------- what is not let in


def refused(bench: Bench) -> list[str]:
    return [event["reason"] for event in bench.events("refused")]


def test_a_replayed_update_is_refused(bench: Bench) -> None:
    bench.join("dev-1")
    bench.join("dev-2")
    update = bench.answer("dev-1")
    bench.wait(lambda: bench.events("merged", "dev-1"))
    bench.wait(lambda: bench.offers.get("dev-1"))
    with pytest.raises(Exception, match="does not have"):
        bench.push("dev-1", update.task, update.to_bytes())
    # the same content under the name of the task it has now: the update itself gives it away
    task = bench.offers["dev-1"].task
    merged, weights = bench.driver.server.coordinator.merged, bench.driver.server.weights
    bench.driver.answered(Answered("dev-1", task, bench.push("dev-1", task, update.to_bytes())))
    bench.wait(lambda: bench.events("refused"))
    assert bench.driver.server.coordinator.merged == merged
    assert same(bench.driver.server.weights, weights)
    bench.wait(lambda: bench.events("dispatched", "dev-1")[-1]["task"] != task)  # and it is not waited for


def test_an_update_in_the_name_of_another_is_refused(bench: Bench) -> None:
    bench.join("dev-1")
    bench.join("dev-2")
    forged = replace(bench.train("dev-1"), client="dev-2")
    bench.driver.answered(Answered("dev-1", forged.task, bench.push("dev-1", forged.task, forged.to_bytes())))
    bench.wait(lambda: bench.events("refused"))
    assert not bench.events("merged")


def test_a_truncated_update_is_refused(bench: Bench) -> None:
    bench.join("dev-1")
    update = bench.train("dev-1")
    whole = update.to_bytes()
    half = bench.push("dev-1", bench.take_offer("dev-1").task, whole[: len(whole) // 2])
    bench.driver.answered(Answered("dev-1", update.task, half))
    bench.wait(lambda: bench.events("refused"))
    assert not bench.events("merged")
    bench.answer("dev-1")  # the client is not lost: its next task is as good as any
    bench.wait(lambda: bench.events("merged", "dev-1"))


def test_bytes_that_did_not_come_are_not_waited_for(bench: Bench) -> None:
    bench.join("dev-1")
    task = bench.train("dev-1").task
    bench.driver.answered(Answered("dev-1", task, Notice(task, 1000, "0" * 64)))
    bench.wait(lambda: bench.events("refused"))
    assert "did not come" in refused(bench)[0]
    bench.wait(lambda: len(bench.events("dispatched", "dev-1")) == 2)


@pytest.mark.parametrize("what", ["hello", "unfit", "refused"])
def test_who_sends_the_same_without_end_is_excluded(tmp_path: Path, what: str) -> None:
    bench = make(tmp_path, small_recipe(2, rounds=3))
    bench.join("dev-1")
    bench.join("dev-2")
    bench.wait(lambda: bench.events("joined", "dev-2"))
    for number in range(1000):
        call = {"hello": bench.driver.hello, "unfit": bench.driver.unfit}.get(what)
        bench.driver.refused("dev-2", "", "no offset") if call is None else call("dev-2", f"{number}")
    bench.wait(lambda: bench.events("excluded", "dev-2"))
    bench.answer("dev-1")
    bench.wait(lambda: bench.events("merged", "dev-1"))
    assert len(bench.events("unfit")) <= 60
    bench.stop()


def test_one_that_drips_holds_up_no_round_for_ever(tmp_path: Path) -> None:
    """A byte at a time, and each one a sign of life. The round waits twenty times as long as most answers took."""
    bench = make(tmp_path, small_recipe(3, rounds=3, method__name="cos2p-sync", fleet__heartbeat_seconds=60.0))
    for name in ("dev-1", "dev-2", "dev-3"):
        bench.join(name)
    held = bench.train("dev-3")
    data, task = held.to_bytes(), held.task
    slow = [bench.train("dev-1"), bench.train("dev-2")]
    bench.clock += 30.0
    for update in slow:
        bench.answer(update.client, update)
    bench.wait(lambda: len(bench.events("merged")) == 2)
    notice = Notice(task, len(data), hashlib.sha256(data).hexdigest())
    for number in range(58):  # ten minutes less ten seconds
        bench.clock += 10.0
        bench.transfers.push("dev-3", notice, number, memoryview(data[number : number + 1]))
        for name in ("dev-1", "dev-2", "dev-3"):
            bench.driver.heartbeat(name)
        time.sleep(0.01)
    assert not bench.events("aggregated")
    for _ in range(4):
        bench.clock += 10.0
        bench.driver.heartbeat("dev-3")
    bench.wait(lambda: bench.events("aggregated"))
    assert sorted(bench.events("aggregated")[0]["clients"]) == ["dev-1", "dev-2"]
    bench.transfers.push("dev-3", notice, 58, memoryview(data[58:]))  # it is late, and not lost
    bench.driver.answered(Answered("dev-3", task, notice))
    bench.wait(lambda: bench.events("merged", "dev-3"))
    bench.stop()


def test_who_is_excluded_is_not_heard_any_more(tmp_path: Path) -> None:
    recipe = small_recipe(2, rounds=3, method__name="cos2p-sync")  # every round waits for all who take part
    bench = make(tmp_path, recipe)
    bench.join("dev-1")
    bench.join("dev-2")
    update = bench.train("dev-2")
    notice = bench.push("dev-2", update.task, update.to_bytes())
    bench.driver.exclude("dev-2", "it commands others")
    bench.driver.answered(Answered("dev-2", update.task, notice))
    bench.join("dev-2", session="another")
    assert bench.wait(lambda: bench.events("excluded", "dev-2"))[0]["reason"] == "it commands others"
    for _ in range(3):
        bench.answer("dev-1")
        bench.wait(lambda: bench.driver.finished or "dev-1" in bench.offers)
    assert bench.driver.finished == "rounds"
    assert {event["client"] for event in bench.events("merged")} == {"dev-1"}
    assert len(bench.events("joined", "dev-2")) == len(bench.events("dispatched", "dev-2")) == 1
    values = json.loads(json.dumps(bench.driver.save().values))
    assert values["server"]["robust_filter"]["excluded"] == {
        "dev-2": "it commands others"
    }  # a new process of the server knows
    bench.stop()
