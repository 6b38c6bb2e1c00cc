"""The virtual clock: what happens when, the same for everybody, whatever the devices do."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from cos2p.errors import BudgetError
from cos2p.messages import Task
from cos2p.messages.packing import Packet
from cos2p.recipe import Recipe
from cos2p.runtime.run_setup import build_run_setup
from cos2p.runtime.simulation import Simulation
from cos2p.runtime.workers import TaskOutcome
from cos2p.tracking.checkpoint import Checkpoint
from cos2p.training.masks import Remembered
from tests.runtime.small import VALUES, InlineWorkers, small

Events = list[tuple[str, Mapping[str, Any]]]


def play(**changes: Any) -> tuple[Simulation, Events]:
    run_setup = build_run_setup(small(**changes))
    events: Events = []
    simulation = Simulation(
        run_setup, InlineWorkers(run_setup), lambda event: events.append((event.kind, event.to_dict()))
    )  # type: ignore[arg-type]
    simulation.begin()
    simulation.play(lambda: None)
    return simulation, events


def of(events: Events, kind: str, **match: Any) -> list[Mapping[str, Any]]:
    return [f for k, f in events if k == kind and all(f[name] == value for name, value in match.items())]


def test_a_run_ends_after_its_rounds_with_every_figure() -> None:
    simulation, events = play()
    result = simulation.figures.result()
    assert result["rounds"] == 5
    assert result["updates"] == len(of(events, "merged"))
    assert 0 < result["top1"] <= 1
    assert 0 < result["client_top1"] <= 1
    assert result["bytes_down"] == sum(e["bytes"] for e in of(events, "dispatched"))
    assert result["bytes_up"] == sum(e["bytes"] for e in of(events, "arrived"))
    assert result["virtual_seconds"] == of(events, "finished")[0]["t"]
    assert sum(result["staleness"].values()) == result["updates"]
    for figures in result["devices"].values():
        assert 0 < figures["peak_memory"] <= figures["memory"]


def test_time_never_runs_backwards_and_an_answer_takes_as_long_as_its_phases() -> None:
    _, events = play()
    times = [fields["t"] for _, fields in events]
    assert times == sorted(times)
    for arrival in of(events, "arrived"):
        dispatch = of(events, "dispatched", task=arrival["task"])[0]
        assert arrival["t"] == pytest.approx(dispatch["t"] + sum(dispatch["seconds"].values()))


def test_masks_cost_time_and_bytes_only_while_they_train() -> None:
    _, events = play(schedule={"rounds": 8})
    for dispatch in of(events, "dispatched"):
        assert (dispatch["seconds"]["masks"] > 0) == dispatch["masks"]
    client = "jetson-agx-orin-64gb-1"
    with_masks = [e["bytes"] for e in of(events, "dispatched", client=client, masks=True)]
    without = [e["bytes"] for e in of(events, "dispatched", client=client, masks=False)]
    assert with_masks, without
    assert min(with_masks) > max(without)


def test_synchronous_rounds_wait_for_everybody() -> None:
    simulation, events = play(method={"name": "cos2p-sync"}, schedule={"rounds": 3})
    for round_ in of(events, "aggregated"):
        assert sorted(round_["clients"]) == sorted(simulation.run_setup.context.members)
    assert {e["staleness"] for e in of(events, "merged")} == {0}


def test_asynchronous_rounds_wait_for_nobody_and_use_everybody() -> None:
    simulation, events = play(method={"name": "cos2p-async"}, schedule={"rounds": 6})
    assert [round_["updates"] for round_ in of(events, "aggregated")] == [1] * 6
    assert simulation.figures.result()["ru"] == pytest.approx(1.0)


def test_semi_asynchronous_is_quicker_than_synchronous_for_as_many_updates() -> None:
    schedule = {"rounds": None, "updates": 16}
    semi, _ = play(schedule=schedule)
    sync, _ = play(schedule=schedule, method={"name": "cos2p-sync"})
    assert semi.figures.result()["updates"] == sync.figures.result()["updates"] == 16
    assert semi.now < 0.75 * sync.now
    assert semi.figures.result()["ru"] > 1.1 * sync.figures.result()["ru"]


def _fleet(**fault: Any) -> dict[str, Any]:
    weak, strong = VALUES["fleet"]["devices"]
    return {"devices": [{**weak, **fault}, strong]}


def _there(folder: Path, *sessions: tuple[float, float]) -> dict[str, str]:
    """`online` of a group whose devices are there in these seconds."""
    path = folder / "sessions.csv"
    path.write_text("device,from,to\n" + "".join(f"any,{begin},{end}\n" for begin, end in sessions))
    return {"online": str(path)}


def test_a_device_that_joins_late_gets_its_first_task_then(tmp_path: Path) -> None:
    _, events = play(fleet=_fleet(**_there(tmp_path, (20, 9000))))
    late = of(events, "dispatched", client="jetson-xavier-nx-8gb-1")
    assert late
    assert late[0]["t"] == 20.0


def test_a_device_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    early = _there(tmp_path, (0, 5))
    _, events = play(fleet=_fleet(**early), method={"name": "cos2p-sync"}, schedule={"rounds": 3})
    assert [e["clients"] for e in of(events, "aggregated")][-1] == ["jetson-agx-orin-64gb-1", "jetson-agx-orin-64gb-2"]
    assert not of(events, "dispatched", client="jetson-xavier-nx-8gb-1")[1:]


def test_devices_come_and_go_by_their_sessions(tmp_path: Path) -> None:
    """Two of four are there for 2 of every 30 seconds, too short for a task: what they had in hand is lost."""
    sessions = _there(tmp_path, *((t, t + 2) for t in (0, 30, 60, 90)))
    simulation, events = play(fleet=_fleet(**sessions), schedule={"rounds": 1000, "virtual_seconds": 70.0})
    assert [(e["t"], e["until"]) for e in of(events, "left", client="jetson-xavier-nx-8gb-1")] == [
        (2, 30),
        (32, 60),
        (62, 90),
    ]
    assert [e["t"] for e in of(events, "joined", client="jetson-xavier-nx-8gb-1")] == [0, 30, 60]
    assert not of(events, "merged", client="jetson-xavier-nx-8gb-1")
    assert simulation.figures.devices["jetson-xavier-nx-8gb-1"].lost == 3
    assert of(events, "merged", client="jetson-agx-orin-64gb-1")


def test_a_device_that_restarts_loses_its_task_and_gets_another() -> None:
    _, events = play(fleet=_fleet(drop_rate=0.5), schedule={"rounds": 40})
    lost = of(events, "lost")
    assert lost
    answered = {e["task"] for e in of(events, "arrived")}
    assert not answered & {e["task"] for e in lost}
    back = [e for e in of(events, "joined", client=lost[0]["client"]) if e["t"] > lost[0]["t"]]
    assert back[0]["t"] == pytest.approx(lost[0]["t"] + 60.0)


def test_the_end_of_virtual_time_ends_the_run_with_what_was_buffered() -> None:
    simulation, events = play(schedule={"virtual_seconds": 12.0})
    assert simulation.finished == "virtual time"
    assert of(events, "finished")[0]["t"] <= 12.0


def test_when_everybody_is_gone_the_run_ends_instead_of_waiting(tmp_path: Path) -> None:
    group = {"preset": "laptop", "count": 2, "rate": 0.5625, "batch": 32, "flops": 9e7, **_there(tmp_path, (0, 4))}
    simulation, _ = play(fleet={"devices": [group]}, schedule={"rounds": 50})
    assert simulation.finished is not None
    assert "no device is left" in simulation.finished


def test_a_task_over_the_memory_of_its_device_is_refused_with_both_numbers() -> None:
    with pytest.raises(
        BudgetError, match=r"nx-8gb-1.* needs .* has 1\.00 MB; .*(the largest rate|no submodel|even a window)"
    ):
        play(fleet=_fleet(memory="1MB"))


def _play_to_the_end(simulation: Simulation) -> None:
    simulation.begin()
    simulation.play(lambda: None)


def test_a_method_that_cannot_keep_a_budget_is_refused_alone_and_runs_as_a_bound() -> None:
    values = {**VALUES, "method": {"name": "fedavg"}, "fleet": _fleet(memory="1MB"), "schedule": {"rounds": 1}}
    alone = build_run_setup(Recipe.parse(values))
    refused = Simulation(alone, InlineWorkers(alone), lambda event: None)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="cannot train less of the model"):
        _play_to_the_end(refused)
    run_setup = build_run_setup(Recipe.parse(values), as_bound=True)
    simulation = Simulation(run_setup, InlineWorkers(run_setup), lambda event: None)  # type: ignore[arg-type]
    _play_to_the_end(simulation)
    weak = simulation.figures.result()["devices"]["jetson-xavier-nx-8gb-1"]
    assert weak["peak_memory"] > weak["memory"]


def test_without_a_local_test_part_clients_have_no_scores_and_all_data_trains() -> None:
    simulation, events = play(partition={"local_test": 0.0}, schedule={"rounds": 1})
    result = simulation.figures.result()
    assert (result["rounds"], result["client_top1"]) == (1, None)
    assert all(len(shard.test) == 0 for shard in simulation.run_setup.shards.values())
    assert not any("local_top1" in event["report"] for event in of(events, "merged"))
    assert all(device["top1"] is None for device in result["devices"].values())


BIG = "jetson-agx-orin-64gb-1"


class Short(InlineWorkers):
    """The first task of one device has no room on its accelerator."""

    def train(self, task: Packet, memory: Remembered) -> Future[TaskOutcome]:
        order = Task.from_bytes(bytes(task)).order
        if (order.client, order.attempt) != (BIG, 0):
            return super().train(task, memory)
        done: Future[TaskOutcome] = Future()
        done.set_result(TaskOutcome(None, b"", "out of memory on cuda:0", out_of_memory=True))
        return done


def test_a_device_whose_gpu_had_no_room_gets_smaller_tasks_also_after_a_restart(tmp_path: Path) -> None:
    run_setup = build_run_setup(small(schedule={"rounds": 2}))
    events: list[Any] = []

    def fresh() -> Simulation:
        return Simulation(run_setup, Short(run_setup), events.append)  # type: ignore[arg-type]

    simulation = fresh()
    simulation.begin()
    while simulation.finished is None and "lowered" not in {event.kind for event in events}:
        simulation.step()
    (reported,) = [event for event in events if event.kind == "lowered"]
    assert reported.client == BIG
    assert reported.rate < reported.was == run_setup.context.members[BIG].rate
    simulation.save().write(tmp_path / "checkpoint")
    again = fresh()
    stored = Checkpoint.read(tmp_path / "checkpoint")
    again.restore(stored.values, stored)
    for one in (simulation, again):
        assert one.server.context.members[BIG].rate == reported.rate
        assert one.server.context.members[BIG].largest > 0
