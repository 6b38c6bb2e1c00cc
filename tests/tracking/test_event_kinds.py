"""Events are what their classes say: those of a real run, and every kind has its words."""

from __future__ import annotations

import json
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from cos2p import Recipe
from cos2p.runtime.simulation import run
from cos2p.tracking.event_kinds import KINDS, Event
from cos2p.tracking.events import read_events

TROUBLE = (
    "schedule.rounds=3",
    "training.epochs=1",
    "method.masks.epochs=1",
    "model.depth=2",
    "data.train_samples=300",
    "fleet.devices.1.drop_rate=0.3",
    "run.workers=1",
)


def exactly(kind: type[Event]) -> TypeAdapter[Any]:
    return TypeAdapter(with_config(ConfigDict(extra="forbid", strict=True))(kind))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    folder = tmp_path_factory.mktemp("kinds") / "run"
    there = folder.parent / "there.csv"
    there.write_text("device,from,to\nany,0,20\n")
    run(Recipe.load("quickstart", (*TROUBLE, f"fleet.devices.2.online={there}")), folder)
    return list(read_events(folder / "events.jsonl"))


def test_every_event_of_a_run_has_fields_of_the_types_that_are_said(events: list[Event]) -> None:
    for event in events:
        try:
            exactly(type(event)).validate_json(json.dumps(vars(event)))
        except ValidationError as error:
            pytest.fail(f"{event.kind}: {error}")


def test_the_run_had_troubles_too(events: list[Event]) -> None:
    seen = {event.kind for event in events}
    assert {"started", "joined", "dispatched", "merged", "aggregated", "evaluated", "finished"} <= seen
    assert {"left", "lost"} <= seen


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_field_is_explained(kind: type[Event]) -> None:
    assert kind.__doc__
    hints = get_type_hints(kind, include_extras=True)
    for name in kind.names:
        parts = [hints[name], *get_args(hints[name])]
        assert any(get_origin(part) is Annotated for part in parts), f"{kind.kind}.{name}"
