"""The page shows a true weight for every method."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cos2p.methods import methods
from cos2p.tracking.events import EventLog
from cos2p.view.build import RunSource
from tests.methods.played import play_events


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_update_of_every_method_has_its_share(method: str, tmp_path: Path) -> None:
    with closing(EventLog(tmp_path / "events.jsonl")) as log:
        for event in play_events({"name": method}, schedule={"rounds": 1, "evaluate_every": 1}):
            log.write(event)
    source = RunSource(tmp_path)
    source.refresh()
    updates = source.document()["updates"]
    assert updates["weight"]
    trains = [start < top for start, top in zip(updates["start"], updates["top"], strict=True)]
    assert all(trains) or method == "fedncm", "only class means are told without training"
    for weight, trained in zip(updates["weight"], trains, strict=True):
        assert (weight is not None and 0 < weight <= 1) if trained else weight is None
