"""A method in a whole small run on digits, in this process: two rounds, four unequal devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cos2p.messages import Order, Update
from cos2p.methods import run_task
from cos2p.runtime.run_setup import RunSetup, build_run_setup, first_weights
from cos2p.runtime.simulation import Simulation
from cos2p.server.protocol import Send
from cos2p.server.server import Server
from cos2p.tracking.event_kinds import Event
from tests.runtime.played import Played
from tests.runtime.small import InlineWorkers, small
from tests.tiny import read_update

Events = list[tuple[str, Mapping[str, Any]]]


def run_setup_of(method: Mapping[str, Any], **changes: Any) -> RunSetup:
    recipe = small(**{"schedule": {"rounds": 2, "evaluate_every": 1}, **changes})
    return build_run_setup(recipe.model_copy(update={"method": dict(type(recipe).parse(_with(recipe, method)).method)}))


def _with(recipe: Any, method: Mapping[str, Any]) -> dict[str, Any]:
    return {**recipe.model_dump(mode="json", exclude_none=True), "method": dict(method)}


def play(method: Mapping[str, Any], **changes: Any) -> tuple[Simulation, Events]:
    """The simulated run, and every event of it as the log has it."""
    simulation, events = _played(method, **changes)
    return simulation, [(event.kind, event.to_dict()) for event in events]


def play_events(method: Mapping[str, Any], **changes: Any) -> list[Event]:
    return _played(method, **changes)[1]


def _played(method: Mapping[str, Any], **changes: Any) -> tuple[Simulation, list[Event]]:
    run_setup = run_setup_of(method, **changes)
    events: list[Event] = []
    simulation = Simulation(run_setup, InlineWorkers(run_setup), events.append)  # type: ignore[arg-type]
    simulation.begin()
    simulation.play(lambda: None)
    return simulation, events


def first_orders(run_setup: RunSetup) -> tuple[Server, list[Order]]:
    """A server that has just given everybody a task."""
    from cos2p.server.protocol import ClientJoined

    server = Played(run_setup.context, run_setup.method(), first_weights(run_setup.recipe, run_setup.config))
    effects = [e for name in run_setup.context.members for e in server.handle(ClientJoined(name))]
    return server, [e.order for e in effects if isinstance(e, Send)]


def answer(run_setup: RunSetup, server: Server, order: Order) -> Update:
    """What the device of this order sends back, as it comes out of the wire."""
    update, _ = run_task(run_setup.config, server.orders.task(order), run_setup.shards[order.client], {})
    return read_update(update.to_bytes())


def of(events: Events, kind: str) -> list[Mapping[str, Any]]:
    return [fields for name, fields in events if name == kind]


def check_two_rounds(settings: Mapping[str, Any]) -> tuple[Simulation, Events]:
    """Two rounds on digits go through, and give a score."""
    simulation, events = play(settings)
    result = simulation.figures.result()
    assert result["rounds"] == 2
    assert 0 < result["top1"] <= 1
    assert not of(events, "refused")
    return simulation, events
