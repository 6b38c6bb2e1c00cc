"""Events are what `kinds` says they are: those of a real run, and every kind the drivers can write."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import is_typeddict

import cos2p
from cos2p import Recipe, run
from cos2p.tracking.event_kinds import KINDS
from cos2p.tracking.events import read_events

RUNTIME = Path(cos2p.__file__).parent / "runtime"

TROUBLE = (
    "schedule.rounds=3",
    "training.epochs=1",
    "method.masks.epochs=1",
    "model.depth=2",
    "data.train_samples=300",
    "schedule.max_staleness=0",
    "fleet.heartbeat_seconds=5.0",
    "fleet.devices.1.drop_rate=0.3",
    "fleet.devices.1.downtime=1.0",
    "fleet.devices.2.dies_at=20.0",
    "fleet.devices.0.leaves_at=60.0",
    "run.workers=1",
)


def exactly(kind: type[Any]) -> TypeAdapter[Any]:
    strict = with_config(ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True))
    return TypeAdapter(strict(kind))


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("kinds") / "run"
    run(Recipe.load("quickstart", TROUBLE), folder)
    return list(read_events(folder / "events.jsonl"))


def test_every_event_of_a_run_has_the_fields_of_its_kind_and_no_others(events: list[dict[str, Any]]) -> None:
    for event in events:
        kind = event.pop("kind")
        try:
            exactly(KINDS[kind]).validate_python(event)
        except ValidationError as error:
            pytest.fail(f"{kind}: {error}")
        event["kind"] = kind


def test_the_run_had_troubles_too(events: list[dict[str, Any]]) -> None:
    seen = {event["kind"] for event in events}
    assert {"started", "joined", "dispatched", "merged", "aggregated", "evaluated", "finished"} <= seen
    assert {"left", "died", "lost"} <= seen


def test_every_kind_that_is_written_is_described() -> None:
    pattern = re.compile(r'(?:_log|_tell|tell|Note|Remark)\(\s*"(\w+)"')
    written = {kind for file in RUNTIME.rglob("*.py") for kind in pattern.findall(file.read_text(encoding="utf-8"))}
    written |= {"dropped", "benched"}  # chosen in an expression
    assert written <= KINDS.keys(), f"describe {sorted(written - KINDS.keys())} in cos2p.tracking.event_kinds"
    assert written == KINDS.keys(), f"{sorted(KINDS.keys() - written)} are described but never written"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_field_is_explained(kind: type[Any]) -> None:
    assert is_typeddict(kind)
    assert kind.__doc__
    assert "t" in kind.__annotations__ or "t" in kind.__required_keys__  # type: ignore[attr-defined]
